"""Laws of a search: what predicts is judged by others, a score is computed once, halves differ."""

import math

import numpy as np
import pytest
from subnetworks import PLACE, designed_rows, keep, law_ms, super_network

from lmtime.config import whole_network
from lmtime.encoders import searches
from lmtime.encoders.layer_latency import designed, judged_predictor, layer_space
from lmtime.encoders.plans import Rounds, network_config, threads_of
from lmtime.encoders.searches import Plan, Scorer
from lmtime.errors import UsageError
from lmtime.pareto.front import Budget
from lmtime.records import read_jsonl

pytestmark = pytest.mark.usefixtures("one_thread")


@pytest.fixture
def results(tmp_path, monkeypatch):
    monkeypatch.setenv("LMTIME_RESULTS", str(tmp_path / "results"))
    monkeypatch.setenv("LMTIME_ROOT", str(tmp_path))
    return tmp_path / "results"


def test_the_space_of_minilm_is_counted_exactly():
    """4 x 4 widths a layer, and 6, 5, 4 or 3 layers that stay."""
    assert layer_space("minilm-l6").size == sum(16**n for n in (6, 5, 4, 3))
    assert layer_space("bert-base").size > 10**14


def test_a_predictor_is_judged_by_what_it_was_not_fitted_on():
    fitted, others = designed("minilm-l6", PLACE)
    assert (len(fitted), len(others)) == (40, 30)
    assert not {c.sub.key for c in fitted} & {c.sub.key for c in others}
    space = layer_space("minilm-l6")
    assert all(space.contains(case.sub) for case in fitted + others)
    assert (fitted, others) == designed("minilm-l6", PLACE)


def test_a_device_that_adds_up_is_predicted(results):
    keep(designed_rows())
    judged = judged_predictor("minilm-l6", PLACE)
    assert len(judged.errors) == 30
    assert judged.median_error < 1e-9
    whole = whole_network(network_config("minilm-l6"))
    assert math.isclose(judged.predictor.predict(whole), law_ms(whole), rel_tol=1e-9)


def test_too_few_latencies_are_told(results):
    keep(designed_rows()[:10])
    with pytest.raises(UsageError, match=r"10 of the 40 sub-networks .* --space layers"):
        judged_predictor("minilm-l6", PLACE)


@pytest.fixture
def found(results, monkeypatch):
    """A search of 6 sub-networks, 6 examples a half; the front is measured here, in earnest."""
    keep(designed_rows())
    job = super_network()
    calls = []
    evaluate = searches.evaluate

    def counted(network, data, subs):
        calls.extend((sub.key, len(data)) for sub in subs)
        return evaluate(network, data, subs)

    monkeypatch.setattr(searches, "evaluate", counted)
    plan = Plan(job, PLACE, n_evaluations=6, n_examples=6, rounds=Rounds(6, gated=False))
    conditions, rows = searches.run(plan, command="test")
    return job, conditions, rows, calls


def test_a_search_scores_each_once_and_keeps_what_it_saw(found, results):
    job, conditions, front, calls = found
    kept = [r for r in read_jsonl(job.path.parent / "encoder_search.jsonl")]
    assert len(kept) == conditions["notes"]["n_scored"] == 6
    assert len({row["name"] for row in kept}) == 6
    assert {row["run_id"] for row in kept} == {conditions["run_id"]}
    # each of the six on one half, each of the front on the other, and none twice
    assert len(calls) == 6 + len(front)
    assert [row for row in kept if row["on_front"]] == sorted(front, key=kept.index)
    for row in front:
        assert row["score_held_out"] is not None
        assert row["predicted_ms"] == pytest.approx(law_ms(searches.SubNetwork.of_row(row)), 1e-3)
    assert conditions["notes"]["median_error_held_out"] < 1e-9


def test_the_halves_share_no_example():
    class Data:
        def __init__(self, rows):
            self.rows = rows

        def __len__(self):
            return len(self.rows)

        def part(self, rows):
            return Data(self.rows[rows])

    for n, most in ((11, None), (10, None), (10, 3), (3, 8)):
        chosen, judging = Scorer(None, Data(np.arange(n)), "accuracy").halves(most)
        first, second = set(chosen.data.rows), set(judging.data.rows)
        assert not first & second
        assert len(first) == min((n + 1) // 2, most or n)
        assert len(second) == min(n // 2, most or n)


def test_a_search_for_what_nothing_keeps_names_the_nearest(monkeypatch):
    row = {"name": "0|1|1", "latency_ms": 3.0, "score": 99.0, "score_held_out": 80.0}
    monkeypatch.setattr(searches, "run", lambda *a, **k: ({}, [row]))
    plan = Plan(None, PLACE)
    for budget in (Budget(max_latency_ms=2), Budget(min_score=90)):
        with pytest.raises(UsageError, match=r"the nearest is 0\|1\|1 with 3 ms and 80 points"):
            searches.search_document(plan, budget, command="test")
    monkeypatch.setattr(searches, "run", lambda *a, **k: ({}, [row | {"latency_ms": None}]))
    with pytest.raises(RuntimeError, match="could be measured"):
        searches.search_document(plan, Budget(), command="test")


def test_a_network_that_predicts_fast_and_measures_slow_is_not_accepted(monkeypatch):
    """HAT issue 13: 199 ms predicted, 270 measured, and the limit is 200."""
    row = {"name": "0|1|1", "predicted_ms": 199.0, "latency_ms": 270.0, "score_held_out": 80.0}
    monkeypatch.setattr(searches, "run", lambda *a, **k: ({}, [row]))
    with pytest.raises(UsageError, match="with 270 ms"):
        searches.search_document(Plan(None, PLACE), Budget(max_latency_ms=200), command="test")


@pytest.mark.parametrize(
    "device", ["cpu", "cpu-0-threads", "cpu-x-threads", "cpu-2-thread", "tpu-1-core"]
)
def test_a_device_without_threads_is_refused(device):
    with pytest.raises(UsageError, match="choose cuda, cpu-1-thread"):
        threads_of(device)


def test_threads_are_read_from_the_device():
    assert [threads_of(d) for d in ("cpu-1-thread", "cpu-16-threads")] == [1, 16]
