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
TEACHER, PARTS = score_rows.super_network(ROWS, "minilm-l6", "sentiment")


def test_every_width_and_depth_was_scored():
    grid = [(d, w) for d in DEPTHS["minilm-l6"] for w in WIDTHS]
    assert [r["name"] for r in PARTS] == [name_of(w, d) for d, w in grid]
    for row, (depth, width) in zip(PARTS, grid, strict=True):
        assert SubNetwork.of_row(row) == sub_network(ENCODERS["minilm-l6"], width, depth)


def test_the_whole_network_is_within_a_point_of_the_one_fine_tuned_alone():
    found = score_rows.difference(PARTS[0], TEACHER)
    assert found.difference >= -1


def test_the_smallest_is_far_above_one_answer_for_all():
    assert PARTS[-1]["name"] == "w1/4 d1/2"
    assert PARTS[-1]["score"] >= score_rows.largest_class(TEACHER) + 20


def test_a_training_took_less_than_two_cores_give_in_forty_minutes():
    stages = STUDY.provenance()[TEACHER["run_id"]]["notes"]["stages"]
    assert sum(stage["cpu_seconds"] for stage in stages.values()) <= 2 * 40 * 60


@pytest.mark.parametrize("row", ROWS, ids=lambda r: f"{r['task']} {r['name']}")
def test_scores_are_those_of_the_predictions(row):
    labels, predicted = (score_rows.values(row[name]) for name in ("labels", "predicted"))
    assert row["score"] == pytest.approx(score(row["metric"], labels, predicted), abs=1e-4)
    assert row["score_low"] <= row["score"] <= row["score_high"]
