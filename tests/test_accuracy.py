"""Laws of the comparison of predictions with measurements, and what the committed rows say."""

import dataclasses
import math
from pathlib import Path

import pytest

import lmtime
from lmtime import accuracy
from lmtime.accuracy import COMPARED, comparisons, in_step_factor, median_absolute
from lmtime.calibration import Calibration, Pass, Product, read_calibration
from lmtime.config import GCNConfig, configuration_of, configure
from lmtime.cost import operators as op
from lmtime.cost import predict
from lmtime.cost.calibrated import FRESH_BYTES, product_s, time_ms
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
    assert time_ms([cost], TABLES, in_step=1.5) == pytest.approx(1.5 * time_ms([cost], TABLES))
    assert product_s(op.Cost(1e11, 8), FLAT) == 1


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


def test_a_result_above_the_librarys_limit_is_new_memory():
    """glibc keeps what is freed up to 32 MiB: a byte more is another regime, not a byte more."""
    below, above = (op.traffic(3 * FRESH_BYTES / 4 + more, 4) for more in (-6, 6))
    assert time_ms([above], TABLES) > 1.2 * time_ms([below], TABLES)
    assert time_ms([above], TABLES) == pytest.approx(1e3 * above.bytes / 4e9)
    gpu = dataclasses.replace(TABLES, device="cuda")
    assert time_ms([above], gpu) == pytest.approx(time_ms([below], gpu), rel=1e-5)


def test_an_update_meets_what_was_last_met_a_step_ago():
    update = op.nesterov(1_000, 4)
    assert time_ms([update], TABLES) == pytest.approx(1e3 * update.bytes / 1e10)


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
    products = 1e3 * sum(
        product_s(o, TABLES) for ops in costs.values() for o in ops if not o.only_moves
    )
    notes = {"tail_hits": hits, "kinds": {"body": {"matrix products": 1.3 * products}}}
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
        assert row["low_ms"] <= row["high_ms"] <= 2 * row["low_ms"]
    assert sum(row["share"] for row in rows) == pytest.approx(1)
    assert median_absolute(rows, "error") == pytest.approx(0.5)


def test_refused_rows_are_not_compared(tmp_path):
    assert comparisons(study_of(tmp_path, quality="noisy"), TABLES) == []


def test_the_factor_of_a_step_is_that_of_its_trace(tmp_path):
    assert in_step_factor(study_of(tmp_path), TABLES) == pytest.approx(1.3)
    assert in_step_factor(Study(tmp_path, "another"), TABLES) == 1.0


# The committed rows


def test_the_committed_shapes_are_many_and_none_calibrated_the_factor():
    configs = {str(r.config) for r in Study(REFERENCE, "accuracy").records() if r.owner == STEP}
    assert len(configs) >= 45
    others = {str(r.config) for r in Study(REFERENCE, "profile").records()}
    assert not configs & others


def test_the_errors_of_the_chapter_follow_from_the_committed_rows(monkeypatch):
    """Recomputed here by hand for one shape; and no group's figure is better than its rows."""
    calibration = read_calibration(REFERENCE / "calibration.json")
    kept = Study(REFERENCE, "accuracy")
    rows = comparisons(kept, calibration, in_step=1.0)
    assert len(rows) >= 4 * 40
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
