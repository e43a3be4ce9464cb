"""How much better or worse one output layer predicts held-out text than another, and how sure.

Documents are paired: both layers are judged on the same ones, so that what makes a document hard
cancels. Resampled are documents and, where a layer was trained on several, seeds. NumPy only.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from lmtime import plans
from lmtime.stats import COVERAGE, N_RESAMPLES

Row = dict[str, object]


@dataclass(frozen=True)
class Change:
    """Relative change of perplexity, 0.01 is 1 % worse, with its 95 % interval.

    n_seeds: of the layer that has fewer.
    """

    change: float
    low: float
    high: float
    n_seeds: int

    @property
    def shown(self) -> bool:
        """Whether a change was shown at all."""
        return not self.low <= 0 <= self.high


def of_layer(rows: Sequence[Row], **fields: object) -> list[Row]:
    """Rows whose configuration has these fields, tuples as lists, and one row a seed."""
    wanted = {k: list(v) if isinstance(v, tuple) else v for k, v in fields.items()}
    found = [r for r in rows if all(r["config"].get(k) == v for k, v in wanted.items())]
    return sorted(found, key=lambda r: r["seed"])


def of_partition(rows: Sequence[Row], name: str, corpus: str | None = None) -> list[Row]:
    """Rows of a partition of `plans.PARTITIONS`, one a seed; none where it was not trained.

    corpus: the model's own where none is named.
    """
    config = plans.partitioned(name)
    own = [r for r in rows if r["corpus"]["name"] == (corpus or config.corpus)]
    fields = ("cutoffs", "tail_widths", "head_rank", "shared_rank")
    return of_layer(own, **{field: getattr(config, field) for field in fields})


def mean_perplexity(rows: Sequence[Row]) -> float:
    """Geometric mean over seeds."""
    return math.exp(sum(math.log(r["perplexity"]) for r in rows) / len(rows))


def change(rows: Sequence[Row], baseline: Sequence[Row], rng: np.random.Generator) -> Change:
    """Of one layer's trials against another's, each one row a seed, on the same documents."""
    tokens = np.array(baseline[0]["document_tokens"], dtype=float)
    for row in (*rows, *baseline):
        if row["document_tokens"] != baseline[0]["document_tokens"]:
            raise ValueError("trials judged on different documents cannot be paired")
    mine, theirs = (np.array([r["document_nll"] for r in found]) for found in (rows, baseline))
    drawn = np.empty(N_RESAMPLES)
    for i in range(N_RESAMPLES):
        documents = rng.integers(len(tokens), size=len(tokens))
        gaps = [
            found[rng.integers(len(found), size=len(found))].mean(0)[documents].sum()
            for found in (mine, theirs)
        ]
        drawn[i] = (gaps[0] - gaps[1]) / tokens[documents].sum()
    tail = (1 - COVERAGE) / 2
    low, high = np.quantile(drawn, (tail, 1 - tail))
    gap = (mine.mean(0).sum() - theirs.mean(0).sum()) / tokens.sum()
    seeds = min(len(mine), len(theirs))
    return Change(math.expm1(gap), math.expm1(low), math.expm1(high), seeds)
