"""What changes with the device, and what a choice made elsewhere costs: worked by hand."""

import numpy as np
import pytest
from front_rows import FIXED_MS, PER_LAYER_MS, at_hand, grid, latency_row, trained

from lmtime.encoders import device_fronts, front_facts, fronts
from lmtime.encoders.device_fronts import agreement, transfers, worst
from lmtime.pareto.transfer import excess_latency

N = 50


def test_the_excess_of_a_choice_worked_by_hand():
    """On the other device the best of at least quality 1 and 3 take 2 and 4."""
    chosen_on, run_on = np.array([3, 2, 5, 1]), np.array([2, 6, 4, 3])
    found = excess_latency(chosen_on, run_on, np.array([1, 2, 3, 1]))
    assert found.tolist() == [0.5, 0]  # for quality 1 the fourth runs, 3 in place of 2
    assert excess_latency(run_on, run_on, np.array([1, 2, 3, 1])).max() == 0


def test_of_those_that_a_device_takes_for_equals_the_best_is_chosen():
    found = excess_latency(np.ones(3), np.array([1, 2, 4]), np.array([1, 2, 3]))
    assert found.tolist() == [3, 1, 0]


@pytest.fixture
def devices(monkeypatch):
    """A CPU, one where only layers count, and the rules; the larger part scores more."""
    rows = [*grid("minilm-l6"), *grid("minilm-l6", device="cuda", per_layer=1e5)]
    at_hand(monkeypatch, own=rows, scores=trained())
    return device_fronts.device_fronts("minilm-l6", "sentiment", n_resamples=N)


def test_devices_come_first_and_then_the_rules(devices):
    assert [d.device for d in devices] == [
        "torch, cpu 1 thread", "torch, cuda", "FLOPs", "layers alone",
    ]  # fmt: skip
    assert [d.is_rule for d in devices] == [False, False, True, True]
    assert len({tuple(row["name"] for row in d.timed) for d in devices}) == 1


def test_only_what_all_devices_measured_is_compared(monkeypatch):
    at_hand(
        monkeypatch,
        own=[*grid("minilm-l6")[1:], *grid("minilm-l6", device="cuda")[:-1]],
        reference=[*grid("minilm-l6", device_name="another"), latency_row("w1 d1")],
        scores=trained(),
    )
    found = device_fronts.device_fronts("minilm-l6", "sentiment", n_resamples=N)
    assert {len(d.table.rows) for d in found} == {14}
    assert [d.device for d in found[:3]] == [
        "torch, cpu 1 thread, a CPU", "torch, cpu 1 thread, another", "torch, cuda",
    ]  # fmt: skip


def test_nothing_measured_is_no_device(monkeypatch):
    at_hand(monkeypatch, scores=trained())
    assert device_fronts.device_fronts("minilm-l6", "sentiment") == []


def test_agreement_is_of_the_measured_devices(devices):
    facts = agreement(devices)
    cpu, cuda = (d.rows() for d in devices[:2])
    assert facts["n_devices"] == 2
    assert set(facts["names"]) == set(cpu)
    on = {name: cpu[name]["on_front"] + cuda[name]["on_front"] for name in cpu}
    for key, n in (("on_every", 2), ("on_some", 1), ("on_none", 0)):
        assert sorted(facts[key]) == sorted(name for name in on if on[name] == n)
    assert "w3/4 d1" in facts["on_some"]  # six layers of 54 heads, and there is one of five of 60
    assert set(facts["moved"]) <= set(facts["on_some"])


def test_what_a_rule_chooses_costs_where_it_does_not_hold(devices):
    excess = {(r["chosen_on"], r["run_on"]): r["excess_max"] for r in transfers(devices)}
    cpu, cuda, _, layers = (d.device for d in devices)
    assert excess[layers, cuda] < 1e-3 < excess[layers, cpu]
    assert excess[cpu, cpu] == pytest.approx(0, abs=0.02)  # both halves of the same samples
    assert len(excess) == 4 * 2  # nothing runs on a rule
    best, chosen = (FIXED_MS + n * PER_LAYER_MS + heads for n, heads in ((4, 12), (3, 18)))
    assert excess[cuda, cpu] == pytest.approx(chosen / best - 1)


def test_the_worst_of_several_tasks_is_kept(devices):
    rows = transfers(devices)
    more = [r | {"excess_max": r["excess_max"] + 1} for r in rows]
    assert worst([*rows, *more]) == more
    assert worst(more) == more


