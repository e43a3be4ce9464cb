"""What the parts of an adaptive softmax cost on a device: its head, and each tail cluster.

Forward and backward pass and the mean of the loss, in fp32, of the fused adaptive softmax
(`lmtime.softmax.AdaptiveSoftmax`), which takes tails of any width, or of torch's; every operator
runs after the one before. Every tail cluster is taken to be hit, and its time to be that of its
expected tokens.
"""

from __future__ import annotations

import copy
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import accumulate
from types import SimpleNamespace
from typing import Any

from lmtime.calibration import Calibration
from lmtime.cost.calibrated import time_ms
from lmtime.cost.fused_adaptive import Band, fused_head, fused_tail
from lmtime.cost.operators import Cost, matmul
from lmtime.cost.output_layers import (
    adaptive_head,
    later_tail_backward,
    reduction,
    reduction_backward,
    tail,
    tail_backward,
)
from lmtime.cost.roofline import band_ms
from lmtime.cost.step import LAUNCH_S
from lmtime.errors import unknown
from lmtime.hardware import Gpu

VALUE_BYTES = 4  # fp32


@dataclass(frozen=True)
class Prices:
    """What an operator costs with its launches and waits: in ms, or in FLOPs.

    basis: in words, which numbers of the device these are.
    """

    operator: Callable[[Cost], float]
    in_ms: bool
    basis: str


def work() -> Prices:
    """FLOPs alone: no device."""
    return Prices(lambda op: op.flops, False, "FLOPs alone, with no device")


def published(gpu: Gpu) -> Prices:
    """The middle of the roofline's band, and an estimate of launching each operator."""
    launch_ms = 1e3 * LAUNCH_S
    basis = (
        f"the published fp32 and memory peaks of the {gpu.title} (the middle of the roofline's "
        f"band) and an estimated {1e6 * LAUNCH_S:g} µs for each operator and each wait"
    )
    return Prices(_roofline(gpu, launch_ms, launch_ms), True, basis)


def measured(calibration: Calibration) -> Prices:
    """Measured rates by size; without tables of them, the roofline of the large ones.

    A product smaller than any of the table takes as long as one of the table's smallest sizes.
    What steps were measured to take has launches and waits in it. Without steps an operator costs
    what the host needs for it on top, where that was measured: too much for large operators of a
    GPU, which run while the host launches the next.
    """
    host_ms, sync_ms = (
        1e3 * (s or 0.0) for s in (calibration.host_s_per_operator, calibration.sync_s)
    )
    table = [p for p in calibration.gemm if (p.dtype, p.cache) == ("fp32", "hot")]
    rates = "products and passes by size" if table else "large products and copies"
    on_top = f"{1e3 * host_ms:.3g} µs of the host for each operator" if host_ms else "nothing"
    if table and calibration.in_step:
        host_ms = sync_ms = 0.0
        on_top = "what operators take inside a step for launches and memory"
    basis = (
        f"the rates of {rates} that lmtime calibrate measured on {calibration.device_name} "
        f"({calibration.device}), and {on_top} on top"
    )
    if not table:
        return Prices(_roofline(calibration, host_ms, sync_ms), True, basis)
    smallest = tuple(min(getattr(p, side) for p in table) for side in ("rows", "inner", "columns"))
    moved: dict[tuple[object, ...], float] = {}

    def price(op: Cost) -> float:
        return host_ms * op.launches + sync_ms * op.syncs + time_ms([op], calibration)

    def operator_ms(op: Cost) -> float:
        if op.shape is not None:
            return price(_at_least(op, smallest))
        key = op.kind, op.bytes, op.launches, op.syncs  # most passes of a search are met again
        if key not in moved:
            moved[key] = price(op)
        return moved[key]

    return Prices(operator_ms, True, basis)


def _at_least(product: Cost, sizes: tuple[float, ...]) -> Cost:
    """The product, or one with each side as large as that."""
    sides = [max(a, b) for a, b in zip(product.shape, sizes, strict=True)]
    return product if tuple(sides) == product.shape else matmul(*sides, VALUE_BYTES)


