"""Scores of sub-networks that were tried on the same examples, and their resamples. NumPy only.

To a resample most examples are alike: the same label, the same answer of each sub-network. How
often each such pattern is drawn is one multinomial draw, however many examples there are.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from lmtime.errors import UsageError, unknown


def _accuracy(tn: np.ndarray, fp: np.ndarray, fn: np.ndarray, tp: np.ndarray) -> np.ndarray:
    return (tn + tp) / (tn + fp + fn + tp)


def _f1(tn: np.ndarray, fp: np.ndarray, fn: np.ndarray, tp: np.ndarray) -> np.ndarray:
    return _ratio(2 * tp, 2 * tp + fp + fn)


def _matthews(tn: np.ndarray, fp: np.ndarray, fn: np.ndarray, tp: np.ndarray) -> np.ndarray:
    return _ratio(tp * tn - fp * fn, np.sqrt((tp + fp) * (tp + fn) * (tn + fp) * (tn + fn)))


def _ratio(part: np.ndarray, whole: np.ndarray) -> np.ndarray:
    return np.divide(part, whole, out=np.zeros(np.shape(part)), where=whole > 0)


# `lmtime.metrics` from how often each label met each answer: 0 and 0, 0 and 1, 1 and 0, 1 and 1.
COUNTED: dict[str, Callable[..., np.ndarray]] = {
    "accuracy": _accuracy,
    "f1": _f1,
    "matthews": _matthews,
    "accuracy_f1": lambda *counts: (_accuracy(*counts) + _f1(*counts)) / 2,
}


@dataclass(frozen=True, eq=False)
class Outcomes:
    """An objective to maximise: a metric in points for each sub-network, the mean of its seeds.

    labels: (n_examples,). predicted: (n_points, n_seeds, n_examples). An example is drawn for all
    points and seeds together.
    """

    metric: str
    labels: np.ndarray
    predicted: np.ndarray

    direction = "max"

    def __post_init__(self) -> None:
        labels, predicted = np.asarray(self.labels), np.asarray(self.predicted)
        if self.metric not in COUNTED:
            raise unknown("metric", self.metric, list(COUNTED))
        if predicted.ndim != 3 or predicted.shape[2] != len(labels) or not predicted.size:
            raise UsageError(
                f"predictions of shape {predicted.shape} do not fit {len(labels)} labels: give "
                f"them as points, seeds, examples"
            )
        if self.metric != "accuracy" and not {*np.unique(labels), *np.unique(predicted)} <= {0, 1}:
            raise UsageError(f"{self.metric} is of two classes, 0 and 1: choose accuracy")
        object.__setattr__(self, "labels", labels)
        object.__setattr__(self, "predicted", predicted)

    def values(self) -> np.ndarray:
        """(n_points,): the score over all examples."""
        patterns, counts = self._patterns()
        return self._scores(patterns, counts[None].astype(np.float64))[0]

    def draws(self, n_resamples: int, rng: np.random.Generator) -> np.ndarray:
        """(n_resamples, n_points): the score over examples drawn anew."""
        patterns, counts = self._patterns()
        n = int(counts.sum())
        drawn = rng.multinomial(n, counts / n, size=n_resamples)
        return self._scores(patterns, drawn.astype(np.float64))

    def _patterns(self) -> tuple[np.ndarray, np.ndarray]:
        """(n_patterns, points x seeds) of 2 x label + answer, and how many examples have each."""
        if self.metric == "accuracy":  # of any number of classes
            cells = np.where(self.predicted == self.labels, 3, 1)
        else:
            cells = 2 * self.labels + self.predicted
        rows = cells.reshape(-1, len(self.labels)).T.astype(np.int8)
        return np.unique(rows, axis=0, return_counts=True)

    def _scores(self, patterns: np.ndarray, weights: np.ndarray) -> np.ndarray:
        """(n_resamples, n_points). weights: draws of each pattern, (n_resamples, n_patterns)."""
        counts = [weights @ (patterns == cell).astype(np.float64) for cell in range(4)]
        scores = 100 * COUNTED[self.metric](*counts)
        return scores.reshape(len(weights), *self.predicted.shape[:2]).mean(axis=2)
