"""Straight lines and sums of effects through measured points, and how sure they are. NumPy only.

Intervals of a line are Student's t at 95 %: they hold for few points, one a size, where resampling
points would draw the same one again and again. They take the errors about the line for independent
and, but for the weights, equally large; `stats.exponent` is for points that come with intervals.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import cache
from statistics import NormalDist

import numpy as np

from lmtime.errors import UsageError
from lmtime.stats import COVERAGE

_MANY = 1_000  # degrees of freedom from which Student's t is as good as normal


@dataclass(frozen=True, eq=False)
class Line:
    """y = intercept + slope * x, the 95 % intervals of both, and what is left of each point.

    r2: share of the (weighted) variance of y that the line explains; 0 where y is constant.
    residuals: (n,), y less the line, in the unit of y.
    """

    slope: float
    slope_low: float
    slope_high: float
    intercept: float
    intercept_low: float
    intercept_high: float
    r2: float
    residuals: np.ndarray

    def at(self, x: np.ndarray) -> np.ndarray:
        """The line at x, in the shape of x."""
        return self.intercept + self.slope * np.asarray(x)


@dataclass(frozen=True, eq=False)
class Sum:
    """y = intercept + coefficients @ features. coefficients: (n_features,); r2 as a Line's."""

    intercept: float
    coefficients: np.ndarray
    r2: float

    def at(self, features: np.ndarray) -> np.ndarray:
        """(n,) for features (n, n_features)."""
        return self.intercept + np.asarray(features) @ self.coefficients


def fit_line(x: np.ndarray, y: np.ndarray, weights: np.ndarray | None = None) -> Line:
    """Least squares through 3 points or more. x, y, weights: (n,).

    weights: 1 over the variance of each y, up to a common factor; None: all alike.
    """
    xs, ys, ws = _checked(x, y, weights)
    if len(xs) < 3 or np.ptp(xs) == 0:
        raise UsageError(
            f"{len(xs)} points at {len(np.unique(xs))} different x make no line with an interval: "
            f"give 3 points at least, and 2 different x"
        )
    mean_x, mean_y = np.average(xs, weights=ws), np.average(ys, weights=ws)
    spread = ws @ (xs - mean_x) ** 2
    slope = ws @ ((xs - mean_x) * (ys - mean_y)) / spread
    intercept = mean_y - slope * mean_x
    residuals = ys - intercept - slope * xs
    n_free = len(xs) - 2
    error = math.sqrt(ws @ residuals**2 / n_free)
    reach = student_t(n_free) * error / math.sqrt(spread)
    reach_at_0 = student_t(n_free) * error * math.sqrt(1 / ws.sum() + mean_x**2 / spread)
    return Line(
        slope=float(slope),
        slope_low=float(slope - reach),
        slope_high=float(slope + reach),
        intercept=float(intercept),
        intercept_low=float(intercept - reach_at_0),
        intercept_high=float(intercept + reach_at_0),
        r2=_explained(ys, residuals, ws),
        residuals=residuals,
    )


def fit_sum(features: np.ndarray, y: np.ndarray) -> Sum:
    """Least squares on several features, (n, n_features), each of which varies. y: (n,)."""
    columns = np.asarray(features, dtype=np.float64)
    if columns.ndim != 2:
        raise UsageError(f"features of shape {columns.shape} must be one row a point")
    if len(columns) <= columns.shape[1] + 1:
        raise UsageError(f"{len(columns)} points are too few for {columns.shape[1]} features")
    _, ys, ws = _checked(columns[:, 0], y, None)
    mean, scale = columns.mean(axis=0), columns.std(axis=0)
    if not np.isfinite(scale).all() or not (scale > 0).all():
        raise UsageError("every feature must be finite and vary: leave out those that do not")
    found = np.linalg.lstsq((columns - mean) / scale, ys - ys.mean(), rcond=None)[0]
    coefficients = found / scale
    intercept = float(ys.mean() - mean @ coefficients)
    left = ys - intercept - columns @ coefficients
    return Sum(intercept, coefficients, _explained(ys, left, ws))


@cache
def student_t(n_free: int) -> float:
    """The 97.5 % quantile of Student's t with n_free degrees of freedom.

    With t = sqrt(n_free) tan(angle), the density of the angle is cos(angle) ** (n_free - 1).
    """
    if n_free > _MANY:
        return NormalDist().inv_cdf((1 + COVERAGE) / 2)
    angles = np.linspace(0, math.pi / 2, 20_001)
    density = np.cos(angles) ** (n_free - 1)
    below = np.concatenate([[0.0], np.cumsum((density[1:] + density[:-1]) / 2)])
    return math.sqrt(n_free) * math.tan(np.interp(COVERAGE, below / below[-1], angles))


def _checked(
    x: np.ndarray, y: np.ndarray, weights: np.ndarray | None
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    xs, ys = np.asarray(x, dtype=np.float64), np.asarray(y, dtype=np.float64)
    ws = np.ones_like(ys) if weights is None else np.asarray(weights, dtype=np.float64)
    if xs.ndim != 1 or xs.shape != ys.shape or ys.shape != ws.shape:
        raise UsageError(
            f"x of shape {xs.shape}, y {ys.shape} and weights {ws.shape}: give one each a point"
        )
    if not all(np.isfinite(values).all() for values in (xs, ys, ws)) or (ws <= 0).any():
        raise UsageError("x, y and weights must be finite, and weights above 0: some are not")
    return xs, ys, ws


def _explained(y: np.ndarray, residuals: np.ndarray, weights: np.ndarray) -> float:
    around = y - np.average(y, weights=weights)
    total = weights @ around**2
    return float(1 - weights @ residuals**2 / total) if total > 0 else 0.0
