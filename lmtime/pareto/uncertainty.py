"""How sure it is that a point stands on the front, when its objectives were measured. NumPy only.

Latencies and scores are samples: of runs, and of the examples that a model was tried on. Each
resample draws anew from every point's samples and asks for the front again; the part of resamples
with a point on it is the point's probability.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Protocol

import numpy as np

from lmtime.errors import UsageError, unknown
from lmtime.pareto.dominance import SIGNS, Limit, constrained_front
from lmtime.stats import COVERAGE, N_RESAMPLES, block_length, bootstrap_medians, resampled_rows

_CHUNK_VALUES = 2**21  # comparisons held at once
STATISTICS: dict[str, Callable[..., np.ndarray]] = {"median": np.median, "mean": np.mean}


@dataclass(frozen=True, eq=False)
class Objective:
    """Samples of one objective for every point.

    samples: one (n_samples,) a point; a single sample is a value that is known. statistic: median
    or mean. paired: sample i belongs to the same example in every point, and so points are
    resampled together: two models tried on the same examples err on the same ones.
    """

    direction: str
    samples: Sequence[np.ndarray]
    statistic: str = "median"
    paired: bool = False

    def __post_init__(self) -> None:
        if self.direction not in SIGNS:
            raise unknown("direction", self.direction, list(SIGNS))
        if self.statistic not in STATISTICS:
            raise unknown("statistic", self.statistic, list(STATISTICS))
        rows = [np.asarray(row, dtype=np.float64) for row in self.samples]
        if any(row.ndim != 1 or not len(row) for row in rows):
            raise UsageError("samples of a point must be a list of one number at least")
        if self.paired and len({len(row) for row in rows}) > 1:
            raise UsageError(
                f"paired samples must be as many for every point, not "
                f"{', '.join(str(len(row)) for row in rows)}"
            )
        object.__setattr__(self, "samples", rows)

    def values(self) -> np.ndarray:
        """(n_points,): the statistic of all samples."""
        return np.array([STATISTICS[self.statistic](row) for row in self.samples])

    def draws(self, n_resamples: int, rng: np.random.Generator) -> np.ndarray:
        """(n_resamples, n_points): the statistic of resamples of each point."""
        if not self.samples:
            return np.empty((n_resamples, 0))
        if self.paired:
            return self._drawn(np.stack(self.samples, axis=1), n_resamples, rng)
        columns = [self._drawn(row[:, None], n_resamples, rng) for row in self.samples]
        return np.concatenate(columns, axis=1)

    def _drawn(self, samples: np.ndarray, n_resamples: int, rng: np.random.Generator) -> np.ndarray:
        """(n_resamples, n_columns) of whole rows drawn anew. samples: (n_samples, n_columns).

        The mean needs only how often each distinct row is drawn: quick where few are distinct.
        """
        if self.statistic == "median":
            length = 1 if self.paired else block_length(samples[:, 0])
            return bootstrap_medians(samples, length, n_resamples, rng)
        n = len(samples)
        if not np.isfinite(samples).all():
            return samples[resampled_rows(n, 1, n_resamples, rng)].mean(axis=1)
        axis = 0 if samples.shape[1] > 1 else None  # numbers sort many times faster than rows
        rows, counts = np.unique(samples, axis=axis, return_counts=True)
        return rng.multinomial(n, counts / n, size=n_resamples) @ rows.reshape(len(counts), -1) / n


class Resampled(Protocol):
    """What a front is made of: `Objective`, or `outcomes.Outcomes`."""

    direction: str

    def values(self) -> np.ndarray:
        """(n_points,), of all samples."""

    def draws(self, n_resamples: int, rng: np.random.Generator) -> np.ndarray:
        """(n_resamples, n_points)."""


@dataclass(frozen=True, eq=False)
class Membership:
    """on_front: (n_points,) bool, of all samples; probability: (n_points,), 0 to 1.

    low, high: (n_points, n_objectives), the middle 95 % of the resamples.
    """

    on_front: np.ndarray
    probability: np.ndarray
    low: np.ndarray
    high: np.ndarray
    n_resamples: int

    def sentence(self, point: int) -> str:
        """In words, of one point."""
        return f"on the front in {self.probability[point]:.0%} of resamples"


def front_membership(
    objectives: Sequence[Resampled],
    rng: np.random.Generator,
    *,
    limits: Sequence[Limit] = (),
    n_resamples: int = N_RESAMPLES,
) -> Membership:
    """How often each point stands on the front of those that keep the limits.

    A point with a sample that is NaN never does.
    """
    columns = [objective.values() for objective in objectives]
    if len({len(column) for column in columns}) != 1:
        raise UsageError("every objective needs the samples of the same points: none are missing")
    directions = [objective.direction for objective in objectives]
    points = np.stack(columns, axis=1)
    on_front = constrained_front(points, directions, limits).on_front
    drawn = np.stack([o.draws(n_resamples, rng) for o in objectives], axis=2)
    drawn[:, np.isnan(points).any(axis=1)] = np.nan  # a resample may happen to leave the NaN out
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", RuntimeWarning)  # NaN, and between infinities
        low, high = np.quantile(drawn, ((1 - COVERAGE) / 2, (1 + COVERAGE) / 2), axis=0)
    flat = drawn.reshape(-1, len(objectives))
    for limit in limits:
        flat[~(limit.excess(flat) <= 0)] = np.nan
    hits = _hits(flat.reshape(drawn.shape) * [SIGNS[direction] for direction in directions])
    return Membership(on_front, hits / n_resamples, low, high, n_resamples)


def _hits(costs: np.ndarray) -> np.ndarray:
    """(n_points,): in how many of (n_resamples, n_points, n_objectives) each is undominated."""
    n_resamples, n_points, _ = costs.shape
    hits = np.zeros(n_points)
    chunk = max(1, _CHUNK_VALUES // max(1, costs[0].size * n_points))
    for start in range(0, n_resamples, chunk):
        part = costs[start : start + chunk]
        by, of = part[:, :, None], part[:, None, :]
        dominated = ((by <= of).all(axis=3) & (by < of).any(axis=3)).any(axis=1)
        hits += (~dominated & ~np.isnan(part).any(axis=2)).sum(axis=0)
    return hits


def indifferent(
    a: np.ndarray,
    b: np.ndarray,
    rng: np.random.Generator,
    *,
    tolerance: float = 0.0,
    n_resamples: int = N_RESAMPLES,
) -> bool:
    """Whether noise alone could decide which of two samples, (n,) and (m,), has the lower median.

    So it is where the 95 % bootstrap interval of the difference of the medians comes within
    `tolerance` of 0, in the unit of the samples.
    """
    medians = (
        bootstrap_medians(np.asarray(x, dtype=np.float64)[:, None], 1, n_resamples, rng)[:, 0]
        for x in (a, b)
    )
    difference = next(medians) - next(medians)
    low, high = np.quantile(difference, ((1 - COVERAGE) / 2, (1 + COVERAGE) / 2))
    return bool(low <= tolerance and high >= -tolerance)
