"""Steps side by side: each once a round, in a new order every round, so that drift is shared."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np

from lmtime.timing.clock import Clock
from lmtime.timing.timer import Step, time_once

SLOW_MS = 1_000.0  # a step above it is called once to warm it up, others twice
HOT_MS = 50.0  # below it weights may stay in the cache from call to call


def interleaved(
    steps: Sequence[Step],
    clock: Clock,
    n_rounds: int,
    rng: np.random.Generator,
    say: Callable[[str], None] = lambda text: None,
) -> np.ndarray:
    """Every sample in ms, (n_rounds, n_steps), of steps that were warmed up.

    A step below HOT_MS is called once untimed before each sample: in use it follows itself, here
    another whose weights fill the cache and whose threads still spin.
    """
    say("warming up")
    once = [time_once(step, clock) for step in steps]
    for i, ms in enumerate(once):
        if ms <= SLOW_MS:
            once[i] = time_once(steps[i], clock)
    samples = np.empty((n_rounds, len(steps)))
    for n, row in enumerate(samples, 1):
        for i in rng.permutation(len(steps)):
            if once[i] < HOT_MS:
                steps[i]()
            row[i] = time_once(steps[i], clock)
        say(f"round {n} of {n_rounds}")
    return samples
