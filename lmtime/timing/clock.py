"""The clock: a mark is a reading that costs little now and is read later, all at once.

A mark never waits for the device. On a GPU it is an event in the stream the work runs on; on a
CPU it is a nanosecond count. Nothing else times a step.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from itertools import pairwise
from typing import Protocol

import numpy as np
import torch

from lmtime.errors import UsageError


class Clock(Protocol):
    """What a timer needs: to mark now, and to read many marks afterwards."""

    def mark(self) -> object:
        """A point in the stream of work; never waits."""

    def intervals_ms(self, marks: Sequence[object]) -> np.ndarray:
        """Time between successive marks in ms, (len(marks) - 1,); waits for the last of them."""

    def synchronize(self) -> None:
        """Wait until the device has done all that was asked of it."""


class WallClock:
    """The host's monotonic clock, for work that is done when the call returns."""

    def mark(self) -> int:
        return time.perf_counter_ns()

    def intervals_ms(self, marks: Sequence[int]) -> np.ndarray:
        return np.diff(np.asarray(marks, dtype=np.int64)) / 1e6

    def synchronize(self) -> None:
        """Nothing is pending on a CPU."""


class CudaClock:
    """CUDA events, recorded in the current stream of the thread that marks.

    An event resolves about half a microsecond: single spans below 10 us mean nothing.
    """

    def __init__(self, device: torch.device | str = "cuda") -> None:
        if not torch.cuda.is_available():
            raise UsageError("device cuda was asked for and torch sees none: use device cpu")
        self._device = torch.device(device)
        self._spare: list[torch.cuda.Event] = []

    def mark(self) -> torch.cuda.Event:
        event = self._spare.pop() if self._spare else torch.cuda.Event(enable_timing=True)
        event.record()
        return event

    def intervals_ms(self, marks: Sequence[torch.cuda.Event]) -> np.ndarray:
        self.synchronize()
        spans = [a.elapsed_time(b) for a, b in pairwise(marks)]
        self._spare.extend(marks)
        return np.asarray(spans)

    def synchronize(self) -> None:
        torch.cuda.synchronize(self._device)


CLOCKS = {"cpu": WallClock, "cuda": CudaClock}


def clock_for(device: str) -> Clock:
    """The clock of a kind of device: "cpu" or "cuda"."""
    return CLOCKS[torch.device(device).type]()