# Facts of one device


def test_equal_flops_are_paired_and_their_latencies_compared(monkeypatch):
    at_hand(monkeypatch, own=grid())
    (found,) = fronts.measured("bert-base")
    pairs = {(r["deep"], r["wide"]): r for r in front_facts.equal_flops(found)}
    assert set(pairs) == {
        ("w3/4 d1", "w1 d3/4"), ("w1/2 d1", "w1 d1/2"), ("w1/2 d3/4", "w3/4 d1/2"),
        ("w1/4 d1", "w1/2 d1/2"),
    }  # fmt: skip
    row = pairs["w1/2 d1", "w1 d1/2"]
    more = 6 * PER_LAYER_MS  # twelve layers in place of six, of as many heads
    assert row["deep_ms"] - row["wide_ms"] == pytest.approx(more)
    assert row["wide_ms"] == FIXED_MS + 6 * (12 + PER_LAYER_MS)
    assert row["ratio"] == pytest.approx(1 + more / row["wide_ms"], rel=1e-3)
    assert row["low"] <= row["ratio"] <= row["high"] and row["shown"]


def test_grids_are_one_a_place_and_whole_ones(monkeypatch):
    two = grid(device="cpu-2-threads")
    at_hand(monkeypatch, own=[latency_row("w1 d1"), *two], reference=[*grid(), *two])
    found = front_facts.grids("bert-base")
    assert [(s.whose, s.place.device) for s in found] == [
        ("reference", "cpu-1-thread"), ("this machine", "cpu-2-threads"),
    ]  # fmt: skip


def test_no_difference_is_shown_where_layers_cost_nothing(monkeypatch):
    at_hand(monkeypatch, own=grid(per_layer=0))
    for row in front_facts.equal_flops(fronts.measured("bert-base")[0]):
        assert row["low"] <= 1 <= row["high"] and not row["shown"]


def test_of_other_runs_intervals_are_compared(monkeypatch):
    at_hand(monkeypatch, own=[r | {"run_id": r["name"]} for r in grid()])
    row = front_facts.equal_flops(fronts.measured("bert-base")[0])[0]
    assert row["low"] == pytest.approx(row["deep_ms"] * 0.99 / (row["wide_ms"] * 1.01))


def test_a_front_is_summarised(monkeypatch):
    at_hand(monkeypatch, own=grid("minilm-l6"), scores=trained())
    (front,) = fronts.all_fronts("minilm-l6", n_resamples=N)
    fact = front_facts.sureness(front)
    rows = front.table.rows
    assert fact["n_front"] == sum(row["on_front"] for row in rows)
    assert fact["n_sure"] == sum(row["front_probability"] > 0.95 for row in rows) >= 1
    assert [r["name"] for r in front_facts.likely(front)] == [row["name"] for row in rows]
    assert front_facts.cheaper_no_worse(front) is None  # the whole network scores most


def test_a_part_that_scores_no_less_saves_time(monkeypatch):
    at_hand(monkeypatch, own=grid())
    best = front_facts.cheaper_no_worse(fronts.task_front("rte", fronts.Place("cpu-1-thread")))
    assert best["score"] >= best["whole"]["score"] and best["whole"]["name"] == "w1 d1"
    assert best["saved"] == pytest.approx(1 - best["latency_ms"] / best["whole"]["latency_ms"])
    assert best["saved"] > 0


def test_the_last_search_is_judged(monkeypatch):
    def row(run, ms, chosen, unseen, predicted=10.0, network="minilm-l6"):
        return {
            "run_id": run, "network": network, "predicted_ms": predicted, "latency_ms": ms,
            "score": chosen, "score_held_out": unseen,
        }  # fmt: skip

    rows = [row("a", 8, 80, 80), row("b", 12.5, 81, 80), row("b", 8, 82, 80, 9)]
    rows += [row("b", 10, 80, 81, 11), row("b", None, 85, None), row("c", 1, 1, 1, 1, "distilbert")]
    at_hand(monkeypatch, searches=rows)
    found = front_facts.searched("minilm-l6")
    assert [r["predicted_ms"] for r in found] == [9, 10, 11]
    summary = front_facts.search_summary(found)
    assert (summary["n"], summary["n_lower"], summary["optimism"]) == (3, 2, 1)
    assert summary["median_error"] == pytest.approx(0.125)
    assert summary["worst_error"] == pytest.approx(-0.2)
    assert front_facts.searched("bert-base") == []
