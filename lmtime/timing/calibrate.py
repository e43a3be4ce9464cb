"""Two rates of a device: large matrix products, and large copies. The best of many calls counts."""

from __future__ import annotations

from collections.abc import Callable

import torch

from lmtime.hardware import Calibration
from lmtime.timing.clock import clock_for
from lmtime.timing.conditions import device_name, precision
from lmtime.timing.timer import time_once

N_CALLS = 12
MATMUL_SIZE = {"cpu": 1_024, "cuda": 8_192}  # rows, columns and inner size
COPY_VALUES = {"cpu": 2**27, "cuda": 2**28}  # fp32: 512 MiB and 1 GiB, beyond any cache


def calibrate(
    device: str, *, dtype: str = "fp32", say: Callable[[str], None] = lambda text: None
) -> Calibration:
    """Measure what large calls reach, products in fp32 or tf32; a few seconds.

    Random normal values: power draw, and so the clock, depends on the data.
    """
    size, values = MATMUL_SIZE[device], COPY_VALUES[device]
    say(f"matrix products of {size} x {size} x {size}")
    a, b = torch.randn(2, size, size, device=device)
    out = torch.empty(size, size, device=device)
    with precision(dtype):
        product_ms = _best_ms(lambda: torch.mm(a, b, out=out), device)
    say(f"copies of {values * 4 / 2**20:.0f} MiB")
    source = torch.randn(values, device=device)
    target = torch.empty_like(source)
    copy_ms = _best_ms(lambda: target.copy_(source), device)
    return Calibration(
        device=device,
        device_name=device_name(device),
        n_threads=None if device == "cuda" else torch.get_num_threads(),
        matmul_flops_per_s={dtype: 2 * size**3 / (1e-3 * product_ms)},
        bytes_per_s=2 * source.nbytes / (1e-3 * copy_ms),
    )


def _best_ms(call: Callable[[], object], device: str) -> float:
    clock = clock_for(device)
    return min(time_once(call, clock) for _ in range(N_CALLS))
