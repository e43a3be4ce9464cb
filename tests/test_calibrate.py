"""The laws of measuring what a device reaches: real, small, and with a device that cannot be."""

import json
import math
import sys

import numpy as np
import pytest
import torch
from counting import counted
from fakes import FakeClock

from lmtime import cli
from lmtime.calibration import Calibration, Pass, Product
from lmtime.errors import UsageError
from lmtime.timing import calibrate as calibrate_module
from lmtime.timing import calls, microbench
from lmtime.timing.calibrate import (
    PLANS,
    Plan,
    calibrate,
    calibrate_fully,
    check_passes,
    check_products,
)
from lmtime.timing.calls import Budget, Pool, time_call

SMOKE = Plan((16, 64), (2**14, 2**18), (2**18,), max_s=600.0)


@pytest.fixture(scope="module")
def smoke():
    """Each measurement is short; the time allowed is not what ends it."""
    said = []
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(calls, "MEASURE_S", 0.02)
        patch.setattr(microbench, "FLUSH_BYTES", 2**20)
        found = calibrate_fully("cpu", ["fp32", "bf16", "fp32"], plan=SMOKE, say=said.append)
    assert said == [
        "fp32 matrix products",
        "bf16 matrix products",
        "copies",
        "operators",
        "launches",
    ]
    return found


# A small calibration of this machine


def test_every_rate_and_time_is_finite_and_positive(smoke):
    rates = [r for row in smoke.gemm for r in (row.flops_per_s, row.best_flops_per_s)]
    rates += [r for row in smoke.copies + smoke.passes for r in (row.bytes_per_s, row.n_bytes)]
    rates += [smoke.launch_s, smoke.host_s_per_operator, smoke.sync_s, smoke.bytes_per_s]
    assert all(math.isfinite(rate) and rate > 0 for rate in rates)
    assert all(row.n >= 3 for row in smoke.gemm + smoke.copies + smoke.passes)


def test_the_best_is_never_below_the_median(smoke):
    assert all(row.best_flops_per_s >= row.flops_per_s for row in smoke.gemm)
    assert all(row.best_bytes_per_s >= row.bytes_per_s for row in smoke.copies + smoke.passes)


def test_products_cover_the_grid_of_each_dtype_and_the_largest_cold(smoke):
    hot = {(r.dtype, r.rows, r.inner, r.columns) for r in smoke.gemm if r.cache == "hot"}
    assert len(hot) == 2 * 2**3
    cold = {(r.dtype, r.rows, r.inner, r.columns) for r in smoke.gemm if r.cache == "cold"}
    assert {key for key in cold if key[0] == "fp32"} == {
        ("fp32", 64, 16, 64), ("fp32", 64, 64, 16), ("fp32", 64, 64, 64)
    }  # fmt: skip
    best = max(r.best_flops_per_s for r in smoke.gemm if r.dtype == "bf16")
    assert smoke.flops_per_s("bf16") == best


def test_traffic_covers_the_sizes_and_the_operators(smoke):
    assert {row.operator for row in smoke.copies} == {"copy", "add", "sum"}
    assert [r.n_bytes for r in smoke.copies if r.operator == "copy"] == [2**14, 2**18]
    assert {row.operator for row in smoke.passes} == {
        "log_softmax", "log_softmax_backward", "embedding", "embedding_backward", "index_select",
        "layer_norm", "glu", "gelu", "sgd_nesterov", "adamw",
    }  # fmt: skip


def test_a_full_calibration_says_how_it_was_made_and_comes_back(smoke):
    assert Calibration.from_json(smoke.to_json()) == smoke
    conditions = json.loads(smoke.to_json())["provenance"]
    assert conditions["command"] == "lmtime calibrate"
    assert conditions["versions"]["torch"] == torch.__version__
    assert "matmul_allow_tf32" in conditions["flags"]
    assert conditions["notes"]["left_out"] == []
    assert conditions["notes"]["unchecked"] == [
        f"traffic: no peak is known for {smoke.device_name}"
    ]


def test_without_time_little_is_measured_and_the_rest_is_named():
    plan = Plan((16, 64), (2**14, 2**18), (2**18,), max_s=0.02)
    found = calibrate_fully("cpu", plan=plan)
    left_out = found.provenance["notes"]["left_out"]
    assert left_out and all(isinstance(what, str) for what in left_out)
    assert found.flops_per_s("fp32") > 0


def test_the_quick_one_has_two_rates_and_no_table(monkeypatch):
    monkeypatch.setitem(calibrate_module.MATMUL_SIZE, "cpu", 64)
    monkeypatch.setitem(calibrate_module.COPY_VALUES, "cpu", 4_096)
    found = calibrate("cpu")
    assert list(found.matmul_flops_per_s) == ["fp32"]
    assert (found.gemm, found.copies, found.passes, found.sync_s) == ((), (), (), None)


