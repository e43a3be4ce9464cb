"""What else happened to the device while it was measured, and whether that spoils the result."""

from __future__ import annotations

import os
import resource
import subprocess
import time
from dataclasses import dataclass
from pathlib import Path

import torch

CLOCK_MOVED = 0.05  # of a GPU's clock
OTHERS_BUSY = 0.5  # CPUs taken by other work, for each thread that had no free CPU to go to
THROTTLED = 0xE8  # of NVML's reasons: slowed by hardware, heat or the power brake
_QUERY = "clocks.sm,temperature.gpu,clocks_throttle_reasons.active"


@dataclass(frozen=True)
class State:
    """A moment of the device: counters that only grow, and a GPU's clock. None is unknown."""

    elapsed_s: float
    own_cpu_s: float  # of this process, all threads
    all_cpu_s: float | None  # of every process, and what a hypervisor took
    sm_clock_mhz: float | None = None
    temperature_c: float | None = None
    throttle_reasons: int | None = None
    alloc_retries: int | None = None


def state(device: str) -> State:
    """The state of now; of a GPU it asks `nvidia-smi` and torch's allocator."""
    used = resource.getrusage(resource.RUSAGE_SELF)
    seconds = time.monotonic(), used.ru_utime + used.ru_stime, _all_cpu_s()
    if device != "cuda":
        return State(*seconds)
    retries = torch.cuda.memory_stats().get("num_alloc_retries", 0)
    return State(*seconds, *_gpu_state(), retries)


def _all_cpu_s() -> float | None:
    """CPU time of the whole machine, from the first line of /proc/stat."""
    path = Path("/proc/stat")
    if not path.exists():
        return None
    user, nice, system, _idle, _wait, irq, soft, steal, *_ = map(
        int, path.read_text(encoding="utf-8").split("\n")[0].split()[1:]
    )
    return (user + nice + system + irq + soft + steal) / os.sysconf("SC_CLK_TCK")


def _gpu_state() -> tuple[float | None, float | None, int | None]:
    command = ["nvidia-smi", f"--query-gpu={_QUERY}", "--format=csv,noheader,nounits"]
    command += [f"--id={torch.cuda.current_device()}"]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=10, check=True)
        return parse_gpu_state(done.stdout)
    except (OSError, subprocess.SubprocessError):
        return None, None, None


def parse_gpu_state(line: str) -> tuple[float | None, float | None, int | None]:
    """Clock in MHz, temperature in degrees, reasons; None where the driver says [N/A]."""

    def number(text: str, base: int | None = None) -> float | int | None:
        try:
            return float(text) if base is None else int(text, base)
        except ValueError:
            return None

    clock, temperature, reasons = (part.strip() for part in line.split("\n")[0].split(","))
    return number(clock), number(temperature), number(reasons, 16)


def busy_elsewhere(before: State, after: State) -> float | None:
    """CPUs that other work kept busy between the two, on average."""
    if before.all_cpu_s is None or after.all_cpu_s is None:
        return None
    own = after.own_cpu_s - before.own_cpu_s
    others = after.all_cpu_s - before.all_cpu_s - own
    return max(0.0, others / max(after.elapsed_s - before.elapsed_s, 1e-9))


def verdict(before: State, after: State, *, n_threads: int | None, n_cpus: int | None) -> str:
    """Empty, or why what was measured between the two is no result.

    n_threads: of a measurement on the CPU; None on a GPU.
    """
    others = busy_elsewhere(before, after)
    if others is not None and n_threads is not None and n_cpus is not None:
        free = max(0, n_cpus - n_threads)
        if others > free + OTHERS_BUSY * n_threads:
            return f"other work kept {others:.1f} of the {n_cpus} CPUs busy"
    if before.sm_clock_mhz and after.sm_clock_mhz:
        moved = after.sm_clock_mhz / before.sm_clock_mhz - 1
        if abs(moved) > CLOCK_MOVED:
            return f"the clock of the GPU moved {100 * moved:+.0f} %"
    if (after.throttle_reasons or 0) & THROTTLED:
        return f"the GPU was throttled (reasons {after.throttle_reasons:#x})"
    if before.alloc_retries != after.alloc_retries:
        return "the allocator of the GPU had to free memory and try again"
    return ""


def facts(before: State, after: State) -> dict[str, float | int | None]:
    """What is kept with a measurement."""
    return {
        "cpus_busy_elsewhere": busy_elsewhere(before, after),
        "sm_clock_mhz_before": before.sm_clock_mhz,
        "sm_clock_mhz": after.sm_clock_mhz,
        "temperature_c": after.temperature_c,
        "throttle_reasons": after.throttle_reasons,
    }
