"""Time at best: each operator takes as long as its arithmetic or its traffic, or both in turn.

The band runs from the slower of the two (they overlap fully) to their sum (they do not), so its
ends are at most a factor of two apart. Launches, waiting and inefficiency are not in it.
Written once: numbers by default, Altair parameters with `maximum=alt.expr.max`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from lmtime.cost.operators import Cost


@dataclass(frozen=True)
class Band:
    """Least and most time by the roofline, in ms."""

    low: Any
    high: Any

    @property
    def middle(self) -> Any:
        """The point given where one number is wanted."""
        return (self.low + self.high) / 2

    def __add__(self, other: Band) -> Band:
        return Band(self.low + other.low, self.high + other.high)


def band_ms(
    operators: Iterable[Cost],
    flops_per_s: Any,
    bytes_per_s: Any,
    *,
    maximum: Callable[[Any, Any], Any] = max,
) -> Band:
    """The band of operators that run one after another.

    flops_per_s, bytes_per_s: dense peak rates of the device, published or measured.
    """
    operators = list(operators)
    products = [op for op in operators if not op.only_moves]
    moved_s = sum(op.bytes for op in operators if op.only_moves) / bytes_per_s
    pairs = [(op.flops / flops_per_s, op.bytes / bytes_per_s) for op in products]
    low = sum((maximum(a, m) for a, m in pairs), moved_s)
    high = sum((a + m for a, m in pairs), moved_s)
    return Band(1e3 * low, 1e3 * high)


# The honest band where nothing was measured. All published times of layers in data/published that
# are not computed chunk by chunk are below this multiple of the roofline's upper end; passes that
# follow each other over the same small arrays find some of them in the caches; and a host takes
# this long for one operator, an estimate for eager execution from Python.
SLOWER, SPARED = 2.06, 0.5
HOST_S = {"cuda": 10e-6, "cpu": 50e-6}


def wide_band_ms(
    operators: Iterable[Cost], flops_per_s: float, bytes_per_s: float, *, device: str = "cuda"
) -> Band:
    """What eager execution may take on a device of these peaks that nobody has calibrated.

    From the roofline at best, with half of the passes' traffic spared by caches, to SLOWER times
    its upper end and a host that launches every operator in turn. device: "cuda" or "cpu".
    """
    operators = list(operators)
    whole = band_ms(operators, flops_per_s, bytes_per_s)
    passes = band_ms((op for op in operators if op.only_moves), flops_per_s, bytes_per_s)
    launched_ms = 1e3 * HOST_S[device] * sum(op.launches for op in operators)
    return Band(whole.low - SPARED * passes.low, SLOWER * whole.high + launched_ms)


def shares(bands: Mapping[Any, Band]) -> dict[Any, tuple[float, float, float]]:
    """{part: (share, lowest, highest)}: of the middles, and of whichever end gives less or more."""
    totals = [sum(getattr(b, end) for b in bands.values()) for end in ("middle", "low", "high")]
    found = {}
    for part, band in bands.items():
        middle, low, high = (
            getattr(band, end) / total
            for end, total in zip(("middle", "low", "high"), totals, strict=True)
        )
        found[part] = (middle, min(low, middle, high), max(low, middle, high))
    return found
