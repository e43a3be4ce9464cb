"""Laws of a prediction: its rows are the step, it needs no torch, and rates act as they should."""

import dataclasses
import json
import subprocess
import sys

import pytest

from lmtime import cost
from lmtime.calibration import Calibration
from lmtime.config import GCNConfig, configure
from lmtime.cost.predict import FORWARD_PHASES, TRAIN_PHASES, bands, costs, predict, step_row
from lmtime.errors import UsageError
from lmtime.hardware import GPUS
from lmtime.records import STEP, Record

V100 = GPUS["v100-sxm2"]
CONFIGS = {
    "default": GCNConfig(),
    "full": GCNConfig(output_layer="full"),
    "awkward, widening": GCNConfig(
        hidden_size=37,
        final_hidden_size=61,
        embedding_size=19,
        n_layers=3,
        kernel_size=3,
        vocab_size=503,
        cutoffs=(50, 200),
        batch_size=3,
        seq_len=17,
    ),
    "a vocabulary beyond the law": configure(
        "gcn", vocab_size=2_000_000, cutoffs=(4_000, 40_000, 200_000)
    ),
}
every_config = pytest.mark.parametrize("name", CONFIGS)
COLUMNS = ("latency_ms", "latency_ms_low", "latency_ms_high", "flops", "bytes")


def rows_of(name, device=V100, **options):
    *parts, step = predict("gcn", CONFIGS[name], device, **options)
    return parts, step


@every_config
def test_the_step_is_the_exact_sum_of_the_parts(name):
    parts, step = rows_of(name)
    for column in COLUMNS:
        assert getattr(step, column) == sum(getattr(row, column) for row in parts), column
    assert sum(row.share for row in parts) == pytest.approx(1.0, rel=1e-12)
    assert (step.share, step.share_low, step.share_high) == (1.0, 1.0, 1.0)


@every_config
def test_every_owner_of_the_design_is_there_and_the_step_comes_last(name):
    config, (parts, step) = CONFIGS[name], rows_of(name)
    layers = ["input projection", *(f"conv {i + 1}" for i in range(config.n_layers))]
    both = {"embedding", *layers, "output layer", "loss"}
    wanted = {(owner, phase) for owner in both for phase in ("forward", "backward")}
    wanted |= {("outside", "backward"), ("optimizer", "optimizer")}
    assert {(row.owner, row.phase) for row in parts} == wanted
    assert len(parts) == len(wanted), "no part twice"
    assert (step.owner, step.phase) == (STEP, STEP)


@every_config
def test_no_row_is_negative_and_the_middle_lies_in_the_band(name):
    parts, step = rows_of(name)
    for row in [*parts, step]:
        assert 0 < row.latency_ms_low <= row.latency_ms <= row.latency_ms_high
        assert 0 <= row.share_low <= row.share <= row.share_high <= 1
        assert row.share == pytest.approx(row.latency_ms / step.latency_ms, rel=1e-12)
        assert row.flops >= 0
        assert row.bytes > 0


@every_config
def test_parameters_are_counted_once(name):
    parts, step = rows_of(name)
    total = sum(cost.parameters(CONFIGS[name]).values())
    assert step.parameters == total
    assert {row.parameters for row in parts if row.owner == "optimizer"} == {total}
    assert {row.parameters for row in parts if row.owner == "loss"} == {0}


def test_rows_say_that_nothing_was_measured():
    for row in predict("gcn", GCNConfig(), V100):
        assert (row.kind, row.run_id, row.study) == ("predicted", "prediction", "predict")
        assert (row.n, row.latency_ms_p50, row.kernels, row.n_threads) == (None,) * 4
        assert (row.device, row.device_name) == ("v100-sxm2", V100.title)
        assert Record.from_row(json.loads(json.dumps(row.to_row(), allow_nan=False))) == row


# Rates


def test_twice_the_bandwidth_halves_what_only_moves_and_nothing_else():
    faster = dataclasses.replace(V100, bytes_per_s=2 * V100.bytes_per_s)
    (before, _), (after, _) = rows_of("default"), rows_of("default", faster)
    moving = [row.owner for row in before if row.flops == 0]
    assert {"embedding", "loss", "optimizer", "outside"} <= set(moving)
    for slow, fast in zip(before, after, strict=True):
        assert (slow.owner, slow.phase) == (fast.owner, fast.phase)
        if slow.flops == 0:
            assert slow.latency_ms_low == 2 * fast.latency_ms_low
        else:
            assert slow.latency_ms_low / 2 <= fast.latency_ms_low <= slow.latency_ms_low
            assert slow.latency_ms_high / 2 < fast.latency_ms_high < slow.latency_ms_high


