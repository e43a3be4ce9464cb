"""Laws of the depth study: what is claimed of rows follows from them, and only where shown."""

import numpy as np
import pytest

from lmtime.encoders import depth
from lmtime.encoders.depth import (
    NOT_SHOWN,
    compared,
    deepest_by_batch,
    depth_fits,
    depth_rows,
    gain,
)
from lmtime.encoders.plans import first_layers
from lmtime.records import write_jsonl


def row(n_layers, samples_ms, **more):
    """A row of the study `encoder_latency`, of the first layers of BERT-base."""
    median = float(np.median(samples_ms))
    batch = more.get("batch_size", 1)
    sizes = {name: list(v) for name, v in first_layers("bert-base", n_layers).fields().items()}
    return {
        "run_id": "r", "device": "cpu-1-thread", "device_name": "a CPU", "engine": "torch",
        "network": "bert-base", "batch_size": 1, "seq_len": 128, **sizes, "latency_ms": median,
        "latency_ms_low": float(min(samples_ms)), "latency_ms_high": float(max(samples_ms)),
        "samples_ms": list(samples_ms), "throughput_per_s": 1000 * batch / median, "quality": "",
    } | more  # fmt: skip


def steady(ms):
    return [ms * factor for factor in (1.0, 1.01, 0.99, 1.02, 0.98, 1.0, 1.01, 0.99)]


LINEAR = [row(n, steady(5 + 30 * n)) for n in (1, 2, 4, 8, 12)]


def test_a_line_is_found_again_with_its_claims():
    (fit,) = depth_fits(LINEAR)
    assert fit["slope"] == pytest.approx(30)
    assert fit["intercept"] == pytest.approx(5)
    assert fit["r2"] == pytest.approx(1)
    assert abs(fit["largest_residual"]) < 1e-9
    assert (fit["shallowest"], fit["deepest"], fit["n_depths"]) == (1, 12, 5)
    assert (fit["latency"], fit["throughput"]) == ("rises", "falls")
    assert (fit["n_slower"], fit["n_neighbours"]) == (4, 4)
    assert fit["throughput_deepest"] == pytest.approx(1000 / 365)


def test_a_curve_is_told_from_a_line_by_its_residuals():
    (fit,) = depth_fits([row(n, steady(30 * n**2)) for n in range(1, 9)])
    assert fit["r2"] < 0.97
    residuals = np.array(fit["residuals"])
    assert (residuals[[0, -1]] > 0.1).all() and (residuals[1:3] < -0.1).all()
    worst = np.argmax(np.abs(residuals))
    assert (fit["largest_residual"], fit["worst_depth"]) == (residuals[worst], worst + 1)


def test_every_depth_counts_by_its_relative_error():
    """Five percent at the deepest of a line without a start makes no start of its own."""
    noise = {1: 1.01, 2: 0.99, 4: 1.0, 8: 1.0, 12: 1.05}
    (fit,) = depth_fits([row(n, steady(30 * n * part)) for n, part in noise.items()])
    assert abs(fit["intercept"]) < 1
    assert fit["intercept_low"] < 0 < fit["intercept_high"]


def test_a_residual_is_a_share_of_the_line():
    (fit,) = depth_fits([row(n, [ms] * 8) for n, ms in ((1, 100), (2, 100), (3, 100), (4, 140))])
    line = fit["intercept"] + fit["slope"] * np.arange(1, 5)
    np.testing.assert_allclose(line * (1 + np.array(fit["residuals"])), [100, 100, 100, 140])


@pytest.mark.parametrize("run_id", ["r", "another"])
def test_nothing_is_claimed_of_depths_that_take_the_same(run_id):
    noisy = [100.0, 110, 95, 105, 90, 100, 108, 93]
    rows = [row(n, np.roll(noisy, n), run_id=run_id if n == 3 else "r") for n in (1, 2, 3)]
    (fit,) = depth_fits(rows)
    assert fit["latency"] == fit["throughput"] == NOT_SHOWN
    assert fit["n_slower"] == 0
    assert fit["slope_low"] <= 0 <= fit["slope_high"]


