"""Rows of scores: those of one training, and paired differences."""

import numpy as np
import pytest

from lmtime.config import ENCODERS
from lmtime.encoders import score_rows
from lmtime.metrics import difference_interval

LABELS = "0110" * 50
FULL = ENCODERS["minilm-l6"]


def row(name, predicted, *, width=None, depth=None, seed=0):
    layers, heads = round(6 * (depth or 1)), round(12 * (width or 1))
    return {
        "network": "minilm-l6", "task": "sentiment", "seed": seed, "name": name,
        "width": width, "depth": depth, "layers": list(range(layers)), "heads": [heads] * layers,
        "ffn_sizes": [128 * heads] * layers, "metric": "accuracy", "labels": LABELS,
        "predicted": predicted, "n_examples": 200,
    }  # fmt: skip


def right(n):
    """The first n of 200 answers are right."""
    return LABELS[:n] + LABELS[n:].translate(str.maketrans("01", "10"))


ROWS = [
    row("w1/4 d1/2", right(150), width=0.25, depth=0.5),
    row("w1 d1", right(180), width=1.0, depth=1.0),
    row("fine-tuned", right(182)),
    row("w1 d1/2", right(170), width=1.0, depth=0.5),
    row("w1/4 d1", right(160), width=0.25, depth=1.0),
    row("fine-tuned", right(199), seed=1),
    row("w1 d1", right(199), width=1.0, depth=1.0, seed=1),
]


def test_the_teacher_stands_apart_and_the_parts_from_the_largest():
    teacher, parts = score_rows.super_network(ROWS, "minilm-l6", "sentiment")
    assert teacher["predicted"] == right(182)
    assert [r["name"] for r in parts] == ["w1 d1", "w1/4 d1", "w1 d1/2", "w1/4 d1/2"]
    _, other = score_rows.super_network(ROWS, "minilm-l6", "sentiment", 1)
    assert len(other) == 1
    with pytest.raises(LookupError, match="no scores of minilm-l6 on rte"):
        score_rows.super_network(ROWS, "minilm-l6", "rte")


def test_differences_are_paired_over_examples():
    """Two answers of 200: paired, they are known to a point or two; unpaired, to six."""
    found = score_rows.difference(ROWS[1], ROWS[2])
    assert found.difference == pytest.approx(-1.0)
    assert -3 < found.low < found.high <= 0 and not found.shown
    labels = score_rows.values(LABELS)
    by_hand = difference_interval(
        "accuracy", labels, *(score_rows.values(right(n)) for n in (150, 182)),
        np.random.default_rng(0),
    )  # fmt: skip
    assert score_rows.difference(ROWS[0], ROWS[2]) == by_hand
    assert by_hand.shown


def test_other_examples_cannot_be_paired():
    with pytest.raises(ValueError, match="different examples"):
        score_rows.difference(ROWS[1], {**ROWS[2], "labels": LABELS[::-1] + "0"})


def test_work_and_chance():
    assert score_rows.relative_flops(ROWS[1], FULL) == 1
    assert score_rows.relative_flops(ROWS[3], FULL) == pytest.approx(1 / 2)
    assert score_rows.relative_flops(ROWS[0], FULL) == pytest.approx(1 / 8)
    assert score_rows.one_answer(ROWS[0]) == 50
    assert score_rows.one_answer({**ROWS[0], "labels": "0111"}) == 75
    for metric, best in (("matthews", 0), ("f1", 40), ("accuracy", 75)):
        assert score_rows.one_answer({"labels": "0001", "metric": metric}) == best
    assert score_rows.one_answer({"labels": [0.5, 2.0, 3.5], "metric": "pearson_spearman"}) == 0


@pytest.mark.parametrize("low, learnt", [(50.0, False), (50.1, True)])
def test_what_is_not_shown_to_be_above_one_answer_for_all_is_not_learnt(low, learnt):
    assert score_rows.is_learnt({**ROWS[2], "score_low": low}) == learnt


def test_numbers_are_read_as_numbers():
    assert score_rows.values([2.5, 0.0]).dtype == np.float64
    assert score_rows.values("012").tolist() == [0, 1, 2]
