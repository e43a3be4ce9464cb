"""Laws of rows: they come back as they went, wholly or not at all, and with their conditions."""

import dataclasses
import itertools
import json
import subprocess
import sys
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lmtime import records
from lmtime.config import GCNConfig
from lmtime.errors import UsageError
from lmtime.records import (
    GROUPS,
    STEP,
    Provenance,
    Record,
    Study,
    append_jsonl,
    data_file,
    document,
    group_of,
    project_root,
    read_jsonl,
    studies,
    write_text,
)


def record(**changes):
    own = dict(
        run_id="r1",
        study="s",
        kind="measured",
        model="gcn",
        config=dataclasses.asdict(GCNConfig()),
        device="cpu",
        device_name="A processor",
        dtype="fp32",
        n_threads=2,
        owner="conv 1",
        phase="forward",
        latency_ms=3.0,
        latency_ms_low=2.5,
        latency_ms_high=3.5,
        share=0.25,
        share_low=0.2,
        share_high=0.3,
    )
    return Record(**(own | changes))


def conditions(**changes):
    own = dict(
        run_id="r1",
        command="lmtime profile gcn",
        time_utc="2026-01-01T00:00:00+00:00",
        device="cpu",
        device_name="A processor",
        n_threads=2,
        versions={},
    )
    return Provenance(**(own | changes))


# Rows


times = st.floats(0, 1e6, allow_nan=False)
counts = st.one_of(st.none(), st.integers(0, 10**18))
any_record = st.builds(
    record,
    owner=st.text(max_size=9),
    latency_ms=times,
    latency_ms_p05=st.one_of(st.none(), times),
    n=counts,
    flops=counts,
    bytes=st.one_of(st.none(), times),
    quality=st.text(max_size=9),
    config=st.builds(
        lambda width, layer, cutoffs: dataclasses.asdict(
            GCNConfig(hidden_size=width, output_layer=layer, cutoffs=cutoffs)
        ),
        st.integers(1, 9_999),
        st.sampled_from(["adaptive", "full"]),
        st.sets(st.integers(1, 33_277), min_size=1, max_size=3).map(sorted).map(tuple),
    ),
)


@given(any_record)
def test_a_row_through_json_is_the_record_again(found):
    row = json.loads(json.dumps(found.to_row(), allow_nan=False))
    assert Record.from_row(row) == found
    assert Record.from_row(found.to_row()) == found


def test_a_row_is_flat_and_no_field_of_the_configuration_hides_one_of_the_record():
    row = record().to_row()
    assert not any(isinstance(value, dict) for value in row.values())
    assert len(row) == len(dataclasses.fields(Record)) - 1 + len(dataclasses.fields(GCNConfig))


def test_making_a_row_leaves_the_record_as_it_was():
    found = record()
    found.to_row()["owner"] = "another"
    found.to_row().pop("hidden_size")
    assert found == record()


def test_what_was_not_measured_is_none():
    defaults = {f.name: f.default for f in dataclasses.fields(Record)}
    unmeasured = ("n", "flops", "bytes", "kernels", "syncs", "latency_ms_p50", "predicted_share")
    assert [defaults[name] for name in unmeasured] == [None] * len(unmeasured)


@pytest.mark.parametrize(
    "owner, group",
    [
        ("embedding", "embedding"),
        ("conv 3", "body"),
        ("input projection", "body"),
        ("output layer", "output layer"),
        ("loss", "output layer"),
        ("optimizer", "optimizer"),
        ("outside", "outside"),
    ],
)
def test_every_owner_is_in_one_group(owner, group):
    assert group_of(owner) == group
    assert group in GROUPS


def test_a_document_names_its_schema_and_ends_in_its_rows():
    whole = document("profile", {"run_id": "r1"}, [{"a": 1}], inflation=1.02)
    assert whole["schema"] == "lmtime/1"
    assert list(whole) == ["schema", "command", "provenance", "inflation", "rows"]


# Files


def test_no_file_is_no_rows(tmp_path):
    assert read_jsonl(tmp_path / "none.jsonl") == []


