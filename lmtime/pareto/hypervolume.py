"""The volume between points and a reference point: how much a front covers. NumPy only.

The reference is always given, one for all fronts that are compared: taken from the points
themselves, it would reward the search that met the worst one.
"""

from __future__ import annotations

import math
import warnings
from collections.abc import Sequence

import numpy as np

from lmtime.errors import UsageError
from lmtime.pareto.dominance import non_dominated, to_costs


def hypervolume(points: np.ndarray, reference: Sequence[float], directions: Sequence[str]) -> float:
    """Volume of all that some point dominates and that dominates the reference.

    points: (n_points, n_objectives). reference: (n_objectives,), finite. A point that is not
    better than the reference in every objective adds nothing, nor does one with a NaN; if there
    are points and none adds anything, there is a warning. A point that is infinitely good makes
    it infinite. Exact, by slices in two dimensions and WFG (While et al. 2012) in more, whose time
    grows exponentially with the objectives: for tens of points.
    """
    costs, worst = to_costs(points, directions), to_costs([reference], directions)[0]
    if not np.isfinite(worst).all():
        raise UsageError(f"reference {list(reference)} must be finite in every objective")
    inside = costs[(costs < worst).all(axis=1)]  # never true of a NaN
    if not len(inside):
        if len(costs):
            warnings.warn(
                f"no point is better than the reference {list(reference)} in every objective: "
                f"the hypervolume is 0",
                stacklevel=2,
            )
        return 0.0
    if np.isinf(inside).any():
        return math.inf
    return _volume(_distinct_front(inside), worst)


def _distinct_front(costs: np.ndarray) -> np.ndarray:
    """Rows that no other dominates, sorted by the first objective, equal ones once."""
    rows = np.unique(costs, axis=0)
    return rows[non_dominated(rows, ["min"] * rows.shape[1])]


def _volume(front: np.ndarray, worst: np.ndarray) -> float:
    """Of a front without equal rows, (n_points, n_objectives) costs, sorted by the first."""
    if front.shape[1] == 1:
        return float(worst[0] - front[0, 0])
    if front.shape[1] == 2:  # the second objective falls: one slice a point
        widths = worst[0] - front[:, 0]
        heights = np.concatenate([worst[1:], front[:-1, 1]]) - front[:, 1]
        return float(widths @ heights)
    volume = 0.0
    for i, point in enumerate(front):
        volume += float(np.prod(worst - point)) - _shared(point, front[i + 1 :], worst)
    return volume


def _shared(point: np.ndarray, others: np.ndarray, worst: np.ndarray) -> float:
    """Volume that a point dominates and at least one of the others does too."""
    if not len(others):
        return 0.0
    return _volume(_distinct_front(np.maximum(others, point)), worst)
