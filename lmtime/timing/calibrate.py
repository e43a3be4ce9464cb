"""What a device reaches: two rates for every profile, and the tables of `lmtime calibrate`."""

from __future__ import annotations

import dataclasses
import math
import os
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import torch

from lmtime.calibration import Calibration, Pass, Product
from lmtime.errors import UsageError, unknown
from lmtime.hardware import PRECISIONS, check_rate, cpu_peak_flops_per_s, gpu_of, memory_bound
from lmtime.timing import calls, microbench
from lmtime.timing.clock import clock_for
from lmtime.timing.conditions import device_name, load_average, precision, provenance
from lmtime.timing.timer import time_once

N_CALLS = 12
MATMUL_SIZE = {"cpu": 1_024, "cuda": 8_192}  # rows, columns and inner size
COPY_VALUES = {"cpu": 2**27, "cuda": 2**28}  # fp32: 512 MiB and 1 GiB, beyond any cache

Say = Callable[[str], None]


def _silent(text: str) -> None:
    """Where nobody listens."""


def calibrate(device: str, *, dtype: str = "fp32", say: Say = _silent) -> Calibration:
    """Measure what large calls reach, products in fp32 or tf32; a few seconds.

    Random normal values: power draw, and so the clock, depends on the data. The best counts.
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


@dataclass(frozen=True)
class Plan:
    """What a full calibration measures, and how long its parts may take together."""

    gemm_sizes: tuple[int, ...]  # of rows, inner and columns alike
    copy_bytes: tuple[int, ...]  # read and written
    pass_bytes: tuple[int, ...]  # of one operand
    max_s: float = 90.0

    @property
    def n_values(self) -> int:
        """Random values that the largest call reads, in fp32."""
        embedding = microbench.VOCAB_SIZE * microbench.EMBEDDING_SIZE
        largest_pass = max(self.pass_bytes) // 4
        return max(
            2 * max(self.gemm_sizes) ** 2,
            max(self.copy_bytes) // 4,
            2 * largest_pass,
            largest_pass + embedding,
            2 * microbench.VOCAB_SIZE,
        )


PLANS = {
    "cpu": Plan(
        (16, 64, 256, 1_024, 4_096),
        (*(2**k for k in range(14, 30, 2)), 2**29),
        (2**20, 2**24, 2**27),
    ),
    "cuda": Plan(
        (32, 128, 512, 2_048, 8_192, 16_384),
        tuple(2**k for k in range(14, 32, 2)),
        (2**20, 2**25, 2**30),
    ),
}
SMOKE = Plan((16, 256), (2**14, 2**20), (2**20, 2**22), max_s=6.0)  # that it runs, no more
SHARES = {"products": 0.48, "cold": 0.1, "copies": 0.12, "operators": 0.3}  # of the time


def calibrate_fully(
    device: str,
    dtypes: Sequence[str] | None = None,
    *,
    plan: Plan | None = None,
    command: str = "lmtime calibrate",
    say: Say = _silent,
) -> Calibration:
    """Measure rates by size, of operators too, and what launching and waiting cost; < 2 minutes.

    dtypes: of the matrix products, fp32 where none is named; all else is fp32.
    What the time does not suffice for is left out and named in the notes of the provenance. Raises
    RuntimeError where a rate is more than the device can reach.
    """
    plan, dtypes = plan or PLANS[device], tuple(dict.fromkeys(dtypes or ("fp32",)))
    _check_dtypes(device, dtypes)
    _require_memory(plan, device)
    load, left_out = load_average(), []
    gemm = _products(dtypes, plan, device, say, left_out)
    copies, passes = _traffic(plan, device, say, left_out)
    say("launches")
    overheads = microbench.overheads(device)
    unchecked = check_products(gemm, device) + check_passes([*copies, *passes], device)
    notes = {"max_s": plan.max_s, "left_out": left_out, "unchecked": unchecked}
    conditions = provenance(command, device, load_average=load, notes=notes)
    return Calibration(
        device=device,
        device_name=conditions.device_name,
        n_threads=conditions.n_threads,
        matmul_flops_per_s={
            dtype: max(row.best_flops_per_s for row in gemm if row.dtype == dtype)
            for dtype in dtypes
        },
        bytes_per_s=[row for row in copies if row.operator == "copy"][-1].best_bytes_per_s,
        provenance=dataclasses.asdict(conditions),
        gemm=tuple(gemm),
        copies=tuple(copies),
        passes=tuple(passes),
        **overheads,
    )


def _products(
    dtypes: Sequence[str], plan: Plan, device: str, say: Say, left_out: list[str]
) -> list[Product]:
    rows = []
    for dtype in dtypes:
        say(f"{dtype} matrix products")
        pool = calls.Pool(plan.n_values, device, dtype)
        seconds = plan.max_s / len(dtypes)
        budget = calls.Budget(SHARES["products"] * seconds, len(plan.gemm_sizes) ** 3)
        hot = microbench.gemm(plan.gemm_sizes, device, dtype, pool, budget)
        budget_cold = calls.Budget(SHARES["cold"] * seconds)
        rows += hot + microbench.cold_gemm(hot, device, dtype, pool, budget_cold)
        left_out += budget.left_out + budget_cold.left_out
        del pool  # before the next one is made
    return rows


def _traffic(
    plan: Plan, device: str, say: Say, left_out: list[str]
) -> tuple[list[Pass], list[Pass]]:
    """Rows of copies, and of operators and optimizers."""
    pool, tables = calls.Pool(plan.n_values, device), []
    for name, measure, sizes in (
        ("copies", microbench.copies, plan.copy_bytes),
        ("operators", microbench.passes, plan.pass_bytes),
    ):
        say(name)
        budget = calls.Budget(SHARES[name] * plan.max_s)
        tables.append(measure(sizes, device, pool, budget))
        left_out += budget.left_out
    return tables[0], tables[1]


def _check_dtypes(device: str, dtypes: Sequence[str]) -> None:
    """Refuse a precision that the device does not have, before anything is measured."""
    for dtype in dtypes:
        if dtype not in PRECISIONS:
            raise unknown("dtype", dtype, list(PRECISIONS))
        if device == "cpu" and dtype == "tf32":
            raise UsageError("dtype tf32 is arithmetic of GPUs only: give fp32 or bf16 on a CPU")
    if device == "cuda":
        _check_cuda_dtypes(dtypes)


def _check_cuda_dtypes(dtypes: Sequence[str]) -> None:
    """torch takes any precision on any GPU, and computes in another where the GPU has it not."""
    gpu = gpu_of(device_name("cuda"))
    for dtype in dtypes:
        if gpu is not None:
            gpu.flops_per_s(dtype)
        elif dtype in ("tf32", "bf16") and torch.cuda.get_device_capability() < (8, 0):
            raise UsageError(f"{device_name('cuda')} has no {dtype} arithmetic: choose fp32, fp16")


def _require_memory(plan: Plan, device: str) -> None:
    """For values and results, and for what operators and optimizers allocate themselves."""
    wanted, free = 4 * 4 * plan.n_values, _free_bytes(device)
    if wanted > free:
        raise RuntimeError(
            f"calibrating needs {wanted / 2**30:.1f} GiB of memory and {free / 2**30:.1f} GiB are "
            f"free: end what else uses it"
        )


def _free_bytes(device: str) -> float:
    if device == "cuda":
        return torch.cuda.mem_get_info()[0]
    found = re.search(r"MemAvailable:\s*(\d+) kB", _read("/proc/meminfo"))
    return 2**10 * int(found.group(1)) if found else math.inf


def _read(path: str) -> str:
    """What a file of the system says, or nothing where there is none."""
    return Path(path).read_text(encoding="utf-8") if Path(path).exists() else ""


# -- sanity -------------------------------------------------------------------------------------


def check_products(rows: Sequence[Product], device: str) -> list[str]:
    """Raise where a product is faster than it can be; gives what could not be checked."""
    unchecked = []
    for dtype in dict.fromkeys(row.dtype for row in rows):
        peak, more = _arithmetic_peak(device, dtype)
        if peak == math.inf:
            unchecked.append(f"{dtype} products: no peak is known for {device_name(device)}")
        for row in rows:
            if row.dtype == dtype:
                size = f"{row.rows} x {row.inner} x {row.columns}"
                check_rate(f"{dtype} products of {size}", row.best_flops_per_s, peak, **more)
    return unchecked


def check_step(useful_flops: int, step_ms: float, device: str, dtype: str) -> None:
    """Raise where a step is faster than its arithmetic can be.

    Then the clock did not wait for the device, or the work is counted wrong. Pairs that a mask
    hides are left out: a kernel may skip them.
    """
    peak, more = _arithmetic_peak(device, dtype)
    if useful_flops:
        check_rate("arithmetic of the step", useful_flops / (step_ms / 1e3), peak, **more)


def _arithmetic_peak(device: str, dtype: str) -> tuple[float, dict[str, object]]:
    """Most FLOPs per second, and how `check_rate` should take it."""
    if device == "cuda":
        gpu = gpu_of(device_name(device))
        return (math.inf, {}) if gpu is None else (gpu.flops_per_s(dtype), {"margin": gpu.margin})
    max_khz = _read("/sys/devices/system/cpu/cpu0/cpufreq/cpuinfo_max_freq")
    n_cores = min(torch.get_num_threads(), os.cpu_count() or 1)
    peak = cpu_peak_flops_per_s(
        dtype, _read("/proc/cpuinfo"), n_cores, 1e3 * float(max_khz) if max_khz else None
    )
    return peak, {"bound": "bound of its cores"}


def check_passes(rows: Sequence[Pass], device: str) -> list[str]:
    """Raise where memory seems faster than it can be; gives what could not be checked."""
    gpu = gpu_of(device_name(device)) if device == "cuda" else None
    cache_bytes = calls.last_cache_bytes(device)
    for row in rows:
        peak, margin = math.inf, 1.0
        if gpu is not None and row.operator not in microbench.REUSING:
            peak, margin = memory_bound(gpu.bytes_per_s, row.n_bytes, cache_bytes), gpu.margin
        name = f"{row.operator} of {row.n_bytes} bytes"
        check_rate(name, row.best_bytes_per_s, peak, margin=margin)
    if gpu is None:
        return [f"traffic: no peak is known for {device_name(device)}"]
    return [f"{', '.join(microbench.REUSING)}: they read again what the cache holds"]
