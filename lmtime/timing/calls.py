"""One call at a time: how long it takes, in samples of as many calls as the clock needs."""

from __future__ import annotations

import math
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from lmtime.timing.clock import WallClock, clock_for
from lmtime.timing.timer import Step, time_once

TORCH_DTYPES = {
    "fp32": torch.float32,
    "tf32": torch.float32,
    "fp16": torch.float16,
    "bf16": torch.bfloat16,
}
SPAN_MS = {"cpu": 0.1, "cuda": 0.5}  # of a sample at least: an event resolves half a microsecond
MAX_REPEATS = 1_000
N_WARM_UP = 2  # calls that load and tune kernels
N_SAMPLES = (3, 30)
MEASURE_S = 0.1  # a measurement takes as much at most, but for its least number of samples


class Budget:
    """Seconds that a section may take: what does not fit is left out, and named."""

    def __init__(self, seconds: float, n_measurements: int = 1) -> None:
        self._end = time.monotonic() + seconds
        self.each_s = min(MEASURE_S, seconds / (2 * n_measurements))
        self.left_out: list[str] = []

    def allows(self, what: str, seconds: float = 0.0) -> bool:
        """Whether this much is left; writes down what is not measured otherwise."""
        if time.monotonic() + seconds < self._end:
            return True
        self.left_out.append(what)
        return False


@dataclass(frozen=True)
class Timed:
    """Seconds of one call, median and least of n samples."""

    median_s: float
    best_s: float
    n: int


def time_call(
    call: Step,
    device: str,
    *,
    max_s: float | None = None,
    before: Step | None = None,
    host: bool = False,
) -> Timed:
    """Time a call on a device; short ones are repeated within a sample, and the span is divided.

    max_s: no sample starts after as long, when there are enough; MEASURE_S where none is given.
    before: runs untimed ahead of every sample, which is a single call then. host: only until the
    call returns, by the host's clock.
    """
    device_clock, max_s = clock_for(device), max_s or MEASURE_S
    clock = WallClock() if host else device_clock
    warm_up_ms = [time_once(call, clock) for _ in range(N_WARM_UP)]
    repeats = 1
    if before is None:
        repeats = min(math.ceil(SPAN_MS[device] / max(min(warm_up_ms), 1e-6)), MAX_REPEATS)

    def sample() -> None:
        for _ in range(repeats):
            call()

    spans: list[float] = []
    start = time.monotonic()
    while len(spans) < N_SAMPLES[0] or (
        len(spans) < N_SAMPLES[1] and time.monotonic() - start < max_s
    ):
        if before is not None:
            before()
        device_clock.synchronize()
        spans.append(1e-3 * time_once(sample, clock) / repeats)
    return Timed(float(np.median(spans)), min(spans), len(spans))


class Pool:
    """Random normal values to take operands from, and room for results.

    Power draw, and so the clock, depends on the values. Operands are views that do not overlap.
    """

    def __init__(self, n_values: int, device: str, dtype: str = "fp32") -> None:
        self._values = torch.randn(n_values, device=device).to(TORCH_DTYPES[dtype])
        self._room = torch.empty_like(self._values[: n_values // 2])

    def operands(self, *shapes: tuple[int, ...]) -> Iterator[Tensor]:
        """One tensor a shape, contiguous."""
        start = 0
        for shape in shapes:
            end = start + math.prod(shape)
            yield self._values[start:end].view(shape)
            start = end

    def result(self, *shape: int) -> Tensor:
        """Room for one tensor, contiguous."""
        return self._room[: math.prod(shape)].view(shape)


def last_cache_bytes(device: str) -> int:
    """Size of the cache before the memory; 0 where the system does not tell."""
    if device == "cuda":
        return torch.cuda.get_device_properties(0).L2_cache_size
    sizes = Path("/sys/devices/system/cpu/cpu0/cache").glob("index*/size")
    units = {"K": 2**10, "M": 2**20}
    texts = [path.read_text().strip() for path in sizes]
    return max((int(t[:-1]) * units[t[-1]] for t in texts if t[-1:] in units), default=0)
