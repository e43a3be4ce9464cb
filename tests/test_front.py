"""Laws of the front of a task on a device: rows joined, budgets kept, noise told."""

import json

import numpy as np
import pytest

from lmtime import metrics
from lmtime.errors import UsageError
from lmtime.pareto.front import Budget, front_table
from lmtime.pareto.outcomes import COUNTED, Outcomes

COLUMNS = [
    *("name", "width", "depth", "heads", "ffn_sizes", "score", "score_low", "score_high"),
    *("latency_ms", "latency_ms_low", "latency_ms_high", "parameters"),
    *("on_front", "front_probability"),
]
N = 300


def latency_row(width, ms, **other):
    samples = ms + np.random.default_rng(width).normal(0, 0.01 * ms, 30)
    return {
        "network": "minilm-l6", "device": "cpu-1-thread", "engine": "torch", "batch_size": 1,
        "seq_len": 128, "name": f"w{width}", "width": width / 4, "depth": 1.0,
        "layers": [0, 1], "heads": [3 * width] * 2, "ffn_sizes": [384 * width] * 2,
        "latency_ms": ms, "samples_ms": samples.round(4).tolist(), "parameters": 1000 * width,
        "quality": "",
    } | other  # fmt: skip


def score_row(width, n_right, n=200, seed=0, **other):
    labels = np.arange(n) % 2
    answers = np.where(np.arange(n) < n_right, labels, 1 - labels)
    text = ["".join(map(str, row)) for row in (labels, answers)]
    return {
        "network": "minilm-l6", "task": "sst2", "metric": "accuracy", "seed": seed,
        "layers": [0, 1], "heads": [3 * width] * 2, "ffn_sizes": [384 * width] * 2,
        "score": 100 * n_right / n, "n_examples": n, "labels": text[0], "predicted": text[1],
    } | other  # fmt: skip


TIMED = [latency_row(4, 30.0), latency_row(1, 10.0), latency_row(3, 25.0), latency_row(2, 20.0)]
SCORED = [score_row(1, 140), score_row(2, 170), score_row(3, 165), score_row(4, 190)]


def table(timed=TIMED, scored=SCORED, **options):
    return front_table(timed, scored, n_resamples=N, **options)


def named(rows):
    return [row["name"] for row in rows]


def test_a_row_has_what_the_command_shows_and_json_can_hold_it():
    rows = table().rows
    assert named(rows) == ["w1", "w2", "w3", "w4"]  # by latency
    assert all(list(row) == COLUMNS for row in rows)
    assert json.loads(json.dumps(rows)) == list(rows)
    assert rows[0]["score"] == 70 and rows[0]["heads"] == [3, 3]
    assert all(row["score_low"] < row["score"] < row["score_high"] for row in rows)
    assert all(row["latency_ms_low"] < row["latency_ms"] < row["latency_ms_high"] for row in rows)


def test_the_front_and_how_sure_it_is():
    rows = table().rows
    assert [row["on_front"] for row in rows] == [True, True, False, True]
    assert [row["front_probability"] for row in rows[:3]] == [1, 1, 0]


def test_paired_examples_leave_no_doubt_where_unpaired_ones_would():
    """W3 is wrong wherever w2 is, and 5 times more: never before it, though intervals overlap."""
    rows = table().rows
    assert rows[2]["score_high"] > rows[1]["score_low"]
    assert rows[2]["front_probability"] == 0
    samples = [{**row, "predicted": "", "samples": [100.0] * n + [0.0] * (200 - n)}
               for row, n in zip(SCORED, (140, 170, 165, 190), strict=True)]  # fmt: skip
    unpaired = table(scored=samples).rows
    assert 0.02 < unpaired[2]["front_probability"] < 0.7
    assert unpaired[1]["score"] == pytest.approx(85)


def test_a_budget_is_kept_by_the_rows_and_by_their_resamples():
    found = table(budget=Budget(max_latency_ms=26, min_score=75))
    assert found.feasible and found.nearest == ()
    assert [row["on_front"] for row in found.rows] == [False, True, False, False]
    assert found.rows[3]["front_probability"] == 0
    close = table(budget=Budget(max_latency_ms=20.0)).rows[1]
    assert close["on_front"]
    assert 0.1 < close["front_probability"] < 0.9  # half of its resamples are above 20 ms
    found.require_feasible()


def test_a_budget_that_nothing_meets_names_the_nearest():  # case all-infeasible
    timed, scored = [latency_row(4, 30.0), latency_row(3, 25.0)], SCORED[2:]
    found = table(timed, scored, budget=Budget(max_latency_ms=20))
    assert not found.feasible
    assert not any(row["on_front"] or row["front_probability"] for row in found.rows)
    assert named(found.nearest) == ["w3"]
    wanted = r"keeps at most 20 ms: the nearest is w3 with 25 ms and 82\.5 points"
    with pytest.raises(UsageError, match=wanted):
        found.require_feasible()
    both = table(budget=Budget(1, 99))
    with pytest.raises(UsageError, match="at most 1 ms and at least 99 points"):
        both.require_feasible()


def test_disturbed_rows_are_never_used_and_later_ones_replace_earlier():
    spoilt = latency_row(1, 1.0, quality="spread 31 %")
    again = latency_row(4, 29.0)
    rows = table([*TIMED, spoilt, again]).rows
    assert [row["latency_ms"] for row in rows] == [10, 20, 25, 29]
    assert named(table([*TIMED[1:], latency_row(4, 29.0, quality="drift")]).rows) == [
        "w1", "w2", "w3",
    ]  # fmt: skip


