"""What the parts of an adaptive softmax cost on a device: its head, and each tail cluster.

Forward and backward pass of torch's `AdaptiveLogSoftmaxWithLoss` and the mean of its loss, in
fp32, with tails of any width; every operator runs after the one before. Every tail cluster is
taken to be hit, and its time to be that of its expected tokens.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import accumulate
from types import SimpleNamespace

from lmtime.calibration import Calibration
from lmtime.cost.calibrated import time_ms
from lmtime.cost.operators import Cost, matmul, matmul_backward
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
from lmtime.hardware import Gpu

VALUE_BYTES = 4  # fp32
SYNCS = 2  # torch finds the tokens of a cluster twice and waits for their number each time


@dataclass(frozen=True)
class Prices:
    """What each operator, and waiting once for the device, costs: in ms, or in FLOPs.

    basis: in words, which numbers of the device these are.
    """

    operator: Callable[[Cost], float]
    sync: float
    in_ms: bool
    basis: str


def work() -> Prices:
    """FLOPs alone: no device."""
    return Prices(lambda op: op.flops, 0.0, False, "FLOPs alone, with no device")


def published(gpu: Gpu) -> Prices:
    """The middle of the roofline's band, and an estimate of launching each operator."""
    launch_ms = 1e3 * LAUNCH_S
    basis = (
        f"the published fp32 and memory peaks of the {gpu.title} (the middle of the roofline's "
        f"band) and an estimated {1e6 * LAUNCH_S:g} µs for each operator and each wait"
    )
    return Prices(_roofline(gpu, launch_ms), launch_ms, True, basis)


def measured(calibration: Calibration) -> Prices:
    """Measured rates by size; without tables of them, the roofline of the large ones.

    A product smaller than any of the table takes as long as one of the table's smallest sizes. An
    operator costs what the host needs for it on top, where that was measured: too much for large
    operators of a GPU, which run while the host launches the next.
    """
    host_ms = 1e3 * (calibration.host_s_per_operator or 0.0)
    sync_ms = 1e3 * (calibration.sync_s or 0.0)
    on_top = f"{1e3 * host_ms:.3g} µs of the host for each operator" if host_ms else "nothing"
    table = [p for p in calibration.gemm if (p.dtype, p.cache) == ("fp32", "hot")]
    rates = "products and passes by size" if table else "large products and copies"
    basis = (
        f"the rates of {rates} that lmtime calibrate measured on {calibration.device_name} "
        f"({calibration.device}), and {on_top} on top"
    )
    if not table:
        return Prices(_roofline(calibration, host_ms), sync_ms, True, basis)
    smallest = tuple(min(getattr(p, side) for p in table) for side in ("rows", "inner", "columns"))
    moved: dict[tuple[str, float], float] = {}

    def operator_ms(op: Cost) -> float:
        if op.shape is not None:
            rows, inner, columns = (max(a, b) for a, b in zip(op.shape, smallest, strict=True))
            rate = calibration.gemm_flops_per_s("fp32", rows, inner, columns)
            return host_ms + 2e3 * rows * inner * columns / rate
        key = op.kind, op.bytes  # most passes of a search are met again
        if key not in moved:
            moved[key] = host_ms + time_ms([op], calibration)
        return moved[key]

    return Prices(operator_ms, sync_ms, True, basis)


def _roofline(device: Gpu | Calibration, launch_ms: float) -> Callable[[Cost], float]:
    rates = device.flops_per_s("fp32"), device.bytes_per_s
    return lambda op: launch_ms + band_ms([op], *rates).middle


class Layer:
    """An adaptive softmax over words sorted by how often they are met, part by part."""

    def __init__(
        self, counts: Sequence[float], hidden_size: int, n_tokens: int, prices: Prices
    ) -> None:
        """counts: of each word, the most frequent first; n_tokens: targets in a step."""
        self.vocab_size, self.hidden_size, self.n_tokens = len(counts), hidden_size, n_tokens
        self.prices = prices
        total = math.fsum(counts)
        self._shares = [0.0, *(c / total for c in accumulate(counts))]
        self._passes: dict[tuple[int, int], float] = {}

    def share(self, start: int, end: int) -> float:
        """Part of all tokens that the words from `start` to before `end` make up."""
        return self._shares[end] - self._shares[start]

    def head(self, short_list: int, n_tails: int) -> float:
        """Price of all that belongs to no tail: the head over all tokens, and the loss."""
        price = self.prices.operator
        return SYNCS * self.prices.sync + sum(map(price, self.head_operators(short_list, n_tails)))

    def tail(self, start: int, end: int, width: int) -> float:
        """Price of one tail cluster; none of its tails is cheaper for being the first."""
        return self._passes_of(start, end) + sum(
            map(self.prices.operator, self.products(start, end, width))
        )

    def head_operators(self, short_list: int, n_tails: int) -> list[Cost]:
        """Forward and backward of the head, the partition and the loss."""
        n = self.n_tokens
        cutoffs = (short_list, *[None] * (n_tails - 1))  # where the others lie is all the same
        shape = SimpleNamespace(final_hidden_size=self.hidden_size, cutoffs=cutoffs)
        in_short_list = n * self.share(0, short_list)
        passes = adaptive_head(shape, n, in_short_list, VALUE_BYTES, in_rows=True)
        loss = [*reduction(n, VALUE_BYTES), *reduction_backward(n, VALUE_BYTES)]
        return [op for part in (*passes, loss) for op in part]

    def products(self, start: int, end: int, width: int) -> list[Cost]:
        """Forward and backward products of a tail; one as wide as the layer is not projected."""
        hits, d, b = self.n_tokens * self.share(start, end), self.hidden_size, VALUE_BYTES
        pairs = [(width, end - start)] if width == d else [(d, width), (width, end - start)]
        return [
            op
            for d_in, d_out in pairs
            for op in (matmul(hits, d_in, d_out, b), *matmul_backward(hits, d_in, d_out, b))
        ]

    def _passes_of(self, start: int, end: int) -> float:
        """Price of all else in a tail: it does not depend on the width."""
        if (start, end) not in self._passes:
            hits = self.n_tokens * self.share(start, end)
            sizes = self.n_tokens, self.hidden_size, hits, end - start, 1, VALUE_BYTES
            operators = [*tail(*sizes), *tail_backward(*sizes)]
            operators.append(later_tail_backward(self.n_tokens, hits, VALUE_BYTES))
            moves = [op for op in operators if op.shape is None]
            self._passes[start, end] = SYNCS * self.prices.sync + sum(
                map(self.prices.operator, moves)
            )
        return self._passes[start, end]
