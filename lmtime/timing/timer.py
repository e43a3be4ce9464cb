"""How many steps to time: warm up until stable, then sample until the spread is small."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from lmtime.stats import MIN_PAIRS, is_stable
from lmtime.timing.clock import Clock

Step = Callable[[], object]


@dataclass(frozen=True)
class StopRule:
    """Sample at least `n_min` times, then until IQR/median <= `max_spread`, `n_max` or `max_s`.

    A slow step is sampled MIN_PAIRS times however long that takes: fewer give no interval. gated:
    whether a quality gate looks at the samples, which only the smoke tests of labs do without.
    """

    n_min: int = 20
    n_max: int = 200
    max_spread: float = 0.05
    max_s: float = 60.0
    gated: bool = True

    def is_over(self, samples_ms: list[float], elapsed_s: float) -> bool:
        """Whether enough has been seen, or the budget is spent."""
        n = len(samples_ms)
        if n < max(1, min(MIN_PAIRS, self.n_max)):
            return False
        if n >= self.n_max or elapsed_s >= self.max_s:
            return True
        return n >= self.n_min and spread(samples_ms) <= self.max_spread


def spread(samples_ms: list[float] | np.ndarray) -> float:
    """Interquartile range over median."""
    p25, median, p75 = np.quantile(samples_ms, (0.25, 0.5, 0.75))
    return float((p75 - p25) / median)


def time_once(step: Step, clock: Clock) -> float:
    """One call in ms, from an idle device to an idle device."""
    clock.synchronize()
    start = clock.mark()
    step()
    return float(clock.intervals_ms([start, clock.mark()])[0])


def warm_up(step: Step, clock: Clock, *, n_max: int = 50, max_s: float = 20.0) -> tuple[int, bool]:
    """Call the step until two windows of five agree within 2 %; returns calls made and success.

    First calls pay for handles, autotuning, allocator growth and cold caches. It gives up after
    `n_max` calls or `max_s`, but never before three calls.
    """
    samples: list[float] = []
    start = time.monotonic()
    while len(samples) < 3 or (len(samples) < n_max and time.monotonic() - start < max_s):
        samples.append(time_once(step, clock))
        if is_stable(np.asarray(samples)):
            return len(samples), True
    return len(samples), False


def time_step(step: Step, clock: Clock, rule: StopRule | None = None) -> np.ndarray:
    """Every sample of a warmed-up step in ms, (n,): it stops when steady, or when told to."""
    rule = rule or StopRule()
    samples: list[float] = []
    start = time.monotonic()
    while not rule.is_over(samples, time.monotonic() - start):
        samples.append(time_once(step, clock))
    return np.asarray(samples)
