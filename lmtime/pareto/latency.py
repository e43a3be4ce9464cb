"""What two latencies say together: how much faster, how many a second, predicted as measured?

Standard library only.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from lmtime.errors import UsageError


@dataclass(frozen=True)
class Speedup:
    """Of the same work before and after, in ms. 59 % faster is 37 % less time: two figures."""

    before_ms: float
    after_ms: float

    def __post_init__(self) -> None:
        if not (self.before_ms > 0 and self.after_ms > 0):
            raise UsageError(f"latencies {self.before_ms} and {self.after_ms} ms must be above 0")

    @property
    def ratio(self) -> float:
        """How many times as fast."""
        return self.before_ms / self.after_ms

    @property
    def faster_percent(self) -> float:
        """How much more is done in the same time."""
        return 100 * (self.ratio - 1)

    @property
    def time_saved_percent(self) -> float:
        """How much less time the same takes."""
        return 100 * (1 - self.after_ms / self.before_ms)


def throughput_per_s(batch_size: int, latency_ms: float) -> float:
    """Sequences a second; a latency is that of a whole batch."""
    return 1000 * batch_size / latency_ms


@dataclass(frozen=True)
class Remeasured:
    """One sub-network that a search chose by its prediction, measured since. All in ms."""

    predicted_ms: float
    measured_ms: float
    max_latency_ms: float = math.inf

    @property
    def accepted(self) -> bool:
        """Whether the measurement keeps the limit: a search picks where predictions err low."""
        return self.measured_ms <= self.max_latency_ms

    @property
    def relative_error(self) -> float:
        """Predicted over measured, less 1."""
        return self.predicted_ms / self.measured_ms - 1

    def sentence(self) -> str:
        """Both numbers, in words."""
        limit = f", above {self.max_latency_ms:g} ms" if not self.accepted else ""
        return f"predicted {self.predicted_ms:.4g} ms, measured {self.measured_ms:.4g} ms{limit}"