def test_what_lacks_a_score_or_a_latency_is_left_out():
    assert named(table(scored=SCORED[1:]).rows) == ["w2", "w3", "w4"]
    assert named(table(timed=TIMED[:1]).rows) == ["w4"]


def test_a_score_is_the_mean_of_the_seeds_that_all_have():
    second = [score_row(w, n, seed=1) for w, n in ((1, 150), (2, 170), (3, 171), (4, 180))]
    alone = score_row(4, 0, seed=2)
    rows = table(scored=[*second, *SCORED, alone]).rows
    assert [row["score"] for row in rows] == pytest.approx([72.5, 85, 84, 92.5])
    assert 0 < rows[2]["front_probability"] < 0.5
    with pytest.raises(UsageError, match="no seed in common"):
        table(scored=[*SCORED[:3], score_row(4, 190, seed=9)])


def test_latencies_without_samples_are_known():
    bare = [{k: v for k, v in row.items() if k != "samples_ms"} for row in TIMED]
    rows = table(bare).rows
    assert all(r["latency_ms_low"] == r["latency_ms"] == r["latency_ms_high"] for r in rows)
    known = [{**row, "labels": "", "predicted": ""} for row in SCORED]
    assert {row["front_probability"] for row in table(bare, known).rows} == {0, 1}


def test_the_same_seed_gives_the_same_table():
    assert table(seed=3) == table(seed=3)


@pytest.mark.parametrize(
    "call, wanted",
    [
        (lambda: table(scored=[]), r"a latency \(4 have\) and a score \(0 have\) in minilm-l6"),
        (lambda: table([]), r"a latency \(0 have\)"),
        (
            lambda: table([*TIMED, latency_row(1, 5.0, device="cuda")]),
            "latencies of several kinds: device is cpu-1-thread, cuda; choose one",
        ),
        (lambda: table(scored=[*SCORED, score_row(1, 9, task="rte")]), "task is rte, sst2"),
        (
            lambda: table(scored=[{**row, "network": "bert-base"} for row in SCORED]),
            "in bert-base and minilm-l6: measure and train the same",
        ),
        (
            lambda: table(scored=[*SCORED[:3], score_row(4, 90, n=100)]),
            "scored on different examples",
        ),
        (
            lambda: table(scored=[*SCORED[:3], {**SCORED[3], "predicted": "01"}]),
            "more predictions or fewer",
        ),
    ],
)
def test_a_mistake_is_told(call, wanted):
    with pytest.raises(UsageError, match=wanted):
        call()


# Outcomes


def outcomes(metric, n=120, n_points=3, n_seeds=2, n_classes=2):
    draws = np.random.default_rng(4)
    labels = draws.integers(n_classes, size=n)
    right = draws.random((n_points, n_seeds, n)) < 0.7
    predicted = np.where(right, labels, draws.integers(n_classes, size=right.shape))
    return Outcomes(metric, labels, predicted)


@pytest.mark.parametrize("metric", COUNTED)
def test_counted_metrics_are_those_of_the_examples(metric):
    found = outcomes(metric)
    scores = metrics.METRICS[metric](found.labels, found.predicted)
    assert found.values() == pytest.approx(scores.mean(axis=1))
    if metric == "accuracy":
        many = outcomes(metric, n_classes=3)
        expected = metrics.accuracy(many.labels, many.predicted).mean(axis=1)
        assert many.values() == pytest.approx(expected)


@pytest.mark.parametrize("metric", COUNTED)
def test_one_class_alone_gives_what_the_examples_give(metric):
    ones, zeros = np.ones(5, int), np.zeros(5, int)
    for labels, answers in ((ones, ones), (ones, zeros), (zeros, ones), (zeros, zeros)):
        expected = float(metrics.METRICS[metric](labels, answers))
        assert Outcomes(metric, labels, answers[None, None]).values().tolist() == [expected]


@pytest.mark.parametrize("metric", COUNTED)
def test_resamples_are_distributed_as_those_of_single_examples(metric):
    found = outcomes(metric)
    draws = found.draws(4000, np.random.default_rng(1))
    rows = np.random.default_rng(2).integers(120, size=(4000, 120))
    plain = np.stack(
        [
            metrics.METRICS[metric](found.labels[rows], point[:, rows]).mean(axis=0)
            for point in found.predicted
        ],
        axis=1,
    )
    assert draws.shape == plain.shape == (4000, 3)
    assert draws.mean(axis=0) == pytest.approx(plain.mean(axis=0), abs=0.4)
    assert draws.std(axis=0) == pytest.approx(plain.std(axis=0), rel=0.06)
    assert np.corrcoef(draws.T) == pytest.approx(np.corrcoef(plain.T), abs=0.06)


def test_outcomes_that_do_not_fit_are_told():
    with pytest.raises(UsageError, match="unknown metric 'bleu'"):
        Outcomes("bleu", [0], [[[0]]])
    with pytest.raises(UsageError, match="do not fit 2 labels"):
        Outcomes("f1", [0, 1], [[[0]]])
    with pytest.raises(UsageError, match="f1 is of two classes"):
        Outcomes("f1", [0, 2], [[[0, 1]]])
