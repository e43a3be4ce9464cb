"""How sure it is that a point stands on the front, when its objectives were measured. NumPy only.

Latencies and scores are samples: of runs, and of the examples that a model was tried on. Each
resample draws anew from every point's samples and asks for the front again; the part of resamples
with a point on it is the point's probability.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from lmtime.errors import UsageError, unknown
from lmtime.pareto.dominance import SIGNS, non_dominated
from lmtime.stats import COVERAGE, N_RESAMPLES, bootstrap_medians

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

    def resampled(self, rng: np.random.Generator) -> np.ndarray:
        """(n_points,): the statistic of one resample of each point."""
        found = STATISTICS[self.statistic]
        if self.paired and self.samples:
            n = len(self.samples[0])
            rows = rng.integers(n, size=n)
            return np.array([found(row[rows]) for row in self.samples])
        return np.array([found(row[rng.integers(len(row), size=len(row))]) for row in self.samples])


@dataclass(frozen=True, eq=False)
class Membership:
    """on_front: (n_points,) bool, of all samples; probability: (n_points,), 0 to 1."""

    on_front: np.ndarray
    probability: np.ndarray
    n_resamples: int

    def sentence(self, point: int) -> str:
        """In words, of one point."""
        return f"on the front in {self.probability[point]:.0%} of resamples"


def front_membership(
    objectives: Sequence[Objective], rng: np.random.Generator, *, n_resamples: int = N_RESAMPLES
) -> Membership:
    """How often each point stands on the front. A point with a sample that is NaN never does."""
    if len({len(objective.samples) for objective in objectives}) != 1:
        raise UsageError("every objective needs the samples of the same points: none are missing")
    directions = [objective.direction for objective in objectives]
    on_front = non_dominated(_points([o.values() for o in objectives]), directions)
    hits = np.zeros(len(on_front))
    failed = np.any([[np.isnan(row).any() for row in o.samples] for o in objectives], axis=0)
    for _ in range(n_resamples):
        drawn = _points([o.resampled(rng) for o in objectives])
        drawn[failed] = np.nan  # a resample may happen to leave the NaN out
        hits += non_dominated(drawn, directions)
    return Membership(on_front, hits / n_resamples, n_resamples)


def _points(columns: Sequence[np.ndarray]) -> np.ndarray:
    return np.stack(columns, axis=1)


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