def _roofline(
    device: Gpu | Calibration, launch_ms: float, sync_ms: float
) -> Callable[[Cost], float]:
    rates = device.flops_per_s("fp32"), device.bytes_per_s
    return lambda op: launch_ms * op.launches + sync_ms * op.syncs + band_ms([op], *rates).middle


class Layer:
    """An adaptive softmax over words sorted by how often they are met, part by part."""

    def __init__(
        self,
        counts: Sequence[float],
        hidden_size: int,
        n_tokens: int,
        prices: Prices,
        execution: str = "fused",
    ) -> None:
        """counts: of each word, the most frequent first; n_tokens: targets in a step.

        execution: "fused", or "torch" for `AdaptiveLogSoftmaxWithLoss`, whose tails all have a
        projection and which can be built with the widths of a div_value only.
        """
        if execution not in EXECUTIONS:
            raise unknown("execution", execution, list(EXECUTIONS))
        self.vocab_size, self.hidden_size, self.n_tokens = len(counts), hidden_size, n_tokens
        self.prices, self.execution = prices, execution
        total = math.fsum(counts)
        self._shares = [0.0, *(c / total for c in accumulate(counts))]
        self._tails: dict[tuple[int, int, int], float] = {}

    def executed_by(self, execution: str) -> Layer:
        """The same layer by another implementation."""
        other = copy.copy(self)
        other.execution, other._tails = execution, {}
        return other

    def share(self, start: int, end: int) -> float:
        """Part of all tokens that the words from `start` to before `end` make up."""
        return self._shares[end] - self._shares[start]

    def head(self, short_list: int, n_tails: int) -> float:
        """Price of all that belongs to no tail: the head over all tokens, and the loss."""
        return sum(map(self.prices.operator, self.head_operators(short_list, n_tails)))

    def tail(self, start: int, end: int, width: int) -> float:
        """Price of one tail cluster; none of its tails is cheaper for being the first."""
        place = start, end, width
        if place not in self._tails:
            self._tails[place] = sum(map(self.prices.operator, self.tail_operators(*place)))
        return self._tails[place]

    def head_operators(self, short_list: int, n_tails: int) -> list[Cost]:
        """Forward and backward of the head, the partition and the loss."""
        cutoffs = (short_list, *[None] * (n_tails - 1))  # where the others lie is all the same
        shape = SimpleNamespace(final_hidden_size=self.hidden_size, cutoffs=cutoffs)
        head, _ = EXECUTIONS[self.execution]
        return head(shape, self.n_tokens, self.n_tokens * self.share(0, short_list))

    def tail_operators(self, start: int, end: int, width: int) -> list[Cost]:
        """Forward and backward of a tail."""
        _, of_tail = EXECUTIONS[self.execution]
        hits = self.n_tokens * self.share(start, end)
        return of_tail(self.n_tokens, self.hidden_size, hits, end - start, width)


def _fused_head(shape: Any, n: float, n_short_list: float) -> list[Cost]:
    return fused_head(shape, n, n - n_short_list, VALUE_BYTES)


def _fused_tail(n: float, d: int, hits: float, size: int, width: int) -> list[Cost]:
    """One as wide as the layer is not projected."""
    return fused_tail(hits, n, d, Band(size, width, projects=width != d), VALUE_BYTES)


def _torchs_head(shape: Any, n: float, n_short_list: float) -> list[Cost]:
    passes = adaptive_head(shape, n, n_short_list, VALUE_BYTES, in_rows=True)
    loss = [*reduction(n, VALUE_BYTES), *reduction_backward(n, VALUE_BYTES)]
    return [op for part in (*passes, loss) for op in part]


def _torchs_tail(n: float, d: int, hits: float, size: int, width: int) -> list[Cost]:
    sizes = n, d, hits, size, width, VALUE_BYTES
    later = later_tail_backward(n, hits, VALUE_BYTES)
    return [*tail(*sizes), *tail_backward(*sizes), later]


EXECUTIONS = {"fused": (_fused_head, _fused_tail), "torch": (_torchs_head, _torchs_tail)}
