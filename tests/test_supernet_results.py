"""What the page on super-networks rests on, recomputed from the committed rows."""

from pathlib import Path

import pytest

import lmtime
from lmtime.config import DEPTHS, ENCODERS, WIDTHS, SubNetwork, name_of, sub_network
from lmtime.encoders import score_rows
from lmtime.encoders.plans import SCORES
from lmtime.metrics import score
from lmtime.records import Study, read_jsonl

REFERENCE = Path(lmtime.__file__).parent.parent / "data" / "results" / "amd-epyc-2-threads"
STUDY = Study(REFERENCE, SCORES)
ROWS = read_jsonl(STUDY.path)
each_training = pytest.mark.parametrize(
    ("teacher", "parts"),
    [score_rows.super_network(ROWS, "minilm-l6", "sentiment", seed) for seed in (0, 1)],
    ids=["seed 0", "seed 1"],
)


@each_training
def test_every_width_and_depth_was_scored(teacher, parts):
    grid = [(d, w) for d in DEPTHS["minilm-l6"] for w in WIDTHS]
    assert teacher["name"] == score_rows.FINE_TUNED
    assert [r["name"] for r in parts] == [name_of(w, d) for d, w in grid]
    for row, (depth, width) in zip(parts, grid, strict=True):
        assert SubNetwork.of_row(row) == sub_network(ENCODERS["minilm-l6"], width, depth)


@each_training
def test_the_whole_network_is_within_a_point_of_the_one_fine_tuned_alone(teacher, parts):
    found = score_rows.difference(parts[0], teacher)
    assert found.difference >= -1


@each_training
def test_the_smallest_is_far_above_one_answer_for_all(teacher, parts):
    assert parts[-1]["name"] == "w1/4 d1/2"
    assert parts[-1]["score"] >= score_rows.one_answer(teacher) + 20


@each_training
def test_a_training_took_less_than_two_cores_give_in_forty_minutes(teacher, parts):
    stages = STUDY.provenance()[teacher["run_id"]]["notes"]["stages"]
    assert sum(stage["cpu_seconds"] for stage in stages.values()) <= 2 * 40 * 60


def test_on_a_quiet_machine_a_training_took_less_than_forty_minutes():
    teacher, _ = score_rows.super_network(ROWS, "minilm-l6", "sentiment", seed=1)
    conditions = STUDY.provenance()[teacher["run_id"]]
    assert conditions["load_average"] < 1
    assert sum(s["seconds"] for s in conditions["notes"]["stages"].values()) <= 40 * 60


@pytest.mark.parametrize("row", ROWS, ids=lambda r: f"{r['task']} {r['seed']} {r['name']}")
def test_scores_are_those_of_the_predictions(row):
    labels, predicted = (score_rows.values(row[name]) for name in ("labels", "predicted"))
    assert row["score"] == pytest.approx(score(row["metric"], labels, predicted), abs=1e-4)
    assert row["score_low"] <= row["score"] <= row["score_high"]