def test_twice_the_arithmetic_leaves_what_only_moves():
    faster = dataclasses.replace(V100, fp32_flops_per_s=2 * V100.fp32_flops_per_s)
    for slow, fast in zip(rows_of("default")[0], rows_of("default", faster)[0], strict=True):
        if slow.flops == 0:
            assert slow.latency_ms_high == fast.latency_ms_high
        else:
            assert slow.latency_ms_high > fast.latency_ms_high > slow.latency_ms_high / 2


def test_tensor_cores_speed_up_the_products_alone():
    a100 = GPUS["a100-sxm-80gb"]
    pairs = zip(rows_of("default", a100)[0], rows_of("default", a100, dtype="tf32")[0], strict=True)
    assert {row.owner for row, quick in pairs if row.latency_ms_high > quick.latency_ms_high} == {
        "input projection", "conv 1", "conv 2", "conv 3", "conv 4", "conv 5", "output layer",
    }  # fmt: skip


def test_a_measured_device_takes_its_measured_rates():
    rates = dict(matmul_flops_per_s={"fp32": V100.fp32_flops_per_s}, bytes_per_s=V100.bytes_per_s)
    measured = Calibration(device="cpu", device_name="A processor", n_threads=2, **rates)
    for published, own in zip(
        predict("gcn", GCNConfig(), V100), predict("gcn", GCNConfig(), measured), strict=True
    ):
        assert own.latency_ms_low == published.latency_ms_low
        assert own.latency_ms <= published.latency_ms, "no launch was measured"
        assert (own.device, own.device_name, own.n_threads) == ("cpu", "A processor", 2)


def test_a_precision_that_is_not_predicted_is_refused():
    with pytest.raises(UsageError, match=r"dtype of a prediction 'fp8': choose one of fp32, tf32"):
        predict("gcn", GCNConfig(), V100, dtype="fp8")
    for dtype in ("tf32", "bf16"):
        with pytest.raises(UsageError, match=f"has no {dtype} arithmetic of its own: choose fp32$"):
            predict("gcn", GCNConfig(), V100, dtype=dtype)
    with pytest.raises(UsageError, match=r"no cross-entropy of its own.* choose bf16"):
        predict("gcn", GCNConfig(), GPUS["h100-sxm"], dtype="bf16-fp32-loss")


# Costs


def test_phases_are_those_asked_for():
    config = GCNConfig()
    assert {phase for _, phase in costs(config, phases=FORWARD_PHASES)} == {"forward"}
    training = costs(config, phases=TRAIN_PHASES)
    assert {phase for _, phase in training} == {"forward", "backward", "optimizer"}
    forward = {part: ops for part, ops in training.items() if part[1] == "forward"}
    assert costs(config, phases=FORWARD_PHASES) == forward


def test_counted_targets_take_the_place_of_the_law():
    config = GCNConfig()
    none, all_rare = costs(config, [0, 0]), costs(config, [0, config.n_tokens])
    part = "output layer", "forward"
    tail = 2 * config.n_tokens * (256 * 16 + 16 * (config.vocab_size - 10_000))
    assert sum(all_rare[part]).flops - sum(none[part]).flops == tail


def test_bands_are_of_the_same_parts():
    operators = costs(GCNConfig())
    assert list(bands(operators, V100, "fp32")) == list(operators)


def test_a_step_row_may_be_changed():
    parts, _ = rows_of("default")
    assert step_row(parts, quality="no").quality == "no"
    assert step_row(parts[:1]).latency_ms == parts[0].latency_ms


WITHOUT_TORCH = """
import sys
sys.modules["torch"] = sys.modules["numpy"] = None
from lmtime.config import GCNConfig
from lmtime.cost.predict import predict
from lmtime.hardware import GPUS
rows = predict("gcn", GCNConfig(), GPUS["v100-sxm2"])
sys.stdout.write(repr(rows[-1].latency_ms))
"""


def test_a_prediction_needs_the_standard_library_alone():
    command = [sys.executable, "-c", WITHOUT_TORCH]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    assert float(done.stdout) == rows_of("default")[1].latency_ms