def test_rows_are_added_in_order_and_folders_are_made(tmp_path):
    path = tmp_path / "a" / "b" / "rows.jsonl"
    append_jsonl(path, [{"i": 0}, {"i": 1}])
    append_jsonl(path, [])
    append_jsonl(path, ({"i": i} for i in (2, 3)))
    assert [row["i"] for row in read_jsonl(path)] == [0, 1, 2, 3]
    assert path.read_text().endswith("}\n")


def test_a_row_keeps_lines_and_letters_of_any_kind(tmp_path):
    path, row = tmp_path / "rows.jsonl", {"name": "a\nb\u2028c\x85 é 語", "ends": "\r\n"}
    append_jsonl(path, [row])
    assert read_jsonl(path) == [row]


def test_a_file_without_a_last_newline_is_continued_on_a_new_line(tmp_path):
    path = tmp_path / "rows.jsonl"
    path.write_text('{"i": 0}')
    append_jsonl(path, [{"i": 1}])
    assert read_jsonl(path) == [{"i": 0}, {"i": 1}]


def broken_off():
    yield {"i": 1}
    raise KeyboardInterrupt


@pytest.mark.parametrize(
    "rows, error",
    [
        ([{"i": 1}, {"i": float("nan")}], ValueError),
        ([{"i": 1}, {"i": object()}], TypeError),
        (broken_off(), KeyboardInterrupt),
    ],
    ids=["a row that is not JSON", "a row that is no value", "an interruption"],
)
def test_rows_are_added_all_or_none(tmp_path, rows, error):
    path = tmp_path / "rows.jsonl"
    append_jsonl(path, [{"i": 0}])
    with pytest.raises(error):
        append_jsonl(path, rows)
    assert read_jsonl(path) == [{"i": 0}]
    assert [p.name for p in tmp_path.iterdir()] == ["rows.jsonl"], "nothing is left beside it"


def test_a_failed_move_leaves_the_old_file_and_nothing_else(tmp_path, monkeypatch):
    path = tmp_path / "rows.jsonl"
    write_text(path, "old")

    def full(*_):
        raise OSError("no space left")

    monkeypatch.setattr(records.os, "replace", full)
    with pytest.raises(OSError, match="no space left"):
        write_text(path, "new")
    assert path.read_text() == "old"
    assert [p.name for p in tmp_path.iterdir()] == ["rows.jsonl"]


def test_others_may_read_what_is_written(tmp_path):
    write_text(tmp_path / "a.json", "{}")
    assert (tmp_path / "a.json").stat().st_mode & 0o777 == 0o644


APPENDING = """
import itertools, sys
from pathlib import Path
from lmtime.records import append_jsonl, read_jsonl
path = Path(sys.argv[1])
for i in itertools.count(len(read_jsonl(path)) // 3):
    append_jsonl(path, [{"i": i, "part": part, "padding": "x" * 9_999} for part in range(3)])
    sys.stdout.write(f"{i}\\n")
    sys.stdout.flush()
"""


