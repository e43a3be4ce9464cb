"""Steps side by side: each once a round, in a new order every round, so that drift is shared."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

import numpy as np

from lmtime.timing.clock import Clock
from lmtime.timing.timer import Step, time_once

SLOW_MS = 1_000.0  # a step above it is called once to warm it up, others twice
HOT_MS = 50.0  # below it weights may stay in the cache from call to call


MIN_OTHERS = 4  # steps that must tell how slow a round was


def interleaved(
    steps: Sequence[Step],
    kinds: Sequence[str],
    clock: Clock,
    n_rounds: int,
    rng: np.random.Generator,
    say: Callable[[str], None] = lambda text: None,
) -> np.ndarray:
    """Every sample in ms, (n_rounds, n_steps), of steps that were warmed up.

    kinds: the engine of each step. In a round the steps of an engine stand together, behind an
    untimed call, until when the threads of another may spin. A step below HOT_MS is called once
    untimed before each sample: in use it follows itself, here another whose weights fill the cache.
    """
    say("warming up")
    once = [time_once(step, clock) for step in steps]
    for i, ms in enumerate(once):
        if ms <= SLOW_MS:
            once[i] = time_once(steps[i], clock)
    samples = np.empty((n_rounds, len(steps)))
    for n, row in enumerate(samples, 1):
        for i, is_first in _order(kinds, rng):
            if once[i] < HOT_MS or is_first:
                steps[i]()
            row[i] = time_once(steps[i], clock)
        say(f"round {n} of {n_rounds}")
    return samples


def _order(kinds: Sequence[str], rng: np.random.Generator) -> Iterator[tuple[int, bool]]:
    """Numbers of the steps for one round, and whether another kind came before."""
    names = list(dict.fromkeys(kinds))
    for k in rng.permutation(len(names)):
        own = np.flatnonzero([kind == names[k] for kind in kinds])
        for place, i in enumerate(rng.permutation(own)):
            yield int(i), place == 0 and len(names) > 1


def paces(samples_ms: np.ndarray) -> np.ndarray:
    """How slow the device was when each sample was taken, (n_rounds, n_steps), 1 in the median.

    On a shared machine all steps of some rounds are slow together. What the other steps of a round
    took over their own medians, in the median, is its pace: no step speaks for itself. A sample
    divided by it is what the step takes at the usual pace. Ones where the others are too few.
    """
    n_steps = samples_ms.shape[1]
    if n_steps <= MIN_OTHERS:
        return np.ones_like(samples_ms)
    relative = samples_ms / np.median(samples_ms, axis=0)
    others = [np.delete(relative, i, axis=1) for i in range(n_steps)]
    found = np.stack([np.median(columns, axis=1) for columns in others], axis=1)
    return found / np.median(found, axis=0)
