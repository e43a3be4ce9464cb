"""Charts of fronts show every row, and what is not there is said with the command that gets it."""

import json

import pytest
from front_rows import at_hand, grid

from lmtime import front_charts, prose
from lmtime.encoders import front_facts, fronts, hat
from lmtime.publishing.figure import figure


def layers_of(chart):
    """The layers by their mark; the chart must be one that a page can mount."""
    spec = json.loads(chart.to_json())
    assert figure(spec).startswith('<figure class="lmtime-chart">')
    return {layer["mark"]["type"]: layer for layer in spec["layer"]}, spec


def rows_of(layer, spec):
    return layer.get("data", spec.get("data"))["values"]


def test_a_probability_has_a_cell_its_number_and_ink_that_can_be_read():
    rows = [
        {"task": task, "name": name, "probability": p}
        for task in ("rte", "cola")
        for name, p in (("w1/4 d1/2", 1.0), ("w1 d1", 0.2))
    ]
    layers, spec = layers_of(front_charts.probabilities(rows, "what"))
    assert rows_of(layers["rect"], spec) == rows
    assert layers["rect"]["encoding"]["x"]["sort"] == ["w1/4 d1/2", "w1 d1"]
    assert layers["rect"]["encoding"]["y"]["sort"] == ["rte", "cola"]
    assert layers["text"]["encoding"]["color"]["condition"]["value"] == "white"


def test_an_excess_has_a_cell_for_each_pair_of_devices():
    rows = hat.committed("hat_devices")[:9]
    layers, spec = layers_of(front_charts.excess(rows, "what"))
    assert len(rows_of(layers["rect"], spec)) == 9
    assert layers["rect"]["encoding"]["y"]["sort"] == list(hat.DEVICES.values())


def test_latency_against_flops_joins_those_of_equal_flops(monkeypatch):
    at_hand(monkeypatch, own=grid())
    rows = front_facts.grid(fronts.measured("bert-base")[0])
    layers, spec = layers_of(front_charts.flops_and_latency(rows, "what"))
    shown = rows_of(layers["point"], spec)
    assert {r["name"]: r["latency_ms"] for r in shown} == {r["name"]: r["latency_ms"] for r in rows}
    assert layers["point"]["encoding"]["color"]["scale"]["domain"] == ["12", "9", "6"]
    flops = {r["name"]: r["gflops"] for r in shown}
    assert flops["w1/2 d1"] == flops["w1 d1/2"]
    assert layers["line"]["encoding"]["detail"]["field"] == "gflops"


def test_pairs_of_equal_flops_stand_by_place(monkeypatch):
    at_hand(monkeypatch, own=[*grid(), *grid(device="cpu-2-threads")])
    pairs = [row for s in fronts.measured("bert-base") for row in front_facts.equal_flops(s)]
    layers, spec = layers_of(front_charts.equal_flops(pairs, "what"))
    shown = rows_of(layers["point"], spec)
    assert len(shown) == 4 * 2
    assert {r["place"] for r in shown} == {"torch, cpu 1 thread", "torch, cpu 2 threads"}


def test_what_a_search_found_is_shown_as_chosen_and_as_measured():
    rows = [
        {"name": "a", "predicted_ms": 9, "latency_ms": 10, "score": 82, "score_held_out": 80},
        {"name": "b", "predicted_ms": 20, "latency_ms": 19, "score": 85, "score_held_out": 86},
    ]
    layers, spec = layers_of(front_charts.searched(rows, "what"))
    shown = rows_of(layers["point"], spec)
    chosen, measured = front_charts.FOUND
    assert [(r["what"], r["ms"], r["score"]) for r in shown] == [
        (chosen, 9, 82), (measured, 10, 80), (chosen, 20, 85), (measured, 19, 86),
    ]  # fmt: skip


def test_where_there_are_no_rows_the_command_is_told():
    assert prose.given([1], lambda: "shown", "lmtime pareto measure") == "shown"
    assert prose.given([], lambda: 1 / 0) is None
    told = prose.given({}, lambda: 1 / 0, "lmtime pareto measure")
    assert told.data == "There are no rows for this yet: run `lmtime pareto measure`."


@pytest.mark.parametrize("n_columns, whole", [(2, True), (prose.N_ROOMY, True), (6, False)])
def test_an_interval_stays_in_one_line_where_there_is_room(n_columns, whole):
    row = ["layer", *["12 (-1 to 1,014)"] * (n_columns - 1)]
    text = prose.table(["name"] * n_columns, [row]).data
    assert text.count("(-1\N{NO-BREAK SPACE}to\N{NO-BREAK SPACE}1,014)") == whole * (n_columns - 1)
    assert text.count("(-1 to 1,014)") == (not whole) * (n_columns - 1)
