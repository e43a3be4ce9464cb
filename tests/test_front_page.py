"""The pages on fronts say what Python says: at every budget, task and device, through Vega."""

import json
from itertools import pairwise

import pytest
from front_rows import GRID, at_hand, grid, trained

from lmtime import explorer
from lmtime.encoders import device_fronts, fronts
from lmtime.encoders.fronts import Place
from lmtime.explorer.fronts import budgets_ms, front_explorer
from lmtime.pareto.front import Budget
from lmtime.publishing.figure import figure
from lmtime.publishing.vega_eval import signal_texts

MAX_CHART_BYTES = 150_000
PLACES = (Place("cpu-1-thread"), Place("cpu-2-threads"), Place("cpu-1-thread", "onnxruntime"))
TASKS = ("sst2", "rte", "cola")
N = 50


@pytest.fixture
def found(monkeypatch):
    """Fronts of three tasks on three devices, of very different speed."""
    rows = []
    for place, speed in zip(PLACES, (1, 1.7, 6), strict=True):
        at = {"device": place.device, "engine": place.engine}
        rows += grid(speed=speed, per_layer=speed, **at)
    at_hand(monkeypatch, own=rows)
    return [fronts.task_front(task, p, n_resamples=N) for task in TASKS for p in PLACES]


def spec_of(chart):
    return json.loads(chart.to_json())


def told(spec, names, **moved):
    """Signals of a chart with its controls at these positions, as texts."""
    signals = [
        {"name": p["name"], "update": p["expr"]}
        if "expr" in p
        else {"name": p["name"], "value": moved.get(p["name"], p["value"])}
        for p in spec["params"]
    ]
    vega = {"$schema": "https://vega.github.io/schema/vega/v6.json", "signals": signals}
    return signal_texts(vega, names)


def in_python(task, place, budget_ms):
    """The best of the front within the budget, or None."""
    budget = Budget(max_latency_ms=budget_ms)
    rows = fronts.task_front(task, place, budget=budget, n_resamples=N).table.rows
    return max((r for r in rows if r["on_front"]), key=lambda r: r["score"], default=None)


def test_within_a_budget_the_page_names_what_python_does(found):
    spec, budgets = spec_of(front_explorer(found)), budgets_ms(found)
    names = ["kept", "best_name", "best_score", "best_latency_ms"]
    ends = (0, len(budgets) // 3, len(budgets) // 2, 3 * len(budgets) // 4, len(budgets) - 1)
    n_none = 0
    for i, task in enumerate(TASKS):
        for j, place in enumerate(PLACES):
            fastest = fronts.task_front(task, place, n_resamples=N).table.rows[0]
            for k in ends:
                kept, name, score, ms = told(spec, names, task=i, device=j, k_budget=k)
                best = in_python(task, place, budgets[k])
                assert bool(int(kept)) == (best is not None)
                n_none += best is None
                best = best or fastest
                assert name == best["name"]
                assert float(score) == pytest.approx(best["score"], abs=0.01)
                assert float(ms) == pytest.approx(best["latency_ms"], abs=0.01)
    assert 0 < n_none < len(TASKS) * len(PLACES) * len(ends)


def test_a_budget_that_a_network_just_keeps_is_kept(found):
    spec, rows = spec_of(front_explorer(found)), found[0].table.rows
    member = [row for row in rows if row["on_front"]][1]
    signal = next(p for p in spec["params"] if p["name"] == "budget")
    for ms, kept in ((member["latency_ms"], "2"), (member["latency_ms"] - 1e-6, "1")):
        signal["expr"] = f"{ms}"
        assert told(spec, ["kept"]) == [kept]


def test_budgets_are_in_equal_ratios_from_below_the_fastest_to_above_the_slowest(found):
    budgets = budgets_ms(found)
    times = [row["latency_ms"] for front in found for row in front.table.rows]
    assert budgets[0] < min(times) and budgets[-1] >= max(times)
    assert max(times) / min(times) > 10
    ratios = [b / a for a, b in pairwise(budgets)]
    assert max(ratios) < 1.1
    start = next(p for p in spec_of(front_explorer(found))["params"] if p["name"] == "k_budget")
    assert 0 < sum(row["latency_ms"] <= budgets[start["value"]] for row in found[0].table.rows) < 12


def test_dominated_points_stay_and_the_sentence_is_told(found):
    spec = spec_of(front_explorer(found))
    points = spec["data"]["values"]
    assert len(points) == 12 * len(found)
    assert {p["where"] for p in points} == {"on the front", "dominated"}
    page = figure(spec)
    assert len(page) < MAX_CHART_BYTES
    assert "Within " in page and "of resamples of the latencies and of the examples" in page


def test_a_page_needs_each_task_on_each_device_once(found):
    for wrong in (found[:-1], [*found, found[0]]):
        with pytest.raises(ValueError, match="each task on each device"):
            front_explorer(wrong)


# Devices


@pytest.fixture
def by_device(monkeypatch):
    """A device that counts heads, and one that counts layers; two networks."""
    rows = []
    for network in GRID:
        rows += grid(network)
        rows += grid(network, device="cuda", per_layer=100)
    at_hand(monkeypatch, own=rows, scores=trained())
    tasks = {"sst2": "bert-base", "sentiment": "minilm-l6"}
    return {
        task: device_fronts.device_fronts(network, task, n_resamples=N)
        for task, network in tasks.items()
    }


def test_the_device_page_counts_as_python_does(by_device):
    spec = spec_of(explorer.device_explorer(by_device))
    names = ["on_every", "on_some", "on_none", "n_moved", "n_devices"]
    for i, of_task in enumerate(by_device.values()):
        facts = device_fronts.agreement(of_task)
        expected = [len(facts[name]) for name in ("on_every", "on_some", "on_none", "moved")]
        assert list(map(int, told(spec, names, task=i))) == [*expected, 2]
    assert "measured devices" in figure(spec)


def test_the_device_page_has_a_cell_for_each_part_and_device(by_device):
    spec = spec_of(explorer.device_explorer(by_device))
    (cells,) = (layer["data"]["values"] for layer in [spec, *spec["layer"]] if "data" in layer)
    assert len(cells) == (12 + 16) * 4
    assert {c["device"] for c in cells} == {
        "torch, cpu 1 thread", "torch, cuda", "FLOPs", "layers alone",
    }  # fmt: skip
