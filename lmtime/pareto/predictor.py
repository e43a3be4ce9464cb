"""Latency and score of sub-networks that nobody measured, from some that somebody did. NumPy only.

A layer adds its own: latency = base + sum over the kept layers of c + a(heads) + b(ffn size). a
and b are straight lines, or one value for each width that was measured; a score adds, besides,
what each single layer is worth. What is used is what errs least on measurements left out singly.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, Self

import numpy as np

from lmtime.config.encoder import SubNetwork
from lmtime.errors import UsageError
from lmtime.pareto.space import GridSpace, LayerSpace

N_LINEAR = 4  # base, layers, heads, neurons
PENALTIES = tuple(10.0**p for p in range(-3, 3))  # of what single layers add, beside residuals


def design(space: GridSpace | LayerSpace, n: int, rng: np.random.Generator) -> list[SubNetwork]:
    """n different sub-networks to measure: the extremes, some whose layers are alike, then random.

    Fewer where the space has fewer.
    """
    alike = sorted(
        space.uniform(), key=lambda sub: (len(sub.layers), sum(sub.heads), sum(sub.ffn_sizes))
    )
    spread = [alike[i] for i in rng.permutation(len(alike))[: n // 2]]
    chosen = {sub.key: sub for sub in [alike[-1], alike[0], *spread]}
    while len(chosen) < min(n, space.size):
        drawn = space.random(rng)
        chosen.setdefault(drawn.key, drawn)
    return list(chosen.values())[:n]


@dataclass(frozen=True)
class Form:
    """What a layer adds. heads, ffn_sizes: the widths of a table, or none for straight lines.

    layers: those whose own worth is added, or none. scale: of a layer's heads and FFN size.
    """

    heads: tuple[int, ...] = ()
    ffn_sizes: tuple[int, ...] = ()
    layers: tuple[int, ...] = ()
    scale: tuple[int, int] = (1, 1)

    @property
    def n_shared(self) -> int:
        """Coefficients that all layers share."""
        return len(self.heads) + len(self.ffn_sizes) if self.heads else N_LINEAR

    def features(self, sub: SubNetwork) -> list[float]:
        """(n_shared + 3 x layers,): what the coefficients are multiplied with."""
        if self.heads:
            self._require_known(sub)
            counts = [sub.heads.count(width) for width in self.heads]
            counts += [sub.ffn_sizes.count(width) for width in self.ffn_sizes[1:]]
            shared = [1.0, *counts]  # how many have the first FFN size follows from the rest
        else:
            totals = sum(sub.heads) / self.scale[0], sum(sub.ffn_sizes) / self.scale[1]
            shared = [1.0, len(sub.layers), *totals]
        own = dict(zip(sub.layers, zip(sub.heads, sub.ffn_sizes, strict=True), strict=True))
        for layer in self.layers:
            heads, ffn_size = own.get(layer, (0, 0))
            shared += [float(layer in own), heads / self.scale[0], ffn_size / self.scale[1]]
        return shared

    def _require_known(self, sub: SubNetwork) -> None:
        for name in ("heads", "ffn_sizes"):
            strange = set(getattr(sub, name)) - set(getattr(self, name))
            if strange:
                raise UsageError(
                    f"{name} {sorted(strange)} were never measured: predict those of "
                    f"{list(getattr(self, name))}, or measure more"
                )


@dataclass(frozen=True, eq=False)
class Errors:
    """Predicted and measured values, (n,) each."""

    predicted: np.ndarray
    measured: np.ndarray

    @property
    def relative(self) -> np.ndarray:
        """(n,): predicted over measured, less 1."""
        return self.predicted / self.measured - 1

    @property
    def median(self) -> float:
        """Of the relative errors' sizes."""
        return float(np.median(np.abs(self.relative)))

    @property
    def mape(self) -> float:
        """Mean of the relative errors' sizes, as a fraction."""
        return float(np.abs(self.relative).mean())