def test_a_device_on_which_depth_is_free_or_quicker_is_told_so():
    (fit,) = depth_fits([row(n, steady(100 - 5 * n)) for n in (1, 2, 3, 4)])
    assert (fit["latency"], fit["throughput"], fit["n_slower"]) == ("falls", "rises", 0)


def test_rounds_are_compared_in_pairs_only_within_a_run():
    """A drift that both share hides nothing within a run; across runs nothing is shown."""
    drift = np.linspace(100, 200, 12)
    rng = np.random.default_rng(0)
    first, second = row(1, drift), row(2, 1.05 * drift)
    assert compared(first, second, rng) == "rises"
    assert compared(second, first, rng) == "falls"
    assert compared(first, second | {"run_id": "s"}, rng) == NOT_SHOWN
    assert compared(row(1, [1.0] * 3), row(2, [2.0] * 3), rng) == NOT_SHOWN, "too few"


def test_refused_rows_and_other_widths_take_no_part():
    refused = row(6, steady(900), quality="too noisy")
    narrow = row(6, steady(900)) | {"heads": [6] * 6}
    others = row(6, steady(900)) | {"layers": [0, 2, 4, 6, 8, 10]}
    assert depth_rows([refused, narrow, others]) == []
    assert depth_fits([*LINEAR, refused, narrow, others]) == depth_fits(LINEAR)
    assert [r["n_layers"] for r in depth_rows(LINEAR[::-1])] == [1, 2, 4, 8, 12]


def test_series_are_fitted_apart_and_two_depths_are_none():
    double = [row(n, steady(60 * n), device="cpu-2-threads") for n in (1, 2, 3)]
    two = [row(n, steady(60 * n), engine="onnxruntime") for n in (1, 2)]
    fits = depth_fits([*LINEAR, *double, *two])
    assert [(f["device"], round(f["slope"])) for f in fits] == [
        ("cpu-1-thread", 30),
        ("cpu-2-threads", 60),
    ]


@pytest.mark.parametrize("batch_ms, claim", [(400, "rises"), (800, NOT_SHOWN), (1600, "falls")])
def test_throughput_of_a_batch_is_not_the_inverse_of_its_latency(batch_ms, claim):
    rows = [row(12, steady(100)), row(12, steady(batch_ms), batch_size=8, run_id="s")]
    others = [row(1, steady(9)), row(12, steady(90), engine="onnxruntime")]
    small, large = deepest_by_batch([*rows, *others])
    assert small["throughput"] == "" and large["throughput"] == claim
    assert large["ratio"] == pytest.approx(800 / batch_ms)


def test_faster_and_less_time_are_two_numbers():
    """Case speedup of pareto.json."""
    found = gain(110.71, 69.62)
    assert found["speedup"] == pytest.approx(1.5902039643780521)
    assert found["faster_percent"] == pytest.approx(59.02039643780521)
    assert found["time_saved_percent"] == pytest.approx(37.11498509619726)


def test_sets_are_whole_and_where_none_is_it_says_what_to_run(tmp_path, monkeypatch):
    monkeypatch.setenv("LMTIME_ROOT", str(tmp_path))
    monkeypatch.delenv("LMTIME_RESULTS", raising=False)
    with pytest.raises(LookupError, match="lmtime run lab_depth_latency"):
        depth.measured()
    for folder, device in (("a-1-threads", "cpu-1-thread"), ("a-2-threads", "cpu-2-threads")):
        rows = [{**r, "device": device} for r in LINEAR]
        write_jsonl(tmp_path / "data" / "results" / folder / "encoder_latency.jsonl", rows)
    spoilt = [{**r, "quality": "other work"} for r in LINEAR]
    write_jsonl(tmp_path / "results" / "b" / "encoder_latency.jsonl", spoilt)
    assert {whose: len(rows) for whose, rows in depth.measured().items()} == {"reference": 10}
    write_jsonl(tmp_path / "results" / "b" / "encoder_latency.jsonl", LINEAR)
    assert list(depth.measured()) == ["this machine", "reference"]
    names = {r["series"] for r in depth.measured()["reference"]}
    assert names == {"torch, cpu 1 thread", "torch, cpu 2 threads"}


def test_no_rows_are_no_fits():
    assert depth_fits([]) == deepest_by_batch([]) == []
    assert depth.MIN_DEPTHS == 3
