"""The front of a task on a device: latency and score rows in, one row a sub-network out.

NumPy only, and no model: what was measured once answers for any budget.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from lmtime.config.encoder import SubNetwork
from lmtime.errors import UsageError
from lmtime.pareto.dominance import Limit, constrained_front
from lmtime.pareto.outcomes import COUNTED, Outcomes
from lmtime.pareto.uncertainty import Objective, Resampled, front_membership
from lmtime.stats import N_RESAMPLES

Row = Mapping[str, Any]

DIRECTIONS = ("min", "max")  # latency, score
OF_ONE_LATENCY = ("network", "device", "device_name", "engine", "batch_size", "seq_len")
OF_ONE_SCORE = ("network", "task", "metric")


@dataclass(frozen=True)
class Budget:
    """The most that a sub-network may take, and the least that it must score, in points."""

    max_latency_ms: float = math.inf
    min_score: float = -math.inf

    def __post_init__(self) -> None:
        for name, value in vars(self).items():
            if math.isnan(value):
                raise UsageError(f"{name}={value} must be a number, or be left out")

    def limits(self) -> list[Limit]:
        """For the objectives latency and score."""
        return [Limit(0, max=self.max_latency_ms), Limit(1, min=self.min_score)]

    def refusal(self, nearest: Row) -> UsageError:
        """The error where nothing keeps it; nearest: the row that misses it least."""
        return UsageError(
            f"no sub-network keeps {self}: the nearest is {nearest['name']} with "
            f"{nearest['latency_ms']:.4g} ms and {nearest['score']:.4g} points, so choose a budget "
            f"that this one keeps"
        )

    def __str__(self) -> str:
        parts = []
        if self.max_latency_ms < math.inf:
            parts.append(f"at most {self.max_latency_ms:g} ms")
        if self.min_score > -math.inf:
            parts.append(f"at least {self.min_score:g} points")
        return " and ".join(parts) or "any latency and score"


@dataclass(frozen=True)
class FrontTable:
    """rows: all sub-networks, by latency. nearest: those that miss the budget least, if all do."""

    rows: tuple[dict[str, Any], ...]
    nearest: tuple[dict[str, Any], ...]
    budget: Budget

    @property
    def feasible(self) -> bool:
        """Whether any sub-network keeps the budget."""
        return not self.nearest

    def require_feasible(self) -> None:
        """An error that names the nearest where no sub-network keeps the budget."""
        if self.nearest:
            raise self.budget.refusal(self.nearest[0])


def front_table(
    latencies: Iterable[Row],
    scores: Iterable[Row],
    *,
    budget: Budget = Budget(),
    seed: int = 0,
    n_resamples: int = N_RESAMPLES,
) -> FrontTable:
    """Of one device, engine and shape, and of one task and metric; of one network.

    latencies: rows of encoder_latency; scores: of encoder_scores, or published ones, whose
    `samples` (n,) stand for examples. A later row of the same sub-network (and seed) replaces an
    earlier one, one whose quality is not "" is left out.
    """
    timed = _by_key(_of_one(latencies, OF_ONE_LATENCY, "latencies"))
    scored = _by_key(_of_one(scores, OF_ONE_SCORE, "scores"))
    keys = [key for key in timed if key in scored]
    networks = {rows[0].get("network") for table in (timed, scored) for rows in table.values()}
    if not keys or len(networks) > 1:
        raise UsageError(
            f"no sub-network has both a latency ({len(timed)} have) and a score ({len(scored)} "
            f"have) in {' and '.join(sorted(map(str, networks))) or 'no network'}: measure and "
            f"train the same network"
        )
    keys.sort(key=lambda key: timed[key][-1]["latency_ms"])
    return _table(
        [timed[k][-1] for k in keys], [scored[k] for k in keys], budget, seed, n_resamples
    )


def _table(
    timed: list[Row], scored: list[list[Row]], budget: Budget, seed: int, n_resamples: int
) -> FrontTable:
    score = _score(_paired_seeds(scored))
    latency = Objective("min", [row.get("samples_ms") or [row["latency_ms"]] for row in timed])
    scores = np.round(score.values(), 9)  # a mean of samples is off by the last digits
    points = np.stack([[row["latency_ms"] for row in timed], scores], axis=1)
    found = constrained_front(points, DIRECTIONS, budget.limits())
    rng = np.random.default_rng(seed)
    likely = front_membership(
        [latency, score], rng, limits=budget.limits(), n_resamples=n_resamples
    )
    rows = []
    for i, (row, runs) in enumerate(zip(timed, scored, strict=True)):
        rows.append(
            {
                "name": row.get("name") or runs[-1].get("name") or _key(row),
                "width": row.get("width"),
                "depth": row.get("depth"),
                "heads": list(row["heads"]),
                "ffn_sizes": list(row["ffn_sizes"]),
                "score": float(points[i, 1]),
                "score_low": float(likely.low[i, 1]),
                "score_high": float(likely.high[i, 1]),
                "latency_ms": row["latency_ms"],
                "latency_ms_low": row.get("latency_ms_low", float(likely.low[i, 0])),
                "latency_ms_high": row.get("latency_ms_high", float(likely.high[i, 0])),
                "parameters": row.get("parameters"),
                "on_front": bool(found.on_front[i]),
                "front_probability": float(likely.probability[i]),
            }
        )
    return FrontTable(tuple(rows), tuple(rows[i] for i in found.least_violation), budget)


def _of_one(rows: Iterable[Row], names: Sequence[str], what: str) -> list[Row]:
    """Those that may be used, which must agree in the fields."""
    usable = [row for row in rows if not row.get("quality")]
    for name in names:
        found = {row.get(name) for row in usable}
        if len(found) > 1:
            raise UsageError(
                f"{what} of several kinds: {name} is {', '.join(sorted(map(str, found)))}; "
                f"choose one of them"
            )
    return usable


def _by_key(rows: list[Row]) -> dict[str, list[Row]]:
    """Sub-network -> its rows, the latest of each seed."""
    found: dict[str, dict[Any, Row]] = {}
    for row in rows:
        found.setdefault(_key(row), {})[row.get("seed")] = row
    return {key: list(of_seeds.values()) for key, of_seeds in found.items()}


def _key(row: Row) -> str:
    return SubNetwork.of_row(row).key


def _paired_seeds(scored: list[list[Row]]) -> list[list[Row]]:
    """Of each sub-network, the rows of those seeds that all have, in one order."""
    shared = set.intersection(*({row.get("seed") for row in rows} for rows in scored))
    if not shared:
        raise UsageError("the sub-networks were trained with no seed in common: train all with one")
    return [
        sorted((row for row in rows if row.get("seed") in shared), key=lambda r: str(r.get("seed")))
        for rows in scored
    ]


def _score(scored: list[list[Row]]) -> Resampled:
    """Paired outcomes where each row has them; else samples that stand for them; else known."""
    rows = [row for of_seeds in scored for row in of_seeds]
    metric = rows[0].get("metric")
    if metric in COUNTED and all(row.get("predicted") for row in rows):
        labels = {row["labels"] for row in rows}
        if len(labels) > 1:
            raise UsageError("the sub-networks were scored on different examples: use the same")
        predicted = [[_digits(row["predicted"]) for row in of_seeds] for of_seeds in scored]
        if len({len(row["predicted"]) for row in rows}) > 1:
            raise UsageError("rows of the same examples have more predictions or fewer: damaged")
        return Outcomes(metric, _digits(labels.pop()), np.array(predicted))
    samples = [
        np.mean([row.get("samples") or [row["score"]] for row in of_seeds], axis=0)
        for of_seeds in scored
    ]
    return Objective("max", samples, statistic="mean")


def _digits(text: str) -> np.ndarray:
    """(n_examples,) classes, of one digit each."""
    return np.frombuffer(text.encode("ascii"), dtype=np.uint8).astype(np.int64) - ord("0")