# What is refused


@pytest.mark.parametrize(
    "dtypes, message",
    [
        (["fp64"], "unknown dtype 'fp64': choose one of fp32"),
        (["tf32"], "tf32 is arithmetic of GPUs"),
    ],
)
def test_a_precision_that_is_not_there_is_the_callers_mistake(dtypes, message):
    with pytest.raises(UsageError, match=message):
        calibrate_fully("cpu", dtypes, plan=SMOKE)


def test_a_gpu_without_a_precision_is_told_before_measuring(monkeypatch):
    monkeypatch.setattr(calibrate_module, "device_name", lambda device: "Tesla V100-SXM2-16GB")
    with pytest.raises(UsageError, match=r"V100 SXM2 has no bf16.*choose fp32, fp16"):
        calibrate_fully("cuda", ["bf16"])


def test_too_little_memory_is_told_before_measuring(monkeypatch):
    monkeypatch.setattr(calibrate_module, "_free_bytes", lambda device: 2**20)
    with pytest.raises(RuntimeError, match=r"needs 2\.0 GiB of memory and 0\.0 GiB are free"):
        calibrate_fully("cpu")


# What cannot be


def product(rate):
    return [Product("bf16", 1_024, 1_024, 1_024, rate, rate, 3, "hot")]


def on(monkeypatch, name, cache_bytes=50 * 2**20):
    monkeypatch.setattr(calibrate_module, "device_name", lambda device: name)
    monkeypatch.setattr(calls, "last_cache_bytes", lambda device: cache_bytes)


def test_products_above_the_dense_peak_are_refused(monkeypatch):
    on(monkeypatch, "NVIDIA H100 80GB HBM3")
    assert check_products(product(980e12), "cuda") == []
    with pytest.raises(RuntimeError, match=r"bf16 products of 1024 x 1024 x 1024: 1\.979e"):
        check_products(product(1979e12), "cuda")


def test_traffic_above_the_peak_is_refused_beyond_the_cache_alone(monkeypatch):
    on(monkeypatch, "NVIDIA H100 80GB HBM3")
    fits, large = 2**25, 2**31
    assert len(check_passes([Pass("copy", fits, 9e12, 9e12, 3)], "cuda")) == 1
    assert len(check_passes([Pass("copy", large, 3.4e12, 3.5e12, 3)], "cuda")) == 1
    with pytest.raises(RuntimeError, match="copy of 2147483648 bytes: 4e"):
        check_passes([Pass("copy", large, 4e12, 4e12, 3)], "cuda")
    check_passes([Pass("embedding", large, 4e12, 4e12, 3)], "cuda")


def test_an_unknown_gpu_is_measured_and_said_to_be_unchecked(monkeypatch):
    on(monkeypatch, "NVIDIA H300")
    assert check_products(product(1e30), "cuda") == [
        "bf16 products: no peak is known for NVIDIA H300"
    ]
    assert check_passes([Pass("copy", 2**31, 1e30, 1e30, 3)], "cuda") == [
        "traffic: no peak is known for NVIDIA H300"
    ]


def test_a_processor_cannot_do_more_than_its_vectors(monkeypatch):
    monkeypatch.setattr(calibrate_module, "_read", lambda path: "cpu MHz : 2000.0\nflags : fma\n"
                        if path.endswith("cpuinfo") else "")  # fmt: skip
    with pytest.raises(RuntimeError, match="is above the bound of its cores of"):
        check_products(product(1e15), "cpu")


@pytest.fixture
def command(monkeypatch, capsys):
    """`lmtime calibrate` of a small plan: exit code, output and errors."""
    monkeypatch.setitem(PLANS, "cpu", SMOKE)
    monkeypatch.setattr(calls, "MEASURE_S", 0.01)
    monkeypatch.setattr(microbench, "FLUSH_BYTES", 2**20)

    def run(*options):
        monkeypatch.setattr(sys, "argv", ["lmtime", "calibrate", "--device", "cpu", *options])
        try:
            cli.main()
        except SystemExit as end:
            return end.code, *capsys.readouterr()
        return 0, *capsys.readouterr()

    return run


def test_the_command_prints_its_document_and_nothing_else(command):
    code, out, err = command("--dtype", "fp32", "--dtype", "bf16")
    assert code == 0
    found = Calibration.from_json(out)
    assert list(found.matmul_flops_per_s) == ["fp32", "bf16"]
    assert "matrix products" in err
    assert found.provenance["command"].startswith("lmtime calibrate --device cpu --dtype fp32")


