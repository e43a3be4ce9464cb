"""Laws of scores: exact values, what is not defined, resampling; plain formulas for any input."""

import math
import statistics

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from lmtime import metrics
from lmtime.errors import UsageError
from lmtime.metrics import METRICS, difference_interval, score, score_interval

# 3 true positives, 1 false positive, 2 false negatives, 4 true negatives
LABELS = np.array([1, 1, 1, 0, 1, 1, 0, 0, 0, 0])
PREDICTED = np.array([1, 1, 1, 1, 0, 0, 0, 0, 0, 0])


def rng():
    return np.random.default_rng(11)


@pytest.mark.parametrize(
    "metric, points",
    [
        ("accuracy", 70),
        ("f1", 200 * 3 / (5 + 4)),
        ("accuracy_f1", (70 + 200 * 3 / 9) / 2),
        ("matthews", 100 * (3 * 4 - 1 * 2) / math.sqrt((3 + 1) * (3 + 2) * (4 + 1) * (4 + 2))),
    ],
)
def test_a_score_is_that_of_the_table_of_four(metric, points):
    assert score(metric, LABELS, PREDICTED) == pytest.approx(points, rel=1e-14)


def test_correlations_of_values_and_ranks_are_averaged():
    labels, predicted = np.array([0.0, 1.0, 2.0, 5.0]), np.array([1.0, 3.0, 2.0, 4.0])
    pearson = statistics.correlation(labels, predicted)
    assert score("pearson_spearman", labels, predicted) == pytest.approx(50 * (pearson + 0.8))
    assert score("pearson_spearman", labels, 2 * labels + 3) == pytest.approx(100)
    assert score("pearson_spearman", labels, -labels) == pytest.approx(-100)


@pytest.mark.parametrize("metric", ["matthews", "pearson_spearman"])
@pytest.mark.parametrize("constant", [0, 1])
def test_a_correlation_with_a_constant_is_0_and_not_nan(metric, constant):
    same = np.full(10, constant)
    for pair in ((LABELS, same), (same, LABELS), (same, same)):
        assert score(metric, *pair) == 0


def test_a_constant_that_is_not_its_own_mean_in_float64_is_a_constant():
    labels = np.linspace(0, 5, 7)
    assert np.full(7, 0.1).mean() != 0.1 or np.full(7, 0.7).mean() != 0.7, "else nothing is tried"
    assert score("pearson_spearman", labels, np.full(7, 0.1)) == 0
    assert score("pearson_spearman", labels, np.full(7, 0.7)) == 0


def test_f1_without_a_positive_is_0():
    assert score("f1", np.zeros(4), np.zeros(4)) == 0
    assert score("f1", np.ones(4), np.zeros(4)) == 0
    assert score("f1", np.ones(4), np.ones(4)) == 100


@pytest.mark.parametrize("metric", [*METRICS])
def test_the_best_is_100(metric):
    assert score(metric, LABELS, LABELS) == pytest.approx(100)


def test_three_classes_have_an_accuracy():
    assert score("accuracy", np.array([0, 1, 2, 2]), np.array([0, 2, 2, 2])) == 75


# Any predictions

few = st.lists(st.tuples(st.integers(0, 1), st.integers(0, 1)), min_size=1, max_size=12)
values = st.integers(-3, 3).map(lambda n: n / 4)


@settings(deadline=None)
@given(few)
def test_scores_of_classes_are_those_of_the_plain_formulas(pairs):
    labels, predicted = np.array(pairs).T
    tp, fp, fn, tn = (pairs.count(p) for p in ((1, 1), (0, 1), (1, 0), (0, 0)))
    root = math.sqrt((tp + fp) * (tp + fn) * (tn + fp) * (tn + fn))
    expected = 100 * (tp * tn - fp * fn) / root if root else 0
    assert score("matthews", labels, predicted) == pytest.approx(expected, abs=1e-9)
    f1 = 200 * tp / (2 * tp + fp + fn) if tp else 0
    assert score("f1", labels, predicted) == pytest.approx(f1)
    assert score("accuracy_f1", labels, predicted) == pytest.approx(
        (100 * (tp + tn) / len(pairs) + f1) / 2
    )


