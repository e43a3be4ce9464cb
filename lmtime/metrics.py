"""Scores of predictions in points, 0 to 100 (-100 where they can be worse than chance). NumPy only.

The metrics are GLUE's (Wang et al. 2018). Each reduces the last axis, so that many resamples are
scored at once, and is 0 where it is not defined, as for Matthews when one class is predicted.
Intervals are 95 % percentile bootstraps over examples: what another development set of the same
kind could have shown. Other seeds of the same training differ beside that.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from lmtime.errors import UsageError, unknown
from lmtime.stats import COVERAGE, N_RESAMPLES, Difference, resampled_rows

_CHUNK_VALUES = 2**20  # values held at once while resampling


def accuracy(labels: np.ndarray, predicted: np.ndarray) -> np.ndarray:
    """100 times the share that is right. labels, predicted: (..., n)."""
    return 100 * (labels == predicted).mean(axis=-1)


def matthews(labels: np.ndarray, predicted: np.ndarray) -> np.ndarray:
    """100 times the correlation of two classes, 0 and 1. labels, predicted: (..., n)."""
    return 100 * _correlation(labels, predicted)


def f1(labels: np.ndarray, predicted: np.ndarray) -> np.ndarray:
    """100 times the harmonic mean of precision and recall of class 1. (..., n) each."""
    labels, predicted = labels == 1, predicted == 1
    both = 2 * (labels & predicted).sum(axis=-1)
    return 100 * _ratio(both, labels.sum(axis=-1) + predicted.sum(axis=-1))


def accuracy_f1(labels: np.ndarray, predicted: np.ndarray) -> np.ndarray:
    """Mean of accuracy and F1, as GLUE takes it for pairs of sentences that say the same."""
    return (accuracy(labels, predicted) + f1(labels, predicted)) / 2


def pearson_spearman(labels: np.ndarray, predicted: np.ndarray) -> np.ndarray:
    """100 times the mean of the correlations of values and of ranks. (..., n) each."""
    return 50 * (_correlation(labels, predicted) + spearman(labels, predicted))


def spearman(a: np.ndarray, b: np.ndarray) -> np.ndarray:
    """Correlation of ranks, -1 to 1; 0 where either is constant. a, b: (..., n)."""
    return _correlation(ranks(a), ranks(b))


def ranks(values: np.ndarray) -> np.ndarray:
    """Ranks from 0 along the last axis, (..., n); equal values share the mean of theirs."""
    values = np.asarray(values)
    order = np.argsort(values, axis=-1)
    ordered = np.take_along_axis(values, order, axis=-1)
    places = np.broadcast_to(np.arange(values.shape[-1]), values.shape)
    edge = np.ones_like(values[..., :1], dtype=bool)
    rises = ordered[..., 1:] != ordered[..., :-1]
    starts = np.where(np.concatenate([edge, rises], axis=-1), places, 0)
    ends = np.where(np.concatenate([rises, edge], axis=-1), places, places.shape[-1])
    first = np.maximum.accumulate(starts, axis=-1)
    last = np.minimum.accumulate(ends[..., ::-1], axis=-1)[..., ::-1]
    found = np.empty(values.shape)
    np.put_along_axis(found, order, (first + last) / 2, axis=-1)
    return found


def _correlation(a: np.ndarray, b: np.ndarray) -> np.ndarray:
    """Pearson's, of (..., n) values."""
    first, second = (np.asarray(x, dtype=np.float64) for x in (a, b))
    first = first - first.mean(axis=-1, keepdims=True)
    second = second - second.mean(axis=-1, keepdims=True)
    # a constant that float64 cannot hold is not quite its own mean
    noise = [(1e-12 * np.abs(x).max(axis=-1)) ** 2 * x.shape[-1] for x in (a, b)]
    squares = [(x * x).sum(axis=-1) for x in (first, second)]
    varies = (squares[0] > noise[0]) & (squares[1] > noise[1])
    scale = np.where(varies, np.sqrt(squares[0]) * np.sqrt(squares[1]), 0)
    return np.clip(_ratio((first * second).sum(axis=-1), scale), -1, 1)


