"""Precisions of a step: bytes in memory, rate of its products, its cross-entropy. Traceable.

Half precision is pure here: weights, activations and the optimizer's state are two bytes a value.
Its cross-entropy may be computed in fp32: logits are widened before it and gradients narrowed
behind it, as transformers does.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from lmtime.calibration import Calibration
from lmtime.config import HuggingFaceConfig
from lmtime.cost import parts
from lmtime.cost.gcn import gcn
from lmtime.cost.operators import Cost, traffic
from lmtime.cost.optimizers import FOREACH, find_optimizer
from lmtime.cost.output_layers import LOSS, Rows, full
from lmtime.cost.step import launch_ms
from lmtime.errors import UsageError
from lmtime.hardware import Gpu

PRODUCT_EFFICIENCY, MEMORY_EFFICIENCY = 0.65, 0.82  # of the published peaks, as is usual


@dataclass(frozen=True)
class Precision:
    """rate: of the products, as GPUs name it. cast_bytes: read and written by each widening."""

    title: str
    rate: str
    value_bytes: int
    loss_bytes: int
    cast_bytes: int = 0


PRECISIONS = {
    "fp32": Precision("fp32", "fp32", 4, 4),
    "tf32": Precision("tf32", "tf32", 4, 4),
    "bf16": Precision("bf16", "bf16", 2, 2),
    "bf16-fp32-loss": Precision("bf16, cross-entropy in fp32", "bf16", 2, 4, 2 + 4),
}
FP32 = PRECISIONS["fp32"]


def peak_rate(device: Gpu | Calibration, precision: Precision) -> float:
    """FLOP/s of the products; a device without such arithmetic is refused."""
    rate = rate_of(device, precision)
    if rate is None:
        has = ", ".join(name for name, p in PRECISIONS.items() if rate_of(device, p) is not None)
        title = device.title if isinstance(device, Gpu) else device.device_name
        raise UsageError(f"{title} has no {precision.rate} arithmetic of its own: choose {has}")
    return rate


def rate_of(gpu: Gpu | Calibration, precision: Precision) -> float | None:
    """Peak of the products, None where the hardware has no such arithmetic."""
    try:
        return gpu.flops_per_s(precision.rate)
    except UsageError:
        return None


def loss_operators(n_tokens: Any, vocab_size: Any, precision: Any) -> Rows:
    """Forward and backward pass of the cross-entropy over all words."""
    shape = _Words(vocab_size)
    rows = full(shape, n_tokens, (), precision.loss_bytes)
    cast = _cast(n_tokens * vocab_size, precision.cast_bytes)
    forward, backward = rows[LOSS, "forward"], rows[LOSS, "backward"]
    return {(LOSS, "forward"): [*cast, *forward], (LOSS, "backward"): [*backward, *cast]}


def widened(rows: Rows, shape: Any, precision: Precision) -> Rows:
    """The rows of a step with its cross-entropy in the precision's own size."""
    if precision.loss_bytes == precision.value_bytes:
        return rows
    if shape.output_layer != "full":
        raise UsageError(
            f"the output layer {shape.output_layer} has no cross-entropy of its own that "
            f"{precision.title!r} could widen: choose bf16, or output_layer full"
        )
    n, v = shape.n_tokens, shape.vocab_size
    loss = loss_operators(n, v, precision)
    if isinstance(shape, HuggingFaceConfig):
        cast, part = _cast(n * v, precision.cast_bytes), parts.cross_entropy(n, v, 4)
        loss[LOSS, "forward"] = [*cast, *part.forward]
        loss[LOSS, "backward"] = [*part.backward, *cast]
    outside = rows["outside", "backward"]
    first = traffic(1, precision.loss_bytes - precision.value_bytes, launches=0)
    return rows | loss | {("outside", "backward"): [*outside, first]}


@dataclass(frozen=True)
class _Words:
    """What the loss reads of a shape."""

    vocab_size: Any
    final_hidden_size: int = 1


def _cast(values: Any, cast_bytes: Any) -> list[Cost]:
    """No operator where nothing is cast; a page's parameter may be 0 bytes."""
    return [] if isinstance(cast_bytes, int) and not cast_bytes else [traffic(values, cast_bytes)]


def step_rows(shape: Any, precision: Any) -> Rows:
    """Operators of a step of the convolutional network with a full softmax."""
    optimizer = find_optimizer("nesterov", unfused=FOREACH)
    rows = gcn(shape, [], value_bytes=precision.value_bytes, optimizer=optimizer)
    n_tokens = shape.batch_size * shape.seq_len
    return rows | loss_operators(n_tokens, shape.vocab_size, precision)


def launch_ms_of(shape: Any, precision: Precision) -> float:
    """`launch_ms` of such a step, which depends on no size."""
    return launch_ms(step_rows(shape, precision))


def loss_bytes_per_logit(precision: Precision) -> float:
    """Traffic of the cross-entropy, of one token, that each further word adds."""
    one, two = (
        sum(op.bytes for ops in loss_operators(1, words, precision).values() for op in ops)
        for words in (1, 2)
    )
    return two - one


def crossover_hidden_size(flops_per_s: Any, bytes_per_s: Any, bytes_per_logit: Any) -> Any:
    """Where the passes of the cross-entropy take as long as the three products of the head.

    Below it the head waits for memory. Products of both passes are six FLOPs a logit and width.
    """
    product_s = 6 / (PRODUCT_EFFICIENCY * flops_per_s)
    return bytes_per_logit / (MEMORY_EFFICIENCY * bytes_per_s) / product_s
