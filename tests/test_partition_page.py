"""The page on partitions shows the table of searches, and beside it what was measured."""

import json

import pytest

from lmtime import explorer, partition_table, plans
from lmtime.cost.partitions import RANK_FLOORS
from lmtime.explorer import partitions as page
from lmtime.publishing.figure import figure
from lmtime.publishing.vega_eval import evaluate, signal_texts

MAX_CHART_BYTES = 400_000


@pytest.fixture(scope="module")
def rows():
    return partition_table.read()


def spec_of(chart):
    return json.loads(chart.to_json())


def measured_values(spec):
    """Rows of the chart that have an interval, of the layer of points."""
    points = [layer for layer in spec["layer"] if "shape" in layer.get("encoding", {})]
    return [row for layer in points for row in layer["data"]["values"]]


def compared(layer, hidden_size, n_tokens=1024):
    return {
        "layer": layer, "hidden_size": hidden_size, "n_tokens": n_tokens, "device_name": "a CPU",
        "ratio_to_torch_adaptive": 0.4, "ratio_low": 0.35, "ratio_high": 0.45,
    }  # fmt: skip


@pytest.fixture
def measured(monkeypatch):
    found = [
        compared("torch-adaptive", 1024),
        compared("fused-adaptive", 1024),
        compared("four tails", 512),
        compared("four tails", 1024, n_tokens=64),
    ]
    monkeypatch.setattr(page, "row_sets", lambda name: [("this machine", found)])


def test_every_position_of_the_controls_is_its_row_of_the_table(rows):
    points = [
        {"k_hidden": k, "floor": i, "clusters": n}
        for k in range(page.ENDS[0], page.ENDS[1] + 1)
        for i in range(len(RANK_FLOORS))
        for n in range(1, 7)
    ]
    places = evaluate({"place": page.PLACE}, points)
    assert [row["place"] for row in places] == list(range(len(rows)))
    for point, row in zip(points, rows, strict=True):
        assert 2 ** point["k_hidden"] == row.hidden_size
        assert (RANK_FLOORS[point["floor"]], point["clusters"]) == (row.rank_floor, row.n_clusters)


def test_the_words_beside_the_chart_are_those_of_the_chosen_row(rows):
    params = spec_of(explorer.partition_explorer())["params"]
    for moved in ({}, {"k_hidden": 7, "clusters": 1, "floor": 3}, {"k_hidden": 12, "clusters": 6}):
        signals = [
            {"name": p["name"], "update": p["expr"]}
            if "expr" in p
            else {"name": p["name"], "value": moved.get(p["name"], p["value"])}
            for p in params
        ]
        start = {s["name"]: s["value"] for s in signals if "value" in s}
        (row,) = (
            r
            for r in rows
            if (r.hidden_size, r.n_clusters) == (2 ** start["k_hidden"], start["clusters"])
            and r.rank_floor == RANK_FLOORS[start["floor"]]
        )
        vega = {"$schema": "https://vega.github.io/schema/vega/v6.json", "signals": signals}
        *numbers, ratio, rank = signal_texts(vega, ["cutoffs", "widths", "ratio", "rank"])
        for text, expected in zip(numbers, (row.cutoffs, row.tail_widths), strict=True):
            assert [int(n.replace(",", "")) for n in text.split(", ")] == list(expected)
        assert (float(ratio), float(rank)) == (row.ratio_to_torchs, row.mean_rank_per_token)


def test_what_was_measured_at_as_many_tokens_stands_beside_it(measured):
    found = measured_values(spec_of(explorer.partition_explorer()))
    assert {(r["layer"], r["hidden_size"], r["n_clusters"]) for r in found} == {
        (plans.BASELINE, 1024, 2),
        ("four tails", 512, 4),
    }
    assert all(r["low"] < r["ratio"] < r["high"] for r in found)


def test_without_measurements_there_are_predictions_alone(monkeypatch, rows):
    monkeypatch.setattr(page, "row_sets", lambda name: [])
    spec = spec_of(explorer.partition_explorer())
    assert not measured_values(spec)
    assert any(len(layer["data"]["values"]) == len(rows) for layer in spec["layer"])


def test_the_axis_has_room_for_all_there_is(measured, rows):
    spec = spec_of(explorer.partition_explorer())
    scales = [
        y["scale"]["domain"]
        for layer in spec["layer"]
        if (y := layer.get("encoding", {}).get("y", {})).get("scale")
    ]
    assert scales
    for low, high in scales:
        assert low < min(r.ratio_to_torchs for r in rows)
        assert high > max(1, *(r.ratio_to_torchs for r in rows))


def test_its_figure_is_light(measured):
    assert len(figure(spec_of(explorer.partition_explorer()))) < MAX_CHART_BYTES / 2