def test_the_command_ends_with_1_and_a_sentence_where_a_rate_cannot_be(command, monkeypatch):
    slow = "cpu MHz : 0.001\nflags : fma\n"
    monkeypatch.setattr(
        calibrate_module, "_read", lambda path: slow if path.endswith("cpuinfo") else ""
    )
    code, out, err = command()
    assert (code, out) == (1, "")
    last = err.splitlines()[-1]
    assert last.startswith("lmtime: measured fp32 products of 16 x 16 x 16: ")
    assert "the timing is wrong; measure again" in last


def test_the_command_ends_with_2_for_a_precision_that_is_not_there(command):
    code, out, err = command("--dtype", "tf32")
    assert (code, out) == (2, "")
    assert err.splitlines()[-1].startswith("lmtime: dtype tf32 is arithmetic of GPUs only")


# How a call is timed


def test_a_short_call_is_repeated_and_the_span_is_divided(monkeypatch):
    clock = FakeClock()
    monkeypatch.setattr(calls, "clock_for", lambda device: clock)
    timed = time_call(lambda: clock.take(1e-3), "cpu")
    assert timed.median_s == timed.best_s == pytest.approx(1e-6)
    assert timed.n == 30
    assert clock.now_ns == 1_000 * (2 + 30 * 100), "samples of 0.1 ms"


def test_the_median_is_of_samples_and_the_best_the_least(monkeypatch):
    clock, took_ms = FakeClock(), iter([9, 9, *range(30, 0, -1)])
    monkeypatch.setattr(calls, "clock_for", lambda device: clock)
    timed = time_call(lambda: clock.take(next(took_ms)), "cpu")
    assert (timed.best_s, timed.median_s) == pytest.approx((1e-3, 15.5e-3))


def test_what_runs_before_a_sample_is_not_in_it(monkeypatch):
    clock, order = FakeClock(), []
    monkeypatch.setattr(calls, "clock_for", lambda device: clock)

    def call():
        order.append("call")
        clock.take(1e-3)

    def flush():
        order.append("flush")
        clock.take(50)

    timed = time_call(call, "cpu", before=flush)
    assert timed.median_s == pytest.approx(1e-6)
    assert order == ["call", "call", *["flush", "call"] * 30]


def test_a_budget_names_what_it_does_not_allow():
    budget = Budget(60.0)
    assert budget.allows("a", 1.0)
    assert not budget.allows("b", 100.0)
    assert not Budget(0.0).allows("c")
    assert budget.left_out == ["b"]


def test_operands_do_not_overlap_and_are_normal():
    pool = Pool(20_000, "cpu")
    a, b = pool.operands((50, 100), (15, 1_000))
    assert a.data_ptr() + a.nbytes == b.data_ptr()
    values = np.concatenate([a.numpy().ravel(), b.numpy().ravel()])
    assert (values.mean(), values.std()) == pytest.approx((0, 1), abs=0.05)
    assert pool.result(100, 100).shape == (100, 100)
    assert Pool(10, "cpu", "bf16").result(5).dtype == torch.bfloat16


@pytest.mark.parametrize("plan", [*PLANS.values(), SMOKE])
def test_a_plan_has_room_for_its_largest_call(plan):
    n = plan.n_values
    assert 2 * max(plan.gemm_sizes) ** 2 <= n
    assert max(plan.copy_bytes) // 4 <= n, "the sum reads that much"
    assert max(plan.pass_bytes) // 4 + microbench.VOCAB_SIZE * microbench.EMBEDDING_SIZE <= n


# The bytes of a pass are those that the counter finds


def test_bytes_of_the_operators_are_those_that_run():
    pool, n_bytes = Pool(10**7, "cpu"), 2**20
    plain = microbench._logit_calls(n_bytes, pool) | microbench._row_calls(n_bytes, pool)
    for name, (call, moved) in (plain | microbench._embedding_calls(n_bytes, "cpu", pool)).items():
        found = counted(call)
        assert found.total.bytes == moved, name
        assert not found.uncounted


def test_bytes_of_the_optimizers_are_those_that_run():
    for bytes_each, build in microbench.OPTIMIZERS.values():
        parameter = torch.nn.Parameter(torch.randn(1_000, 100))
        parameter.grad = torch.randn_like(parameter)
        optimizer = build([parameter])
        optimizer.step()
        found = counted(optimizer.step).total.bytes / parameter.numel()
        assert found == pytest.approx(bytes_each, abs=0.01)


@pytest.mark.cuda
@pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device")
def test_a_gpu_is_calibrated_within_its_peaks():
    found = calibrate_fully("cuda", plan=Plan((32, 2_048), (2**14, 2**28), (2**22,), max_s=20.0))
    assert found.flops_per_s("fp32") > 1e12
    assert found.launch_s < 1e-3
    assert found.sync_s < 1e-2
