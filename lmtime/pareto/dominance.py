"""Which points no other point beats: the front, the ranks behind it, and limits. NumPy only.

A point dominates another where it is at least as good in every objective and better in one.
Equal points do not dominate each other. Infinity is a value as any other; a point with a NaN has
failed: it dominates nothing and stands on no front.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from lmtime.errors import UsageError, unknown

SIGNS = {"min": 1.0, "max": -1.0}
FAILED = -1  # rank of a point with a NaN


def to_costs(points: np.ndarray, directions: Sequence[str]) -> np.ndarray:
    """Points (n_points, n_objectives) in float64, every objective to be minimised.

    directions: "min" or "max" for each objective. No points may be an empty list.
    """
    for direction in directions:
        if direction not in SIGNS:
            raise unknown("direction", direction, list(SIGNS))
    values = np.asarray(points, dtype=np.float64)
    if values.size == 0:
        values = values.reshape(0, len(directions))
    if values.ndim != 2 or values.shape[1] != len(directions) or not len(directions):
        raise UsageError(
            f"points of shape {values.shape} do not fit {len(directions)} directions: "
            f"give one row a point and one direction an objective"
        )
    return values * np.array([SIGNS[direction] for direction in directions])


def non_dominated(points: np.ndarray, directions: Sequence[str]) -> np.ndarray:
    """(n_points,) bool: True where no other point dominates, False for failed points."""
    costs = to_costs(points, directions)
    return _front(costs, ~np.isnan(costs).any(axis=1))


def unique_front(points: np.ndarray, directions: Sequence[str]) -> np.ndarray:
    """(n_distinct, n_objectives): the points of the front, equal ones once, as first met."""
    front = np.asarray(points, dtype=np.float64)[non_dominated(points, directions)]
    if not len(front):
        return front
    _, first = np.unique(front, axis=0, return_index=True)
    return front[np.sort(first)]


def ranks(points: np.ndarray, directions: Sequence[str]) -> np.ndarray:
    """(n_points,) int: 0 on the front, 1 on the front without those, and so on; FAILED for NaN."""
    costs = to_costs(points, directions)
    left = ~np.isnan(costs).any(axis=1)
    found = np.full(len(costs), FAILED)
    rank = 0
    while left.any():
        front = _front(costs, left)
        found[front] = rank
        left &= ~front
        rank += 1
    return found


def _front(costs: np.ndarray, among: np.ndarray) -> np.ndarray:
    """Mask of those `among` the rows, (n_points,) bool, that none of those dominates.

    What dominates a row comes before it in lexicographic order, and is dominated by the front
    itself, so that each row need only be compared with the front as far as it is known.
    """
    order = np.lexsort(costs.T[::-1])
    on_front = np.zeros(len(costs), dtype=bool)
    front = np.empty_like(costs)
    n = 0
    for i in order[among[order]]:
        no_worse = (front[:n] <= costs[i]).all(axis=1)
        if not (no_worse & (front[:n] < costs[i]).any(axis=1)).any():
            front[n] = costs[i]
            n += 1
            on_front[i] = True
    return on_front


@dataclass(frozen=True)
class Limit:
    """Largest value, or least, that one objective (its column) may have, in its own unit."""

    objective: int
    max: float = math.inf
    min: float = -math.inf

    def __post_init__(self) -> None:
        if not self.min <= self.max:
            raise UsageError(
                f"the limit of objective {self.objective} from {self.min:g} to {self.max:g} "
                f"leaves nothing: min must not be above max"
            )

    def excess(self, points: np.ndarray) -> np.ndarray:
        """(n_points,): how far beyond it each is, relative to a bound that is not 0."""
        values = points[:, self.objective]
        with np.errstate(invalid="ignore"):  # an infinite value within an infinite bound
            over = np.where(values > self.max, values - self.max, 0.0) / (abs(self.max) or 1.0)
            under = np.where(values < self.min, self.min - values, 0.0) / (abs(self.min) or 1.0)
        return np.where(np.isnan(values), np.nan, over + under)


@dataclass(frozen=True, eq=False)
class Front:
    """The front of the points that keep every limit.

    on_front, failed: (n_points,) bool. feasible: whether any point keeps the limits; if none
    does, least_violation holds the points that exceed them least, and is empty otherwise.
    """

    on_front: np.ndarray
    failed: np.ndarray
    feasible: bool
    least_violation: tuple[int, ...]


def constrained_front(
    points: np.ndarray, directions: Sequence[str], limits: Sequence[Limit]
) -> Front:
    """The front among the points within the limits; the excesses over several are added."""
    costs = to_costs(points, directions)
    values = np.asarray(points, dtype=np.float64).reshape(costs.shape)
    for limit in limits:
        if not 0 <= limit.objective < costs.shape[1]:
            raise UsageError(
                f"there is no objective {limit.objective} to limit: "
                f"choose one from 0 to {costs.shape[1] - 1}"
            )
    failed = np.isnan(costs).any(axis=1)
    violation = sum((limit.excess(values) for limit in limits), np.zeros(len(costs)))
    within = ~failed & (violation == 0)
    feasible = bool(within.any())
    closest: tuple[int, ...] = ()
    if not feasible and not failed.all():
        least = violation[~failed].min()
        closest = tuple(int(i) for i in np.flatnonzero(~failed & (violation == least)))
    return Front(_front(costs, within), failed, feasible, closest)