@settings(deadline=None)
@given(st.lists(st.tuples(values, values), min_size=1, max_size=9))
def test_ranks_share_what_ties_and_correlate_as_the_library_does(pairs):
    a, b = np.array(pairs).T
    expected = [(sum(y < x for y in a) + sum(y <= x for y in a) - 1) / 2 for x in a]
    assert metrics.ranks(a).tolist() == expected
    other = [(sum(y < x for y in b) + sum(y <= x for y in b) - 1) / 2 for x in b]
    try:
        spearman = statistics.correlation(expected, other)
    except statistics.StatisticsError:  # one value, or a constant
        spearman = 0
    assert metrics.spearman(a, b) == pytest.approx(spearman, abs=1e-12)


@pytest.mark.parametrize("metric", [*METRICS])
def test_many_rows_are_scored_as_one_by_one(metric):
    labels, predicted = rng().integers(0, 2, (2, 30, 8))
    together = METRICS[metric](labels, predicted)
    assert together.shape == (30,)
    alone = [score(metric, one, other) for one, other in zip(labels, predicted, strict=True)]
    assert together == pytest.approx(alone)


# Intervals


def test_the_interval_of_an_accuracy_is_near_the_binomial_one():
    labels = np.ones(400, dtype=int)
    predicted = (np.arange(400) < 320).astype(int)
    low, high = score_interval("accuracy", labels, predicted, rng(), n_resamples=4000)
    reach = 1.96 * 100 * math.sqrt(0.8 * 0.2 / 400)
    assert low == pytest.approx(80 - reach, abs=0.5)
    assert high == pytest.approx(80 + reach, abs=0.5)


@pytest.mark.parametrize("metric", [*METRICS])
def test_an_interval_holds_its_score_and_never_a_nan(metric):
    labels = np.array([0, 1, 1, 0, 1])  # so few that many resamples hold one class
    predicted = np.array([0, 1, 0, 0, 1])
    low, high = score_interval(metric, labels, predicted, rng())
    assert low <= score(metric, labels, predicted) <= high


def test_what_is_predicted_for_all_examples_alike_has_no_width():
    assert score_interval("matthews", LABELS, np.ones(10), rng(), n_resamples=50) == (0, 0)
    assert score_interval("accuracy", LABELS, LABELS, rng(), n_resamples=50) == (100, 100)


def test_the_same_predictions_differ_by_nothing_and_paired_ones_by_less_noise():
    draws = rng()
    labels = draws.integers(0, 2, 500)
    first = np.where(draws.random(500) < 0.8, labels, 1 - labels)
    same = difference_interval("matthews", labels, first, first, rng(), n_resamples=200)
    assert (same.difference, same.low, same.high, same.shown) == (0, 0, 0, False)
    second = first.copy()
    wrong = np.flatnonzero(first != labels)[:15]
    second[wrong] = labels[wrong]  # right wherever the first is, and 15 times more
    better = difference_interval("accuracy", labels, second, first, rng())
    assert better.difference == pytest.approx(3)
    assert better.shown
    assert 1 < better.low < 3 < better.high < 5
    low, high = score_interval("accuracy", labels, first, rng())
    assert better.high - better.low < (high - low) / 2


def test_resampling_in_pieces_changes_nothing_but_the_draw(monkeypatch):
    labels = rng().integers(0, 2, 300)
    predicted = np.where(rng().random(300) < 0.7, labels, 1 - labels)
    whole = score_interval("f1", labels, predicted, rng())
    monkeypatch.setattr(metrics, "_CHUNK_VALUES", 7 * 300)
    assert score_interval("f1", labels, predicted, rng()) == pytest.approx(whole, abs=1)


@pytest.mark.parametrize(
    "arguments, wanted",
    [
        (("bleu", [1], [1]), "unknown metric 'bleu': choose one of accuracy, matthews"),
        (("accuracy", [1, 0], [1]), "give one prediction for each label"),
        (("accuracy", [], []), "one label at least"),
        (("accuracy", [[1]], [[1]]), "one prediction for each label"),
        (("pearson_spearman", [1.0, 2.0], [1.0, np.nan]), "must be finite"),
        (("matthews", [0, 1], [2, 1]), "matthews takes the classes 0 and 1"),
        (("f1", [0, 2], [1, 1]), "f1 takes the classes 0 and 1"),
    ],
)
def test_a_mistake_is_told(arguments, wanted):
    with pytest.raises(UsageError, match=wanted):
        score(*arguments)