def _ratio(part: np.ndarray, whole: np.ndarray) -> np.ndarray:
    """part / whole, and 0 where whole is 0."""
    return np.divide(part, whole, out=np.zeros(np.shape(part)), where=np.asarray(whole) > 0)


METRICS: dict[str, Callable[[np.ndarray, np.ndarray], np.ndarray]] = {
    "accuracy": accuracy,
    "matthews": matthews,
    "f1": f1,
    "accuracy_f1": accuracy_f1,
    "pearson_spearman": pearson_spearman,
}
_TWO_CLASSES = ("matthews", "f1", "accuracy_f1")


def score(metric: str, labels: np.ndarray, predicted: np.ndarray) -> float:
    """Points of one list of predictions. labels, predicted: (n,), one an example."""
    truth, guess = _checked(metric, labels, predicted)
    return float(METRICS[metric](truth, guess))


def score_interval(
    metric: str,
    labels: np.ndarray,
    predicted: np.ndarray,
    rng: np.random.Generator,
    *,
    n_resamples: int = N_RESAMPLES,
) -> tuple[float, float]:
    """Ends of the 95 % interval of a score, in points, over examples drawn anew."""
    truth, guess = _checked(metric, labels, predicted)
    return _middle(_resampled(metric, truth, [guess], rng, n_resamples)[0])


def difference_interval(
    metric: str,
    labels: np.ndarray,
    predicted_a: np.ndarray,
    predicted_b: np.ndarray,
    rng: np.random.Generator,
    *,
    n_resamples: int = N_RESAMPLES,
) -> Difference:
    """Score of a less that of b, in points, with the same examples drawn for both."""
    truth, first = _checked(metric, labels, predicted_a)
    _, second = _checked(metric, labels, predicted_b)
    a, b = _resampled(metric, truth, [first, second], rng, n_resamples)
    difference = float(METRICS[metric](truth, first) - METRICS[metric](truth, second))
    low, high = _middle(a - b)
    return Difference(difference, low, high, shown=not low <= 0 <= high)


def _checked(
    metric: str, labels: np.ndarray, predicted: np.ndarray
) -> tuple[np.ndarray, np.ndarray]:
    if metric not in METRICS:
        raise unknown("metric", metric, list(METRICS))
    truth, guess = np.asarray(labels), np.asarray(predicted)
    if truth.ndim != 1 or truth.shape != guess.shape or not truth.size:
        raise UsageError(
            f"labels of shape {truth.shape} and predictions of shape {guess.shape}: "
            f"give one prediction for each label, and one label at least"
        )
    if not np.isfinite(guess).all():
        raise UsageError("predictions must be finite numbers: some are not")
    if metric in _TWO_CLASSES and not np.isin([truth, guess], (0, 1)).all():
        raise UsageError(f"{metric} takes the classes 0 and 1: labels or predictions hold others")
    return truth, guess


def _resampled(
    metric: str,
    labels: np.ndarray,
    predictions: list[np.ndarray],
    rng: np.random.Generator,
    n_resamples: int,
) -> np.ndarray:
    """(n_predictions, n_resamples) scores; a resample takes the same examples for all."""
    found = np.empty((len(predictions), n_resamples))
    chunk = max(1, _CHUNK_VALUES // len(labels))
    for start in range(0, n_resamples, chunk):
        n = min(chunk, n_resamples - start)
        rows = resampled_rows(len(labels), 1, n, rng)
        for scores, predicted in zip(found, predictions, strict=True):
            scores[start : start + n] = METRICS[metric](labels[rows], predicted[rows])
    return found


def _middle(resampled: np.ndarray) -> tuple[float, float]:
    low, high = np.quantile(resampled, ((1 - COVERAGE) / 2, (1 + COVERAGE) / 2))
    return float(low), float(high)
