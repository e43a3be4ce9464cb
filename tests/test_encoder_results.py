"""What the pages on encoders rest on, recomputed from the committed rows."""

from pathlib import Path

import numpy as np
import pytest

import lmtime
from lmtime.config import SubNetwork
from lmtime.encoders import depth, fronts
from lmtime.encoders.fronts import Place
from lmtime.encoders.layer_latency import N_HELD_OUT, designed
from lmtime.pareto.front import Budget
from lmtime.pareto.predictor import LatencyPredictor
from lmtime.records import read_jsonl

ROOT = Path(lmtime.__file__).parent.parent
DEVICES = {"cpu-1-thread": "amd-epyc-1-threads", "cpu-2-threads": "amd-epyc-2-threads"}
ROWS = {
    device: read_jsonl(ROOT / "data" / "results" / folder / "encoder_latency.jsonl")
    for device, folder in DEVICES.items()
}


@pytest.fixture
def reference(tmp_path, monkeypatch):
    """The committed rows alone."""
    monkeypatch.setenv("LMTIME_ROOT", str(ROOT))
    monkeypatch.setenv("LMTIME_RESULTS", str(tmp_path))


@pytest.mark.parametrize("device", DEVICES)
def test_latency_is_a_line_in_depth(device):
    fits = [f for f in depth.depth_fits(ROWS[device]) if f["batch_size"] == 1]
    assert {f["network"] for f in fits} == {"bert-base", "distilbert"}
    for fit in fits:
        assert fit["r2"] >= 0.98, fit["series"]


@pytest.mark.parametrize("device", DEVICES)
def test_a_predictor_is_off_by_less_than_five_percent(device):
    measured = {
        SubNetwork.of_row(r).key: r["latency_ms"]
        for r in ROWS[device]
        if (r["network"], r["engine"], r["quality"]) == ("minilm-l6", "torch", "")
    }
    fitted, others = (
        [case.sub for case in cases if case.sub.key in measured]
        for cases in designed("minilm-l6", Place(device))
    )
    assert len(others) == N_HELD_OUT == 30
    predictor = LatencyPredictor.fit(fitted, [measured[sub.key] for sub in fitted])
    errors = predictor.errors(others, [measured[sub.key] for sub in others])
    assert errors.median <= 0.05


def test_a_budget_of_sixty_milliseconds_is_kept(reference):
    """Which part of BERT-base for SST-2, on one thread, within 60 ms?"""
    budget = Budget(max_latency_ms=60)
    table = fronts.task_front("sst2", Place("cpu-1-thread"), budget=budget).table
    assert len(table.rows) == 12
    assert table.feasible
    best = max((r for r in table.rows if r["on_front"]), key=lambda r: r["score"])
    assert best["latency_ms"] <= 60
    assert best["score"] >= 90


@pytest.mark.parametrize("task", ["sst2", "sentiment"])
@pytest.mark.parametrize("device", DEVICES)
def test_every_part_of_the_grid_was_measured(reference, task, device):
    rows = fronts.task_front(task, Place(device)).table.rows
    assert len(rows) == {"sst2": 12, "sentiment": 16}[task]
    assert all(np.isfinite(r["latency_ms"]) for r in rows)