def test_a_killed_process_leaves_every_finished_call_and_no_torn_one(tmp_path):
    path = tmp_path / "rows.jsonl"
    for n_calls in (1, 7, 12):  # each continues what the killed one before it left
        command = [sys.executable, "-c", APPENDING, str(path)]
        child = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
        reported = [int(line) for line in itertools.islice(child.stdout, n_calls)]
        child.kill()
        child.communicate()
        found = [(row["i"], row["part"]) for row in read_jsonl(path)]
        assert found == [(i, part) for i in range(len(found) // 3) for part in range(3)]
        assert len(reported) == n_calls
        assert len(found) // 3 > reported[-1], "what was reported as done is there"


@pytest.mark.parametrize("bad", ['{"i": 1', "", "{'i': 1}", "nonsense"])
def test_a_line_that_is_not_json_is_named_with_its_file(tmp_path, bad):
    path = tmp_path / "rows.jsonl"
    path.write_text(f'{{"i": 0}}\n{bad}\n{{"i": 2}}\n')
    with pytest.raises(UsageError, match=r"rows\.jsonl, line 2 is not JSON .*: delete that line"):
        read_jsonl(path)


# Studies


def test_a_study_has_what_was_added_to_it_and_nothing_else(tmp_path):
    study, config = Study(tmp_path, "s"), dataclasses.asdict(GCNConfig())
    assert not study.runs("gcn", config)
    study.add([record(), record(owner=STEP, phase=STEP)], conditions())
    assert study.runs("gcn", config)
    assert study.runs("gcn", config, dtype="fp32", study="s")
    assert not study.runs("gcn", config, dtype="bf16")
    assert not study.runs("gcn-1024", config)
    assert not study.runs("gcn", config | {"batch_size": 9})
    assert not Study(tmp_path, "another").runs("gcn", config)
    assert study.records() == [record(), record(owner=STEP, phase=STEP)]


def test_a_configuration_is_found_again_whatever_holds_its_cutoffs(tmp_path):
    """JSON knows no tuples: what is compared must not depend on it."""
    study = Study(tmp_path, "s")
    config = dataclasses.asdict(GCNConfig(cutoffs=[5, 70]))
    study.add([record(config=config, owner=STEP, phase=STEP)], conditions())
    assert study.runs("gcn", dataclasses.asdict(GCNConfig(cutoffs=(5, 70))))


def test_no_row_is_ever_without_its_conditions(tmp_path, monkeypatch):
    study = Study(tmp_path, "s")
    written = []

    def noted(path, text):
        written.append(path.name)
        write_text(path, text)

    monkeypatch.setattr(records, "write_text", noted)
    study.add([record()], conditions())
    assert written == ["provenance.jsonl", "s.jsonl"]
    assert read_jsonl(study.provenance_path) == [dataclasses.asdict(conditions())]


def test_rows_that_cannot_be_written_are_not_there(tmp_path):
    study = Study(tmp_path, "s")
    study.add([record()], conditions())
    with pytest.raises(ValueError, match="JSON compliant"):
        study.add([record(owner="a"), record(latency_ms=float("inf"))], conditions(run_id="r2"))
    assert study.records() == [record()]


# Where they lie


CLONE = Path(__file__).resolve().parents[1]


@pytest.fixture
def own_root(monkeypatch):
    monkeypatch.delenv("LMTIME_ROOT", raising=False)
    monkeypatch.delenv("LMTIME_RESULTS", raising=False)


def test_the_root_is_the_nearest_folder_above_that_holds_the_contents(tmp_path, own_root):
    inner = tmp_path / "a" / "b"
    inner.mkdir(parents=True)
    assert project_root(inner) == inner, "where no folder does, it is the start"
    (tmp_path / "_toc.yml").touch()
    assert project_root(inner) == tmp_path
    (tmp_path / "a" / "_toc.yml").touch()
    assert project_root(inner) == tmp_path / "a"
    assert project_root(tmp_path / "a") == tmp_path / "a"


def test_the_root_follows_the_working_folder_and_the_environment(tmp_path, own_root, monkeypatch):
    for name in ("here", "there"):
        (tmp_path / name).mkdir()
    monkeypatch.chdir(tmp_path / "here")
    assert project_root() == CLONE, "where the working directory is in no study"
    (tmp_path / "here" / "_toc.yml").touch()
    assert project_root() == tmp_path / "here"
    monkeypatch.setenv("LMTIME_ROOT", str(tmp_path / "there"))
    assert project_root() == project_root(tmp_path / "here") == tmp_path / "there"


def test_a_file_of_the_study_is_found_from_anywhere_or_missed_in_a_sentence(
    tmp_path, own_root, monkeypatch
):
    monkeypatch.chdir(tmp_path)
    assert data_file("partitions.csv") == CLONE / "data" / "partitions.csv"
    monkeypatch.setenv("LMTIME_ROOT", str(tmp_path))
    with pytest.raises(UsageError, match=r"no .*partitions\.csv: set LMTIME_ROOT to the folder of"):
        data_file("partitions.csv")


def test_studies_of_this_machine_come_before_the_reference(tmp_path, own_root, monkeypatch):
    monkeypatch.setenv("LMTIME_ROOT", str(tmp_path))
    assert studies("s") == []
    own, other = tmp_path / "results", tmp_path / "data" / "results"
    for folder in (other / "gpu", own / "cpu-2", own / "cpu-1"):
        Study(folder, "s").add([record()], conditions())
    Study(own / "cpu-1", "another").add([record()], conditions())
    assert [(whose, found.folder) for whose, found in studies("s")] == [
        ("this machine", own / "cpu-1"),
        ("this machine", own / "cpu-2"),
        ("reference", other / "gpu"),
    ]


def test_results_may_lie_elsewhere(tmp_path, own_root, monkeypatch):
    monkeypatch.setenv("LMTIME_RESULTS", str(tmp_path / "elsewhere"))
    Study(tmp_path / "elsewhere" / "cpu", "s").add([record()], conditions())
    assert [whose for whose, _ in studies("s")] == ["this machine"]


def test_an_unfinished_file_is_no_study(tmp_path, own_root, monkeypatch):
    monkeypatch.setenv("LMTIME_ROOT", str(tmp_path))
    folder = tmp_path / "results" / "cpu"
    folder.mkdir(parents=True)
    (folder / ".s.jsonl.abc.tmp").write_text("{")  # as a killed process leaves it
    assert studies("s") == []


# Rows by group of owners


def groups_of(folder, *rows):
    notes = {"groups": {g: {"share": 0.2, "share_low": 0.1, "share_high": 0.3} for g in GROUPS}}
    Study(folder, "s").add(rows, conditions(notes=notes))
    return Study(folder, "s").group_rows()


def test_predicted_shares_of_a_group_are_the_sum_of_its_owners(tmp_path):
    rows = groups_of(
        tmp_path,
        record(owner="conv 1", predicted_share=0.25),
        record(owner="conv 2", phase="backward", predicted_share=0.5),
        record(owner="loss", predicted_share=0.125),
        record(owner="output layer", predicted_share=0.0625),
        record(owner=STEP, phase=STEP, share=1.0, predicted_share=1.0),
    )
    assert [row["owner"] for row in rows] == list(GROUPS)
    found = {row["owner"]: row["predicted_share"] for row in rows}
    assert (found["body"], found["output layer"], found["embedding"]) == (0.75, 0.1875, None)
    assert {row["share"] for row in rows} == {0.2}


def test_rows_that_are_not_results_are_in_no_group(tmp_path):
    spoilt = dict(quality="the plain step spreads 40 %")
    assert groups_of(tmp_path, record(**spoilt), record(owner=STEP, phase=STEP, **spoilt)) == []


# Kinds of work


def test_kinds_of_a_group_are_parts_of_the_whole_traced_step(tmp_path):
    kept = Study(tmp_path, "s")
    kinds = {"output layer": {"matrix products": 3.0, "idle": 1.0}, "body": {"waiting": 4.0}}
    kept.add([record(owner=STEP, phase=STEP)], conditions(notes={"kinds": kinds}))
    rows = kept.kind_rows("output layer")
    assert [(r["kind"], r["ms"], r["share"]) for r in rows] == [
        ("matrix products", 3.0, 0.375),
        ("idle", 1.0, 0.125),
    ]
    kept.annotate(rows[0]["run_id"], more=1)
    (row,) = kept.provenance().values()
    assert row["notes"] == {"kinds": kinds, "more": 1}
    kept.annotate("another run", more=2)
    assert list(kept.provenance().values()) == [row]


def test_rows_without_a_trace_or_refused_have_no_kinds(tmp_path):
    kept = Study(tmp_path, "s")
    kept.add([record(owner=STEP, phase=STEP)], conditions(notes={"groups": {}}))
    assert kept.kind_rows("body") == []
    kinds = {"body": {"waiting": 4.0}}
    refused = record(owner=STEP, phase=STEP, quality="noisy")
    kept.add([refused], conditions(notes={"kinds": kinds}))
    assert kept.kind_rows("body") == []
