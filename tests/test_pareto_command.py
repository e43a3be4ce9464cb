"""Laws of `lmtime pareto`: documents, sentences, and what each command refuses."""

import json
from pathlib import Path

import pytest
from subnetworks import keep, row
from test_architecture import importing

from lmtime.config import DEPTHS, ENCODERS, WIDTHS, sub_network
from lmtime.encoders.fronts import Place

CONTRACT = {
    "name", "width", "depth", "heads", "ffn_sizes", "score", "score_low", "score_high",
    "latency_ms", "latency_ms_low", "latency_ms_high", "parameters", "on_front",
    "front_probability",
}  # fmt: skip
BERT = ENCODERS["bert-base"]
ROOT = Path(__file__).parents[1]


@pytest.fixture
def results(tmp_path_factory, monkeypatch):
    """An empty folder of results, and a project that holds only what was published."""
    folder = tmp_path_factory.mktemp("results")
    monkeypatch.setenv("LMTIME_RESULTS", str(folder))
    monkeypatch.setenv("LMTIME_ROOT", str(folder))
    published = ROOT / "data" / "published"
    (folder / "data").mkdir()
    (folder / "data" / "published").symlink_to(published)
    return folder


@pytest.fixture
def timed(results):
    """Latencies of BERT-base that grow with width x depth: 100 ms for the whole."""
    subs = [sub_network(BERT, w, d) for w in WIDTHS for d in DEPTHS["bert-base"]]
    place = Place("cpu-1-thread")
    whole = BERT.flops(1, 128)
    keep([row("bert-base", s, place, ms=100 * s.config(BERT).flops(1, 128) / whole) for s in subs])


def test_a_front_has_every_field_of_the_contract(command, timed):
    code, out, _ = command("pareto", "front", "--task", "sst2", "--json", "-")
    assert code == 0
    doc = json.loads(out)
    assert (doc["schema"], doc["command"]) == ("lmtime/1", "pareto front")
    assert (doc["task"], doc["network"], doc["device"]) == ("sst2", "bert-base", "cpu-1-thread")
    assert len(doc["rows"]) == 12
    for found in doc["rows"]:
        assert found.keys() >= CONTRACT
        assert 0 <= found["front_probability"] <= 1
        assert found["score_low"] <= found["score"] <= found["score_high"]
    assert doc["rows"] == sorted(doc["rows"], key=lambda r: r["latency_ms"])


def test_published_scores_stand_as_they_were_published(command, timed):
    _, out, _ = command("pareto", "front", "--task", "sst2", "--json", "-")
    scores = {r["name"]: r["score"] for r in json.loads(out)["rows"]}
    assert (scores["w1 d1"], scores["w1/4 d1/2"]) == pytest.approx((93.2, 92.0))


def test_a_budget_leaves_on_the_front_only_what_keeps_it(command, timed):
    limited = ("pareto", "front", "--task", "cola", "--max-latency-ms", "40")
    _, out, _ = command(*limited, "--json", "-")
    on_front = [r for r in json.loads(out)["rows"] if r["on_front"]]
    assert on_front
    assert max(r["latency_ms"] for r in on_front) <= 40
    _, table, _ = command(*limited)
    assert "w1/2 d3/4" in table
    assert "on the front in" in table


@pytest.mark.parametrize(
    ("arguments", "wanted"),
    [
        (["front", "--task", "imdb"], "unknown task 'imdb': choose one of sentiment, sst2"),
        (["front", "--task", "sst2", "--network", "gpt2"], "unknown network 'gpt2'"),
        (["front", "--task", "sst2", "--min-score", "nan"], "min_score=nan must be a number"),
        (
            ["front", "--task", "sst2", "--max-latency-ms", "5"],
            "nearest is w1/4 d1/2 with 12.5",
        ),
        (["front", "--task", "sst2", "--min-score", "99"], "the nearest is w1"),
        (
            ["front", "--task", "sst2", "--device", "cuda"],
            "no latency of bert-base was",
        ),
        (["front", "--task", "sentiment"], "`lmtime pareto train --network minilm-l6"),
        (["front", "--task", "sst2", "--json", "no/such/file"], "cannot be written"),
        (["measure", "--network", "gpt2"], "unknown network 'gpt2'"),
        (["measure", "--device", "toaster"], "device 'toaster': choose cuda, cpu-1-thread"),
        (["measure", "--space", "all"], "unknown space 'all': choose one of grid, layers"),
        (["measure", "--rounds", "1"], "--rounds 1 must be at least 6"),
        (["measure", "--engine", "tvm"], "unknown engine 'tvm'"),
        (["measure", "--seq-len", "4096"], "512"),
        (["train", "--task", "imdb"], "unknown task 'imdb'"),
        (["train", "--network", "bert-base"], "no weights of bert-base come with the package"),
        (["train", "--preset", "huge"], "unknown preset 'huge'"),
        (["search"], "0 of the 40 sub-networks that a predictor of minilm-l6"),
        (["export", "w1 d1", "--out", "here"], "no super-network of minilm-l6 was trained here"),
        (["export", "all", "--out", "here"], "write a width and a depth, as in 'w3/4 d5/6'"),
        (["export", "w2 d1", "--out", "here"], "sub-network 'w2 d1'"),
        (["export", "0,9|1,1|1,1", "--out", "here"], "there is no layer 9"),
    ],
)
def test_a_mistake_costs_one_sentence(command, timed, tmp_path, arguments, wanted):
    code, out, err = command("pareto", *arguments)
    assert (code, out) == (2, "")
    assert wanted in err
    assert "Traceback" not in err
    assert list(tmp_path.iterdir()) == []


def test_the_answer_needs_no_torch():
    loaded = importing(["lmtime.encoders.fronts", "lmtime.cli.pareto"], without=["torch", "optuna"])
    assert "lmtime.pareto.front" in loaded