@dataclass(frozen=True)
class Predictor:
    """A fitted form. left_out: root mean square error on measurements left out one by one.

    It is relative, or in the score's points where the target is a score. n: measurements.
    """

    target: ClassVar[str]
    relative: ClassVar[bool]

    form: Form
    coefficients: tuple[float, ...]
    left_out: float
    n: int

    @classmethod
    def _forms(cls, sub_networks: Sequence[SubNetwork]) -> list[tuple[Form, float]]:
        raise NotImplementedError

    @classmethod
    def fit(cls, sub_networks: Sequence[SubNetwork], values: Sequence[float]) -> Self:
        """From measured sub-networks and the value of each, as many as coefficients at least."""
        target = np.asarray(values, dtype=np.float64)
        _check(cls.target, sub_networks, target, positive=cls.relative)
        weights = 1 / target if cls.relative else np.ones(len(target))
        best = None
        for form, penalty in cls._forms(sub_networks):
            features = np.array([form.features(sub) for sub in sub_networks]) * weights[:, None]
            penalties = np.repeat([0.0, penalty], [form.n_shared, 3 * len(form.layers)])
            solved = _solve(features, target * weights, penalties)
            if solved and (best is None or solved[1] < best.left_out):
                best = cls(form, tuple(solved[0].tolist()), solved[1], len(target))
        if best is None:
            raise UsageError(
                f"these {len(target)} sub-networks do not tell layers, heads and neurons apart: "
                f"measure some that differ in one alone, as `design` chooses them"
            )
        return best

    def predict(self, sub_network: SubNetwork) -> float:
        """Of one sub-network, in the unit of the measurements."""
        features = self.form.features(sub_network)
        return math.fsum(c * x for c, x in zip(self.coefficients, features, strict=True))

    def errors(self, sub_networks: Sequence[SubNetwork], measured: Sequence[float]) -> Errors:
        """Against measurements that it was not fitted on."""
        predicted = np.array([self.predict(sub) for sub in sub_networks])
        return Errors(predicted, np.asarray(measured, dtype=np.float64))

    def to_dict(self) -> dict[str, Any]:
        """As JSON holds it."""
        return {
            "target": self.target,
            **{name: list(getattr(self.form, name)) for name in Form.__dataclass_fields__},
            "coefficients": list(self.coefficients),
            "left_out": self.left_out,
            "n": self.n,
        }

    @classmethod
    def from_dict(cls, record: dict[str, Any]) -> Self:
        """From what `to_dict` gave."""
        if record.get("target") != cls.target:
            raise UsageError(f"this predicts {record.get('target')}, not {cls.target}: fit another")
        form = Form(**{name: tuple(record[name]) for name in Form.__dataclass_fields__})
        return cls(form, tuple(record["coefficients"]), record["left_out"], record["n"])


class LatencyPredictor(Predictor):
    """Of one device, engine, batch and length; the relative error is what is minimised."""

    target, relative = "latency_ms", True

    @classmethod
    def _forms(cls, sub_networks: Sequence[SubNetwork]) -> list[tuple[Form, float]]:
        return [(form, 0.0) for form in _shared_forms(sub_networks)]


class ScorePredictor(Predictor):
    """An estimate, to search with: what it finds is evaluated again.

    Layers are unlike in what they are worth, and a score does not simply add: how far single
    layers may depart from the shared form is a ridge penalty, chosen as the form is.
    """

    target, relative = "score", False

    @classmethod
    def _forms(cls, sub_networks: Sequence[SubNetwork]) -> list[tuple[Form, float]]:
        shared = _shared_forms(sub_networks)
        layers = tuple(sorted({layer for sub in sub_networks for layer in sub.layers}))
        own = [Form(form.heads, form.ffn_sizes, layers, form.scale) for form in shared]
        return [(form, 0.0) for form in shared] + list(itertools.product(own, PENALTIES))


def _check(
    name: str, sub_networks: Sequence[SubNetwork], values: np.ndarray, *, positive: bool
) -> None:
    if len(sub_networks) != len(values):
        raise UsageError(f"{len(sub_networks)} sub-networks and {len(values)} values of {name}")
    if len(values) < N_LINEAR:
        raise UsageError(
            f"{len(values)} measurements are fewer than the {N_LINEAR} coefficients of {name}: "
            f"measure a few dozen sub-networks"
        )
    if not np.isfinite(values).all() or (positive and (values <= 0).any()):
        raise UsageError(f"{name} must be finite{' and above 0' if positive else ''} to be fitted")


def _shared_forms(sub_networks: Sequence[SubNetwork]) -> list[Form]:
    heads = sorted({width for sub in sub_networks for width in sub.heads})
    ffn_sizes = sorted({width for sub in sub_networks for width in sub.ffn_sizes})
    scale = (heads[-1], ffn_sizes[-1])
    return [Form(scale=scale), Form(tuple(heads), tuple(ffn_sizes), scale=scale)]


def _solve(
    features: np.ndarray, target: np.ndarray, penalties: np.ndarray
) -> tuple[np.ndarray, float] | None:
    """Coefficients and error of measurements left out; None where they are not determined.

    features: (n, n_coefficients). A row left out changes its own residual by 1 / (1 - leverage).
    """
    rows = np.vstack([features, np.diag(np.sqrt(penalties))[penalties > 0]])
    if np.linalg.matrix_rank(rows) < rows.shape[1]:
        return None
    orthogonal, triangular = np.linalg.qr(rows)
    n = len(target)
    coefficients = np.linalg.solve(triangular, orthogonal[:n].T @ target)
    leverage = (orthogonal[:n] ** 2).sum(axis=1)
    left = np.maximum(1 - leverage, 1e-9)  # a row that alone decides a coefficient
    errors = (target - features @ coefficients) / left
    return coefficients, float(np.sqrt((errors**2).mean()))
