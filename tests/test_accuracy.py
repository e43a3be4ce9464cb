"""Laws of the comparison of predictions with measurements, and what the committed rows say."""

import dataclasses
import math
from pathlib import Path

import pytest

import lmtime
from lmtime import accuracy
from lmtime.accuracy import COMPARED, comparisons, median_absolute, samples
from lmtime.calibration import Calibration, Pass, Product, read_calibration
from lmtime.config import GCNConfig, configuration_of, configure
from lmtime.cost import in_step, predict
from lmtime.cost import operators as op
from lmtime.cost.calibrated import time_ms
from lmtime.cost.in_step import alone_s
from lmtime.records import STEP, Provenance, Record, Study, group_of

REFERENCE = Path(lmtime.__file__).parent.parent / "data" / "results" / "amd-epyc-2-threads"
FLAT = Calibration("cpu", "A processor", 2, {"fp32": 1e11}, 1e10)
TABLES = dataclasses.replace(
    FLAT,
    gemm=tuple(
        Product("fp32", n, n, n, rate, rate, 9, "hot") for n, rate in ((16, 1e10), (1024, 8e10))
    ),
    passes=tuple(
        Pass(name, n, rate, rate, 9)
        for name, rates in {
            "gelu": (4e10, 4e9), "log_softmax": (2e10, 2e9), "sgd_nesterov": (6e10, 1e10),
        }.items()
        for n, rate in zip((2**20, 2**28), rates, strict=True)
    ),
)  # fmt: skip


# Time by a calibration


def test_a_product_takes_as_long_as_one_of_its_sizes():
    cost = op.matmul(1024, 1024, 1024, 4)
    assert time_ms([cost], TABLES) == pytest.approx(1e3 * 2 * 1024**3 / 8e10)
    assert alone_s(op.Cost(1e11, 8), FLAT) == 1


def test_a_convolution_is_the_product_that_does_as_much():
    conv = op.conv(op.Conv(8, 131, 128, 256, 512, 4), 4)
    assert conv.shape == (8 * 128, 256 * 4, 512)
    assert conv.flops == 2 * math.prod(conv.shape)


def test_a_pass_has_the_rate_of_its_kind_and_others_that_of_an_elementwise_one():
    size = 2**18  # values: 1 MiB
    known, other = op.traffic(size, 4, kind="log_softmax"), op.traffic(size, 4, kind="masked")
    assert time_ms([known], TABLES) == pytest.approx(1e3 * 2**20 / 2e10)
    assert time_ms([other], TABLES) == pytest.approx(1e3 * 2**20 / 4e10)
    assert time_ms([op.traffic(0, 4)], TABLES) == 0


def test_without_tables_it_is_the_two_rates():
    config = configure("gcn")
    for operators in predict.costs(config).values():
        flat = sum(o.bytes / 1e10 if o.only_moves else o.flops / 1e11 for o in operators)
        assert time_ms(operators, FLAT) == pytest.approx(1e3 * flat)


# Comparisons


def study_of(tmp_path, slower=2.0, quality=""):
    """A step that takes `slower` times what the calibration says, group by group."""
    config, hits = GCNConfig(), [200.0, 100.0]
    costs = predict.costs(config, hits)
    common = dict(
        run_id="r", study="accuracy", kind="measured", model="gcn",
        config=dataclasses.asdict(config), device="cpu", device_name="A processor", dtype="fp32",
        n_threads=2, quality=quality, latency_ms_low=0.0, latency_ms_high=0.0, share=0.0,
        share_low=0.0, share_high=0.0,
    )  # fmt: skip
    parts = [
        Record(owner=o, phase=p, latency_ms=slower * time_ms(ops, TABLES), **common)
        for (o, p), ops in costs.items()
    ]
    step = Record(owner=STEP, phase=STEP, latency_ms=sum(r.latency_ms for r in parts), **common)
    notes = {"tail_hits": hits}
    kept = Study(tmp_path, "accuracy")
    kept.add([*parts, step], Provenance("r", "", "", "cpu", "A processor", 2, {}, notes=notes))
    return kept


def test_errors_are_those_that_were_made(tmp_path):
    rows = comparisons(study_of(tmp_path), TABLES)
    assert [row["owner"] for row in rows] == list(COMPARED)
    for row in rows:
        assert row["error"] == pytest.approx(-0.5)
        assert row["share_error"] == pytest.approx(0, abs=1e-12)
        assert row["measured_ms"] == pytest.approx(2 * row["predicted_ms"])
        assert 2 * row["low_ms"] <= row["high_ms"]
    assert sum(row["share"] for row in rows) == pytest.approx(1)
    assert median_absolute(rows, "error") == pytest.approx(0.5)


def test_refused_rows_are_not_compared(tmp_path):
    assert comparisons(study_of(tmp_path, quality="noisy"), TABLES) == []


def test_samples_are_the_parts_of_the_steps_in_seconds(tmp_path):
    found = samples(study_of(tmp_path))
    whole = sum(1e3 * seconds for _, seconds in found)
    told = sum(time_ms(operators, TABLES) for operators, _ in found)
    assert whole == pytest.approx(2 * told)
    assert len(found) == 7, "three groups forward and backward, and the update"
    assert samples(study_of(tmp_path, quality="noisy")) == []


# The committed rows


def test_the_committed_shapes_are_many_and_none_calibrated_anything():
    configs, references = (
        {str(r.config) for r in Study(REFERENCE, name).records() if r.owner == STEP}
        for name in ("accuracy", "reference")
    )
    assert len(configs) >= 45
    assert len(references) >= 8
    assert not configs & references


def test_the_coefficients_are_those_of_the_committed_steps():
    calibration = read_calibration(REFERENCE / "calibration.json")
    fitted = in_step.fit(samples(Study(REFERENCE, "reference")), calibration)
    assert fitted == pytest.approx(calibration.in_step, rel=1e-6)


def test_the_bar_is_met_by_the_committed_rows():
    """Times within 10 %, shares within 2 points, in the median; the band without calibration."""
    rows = comparisons(
        Study(REFERENCE, "accuracy"), read_calibration(REFERENCE / "calibration.json")
    )
    assert len(rows) >= 4 * 40
    assert median_absolute(rows, "error") <= 0.10
    assert median_absolute(rows, "share_error") <= 0.02
    assert sum(r["low_ms"] <= r["measured_ms"] <= r["high_ms"] for r in rows) >= 0.9 * len(rows)


def test_a_row_is_the_sum_of_what_was_measured_and_predicted(monkeypatch):
    """Recomputed here by hand for one shape."""
    calibration = read_calibration(REFERENCE / "calibration.json")
    kept = Study(REFERENCE, "accuracy")
    rows = comparisons(kept, calibration)
    row = rows[0]
    records = [r for r in kept.records() if r.run_id == row["run_id"]]
    mine = [r for r in records if group_of(r.owner) == row["owner"]]
    assert row["measured_ms"] == pytest.approx(sum(r.latency_ms for r in mine))
    hits = kept.provenance()[row["run_id"]]["notes"]["tail_hits"]
    costs = predict.costs(configuration_of(records[0].config), hits)
    told = sum(
        time_ms(ops, calibration) for (o, _), ops in costs.items() if group_of(o) == row["owner"]
    )
    assert row["predicted_ms"] == pytest.approx(told)
    monkeypatch.setenv("LMTIME_ROOT", str(REFERENCE.parents[2]))
    assert [len(found) for _, found in accuracy.compared_sets()][-1] == len(rows)
