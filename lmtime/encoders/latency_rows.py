"""Rows of `encoder_latency`: what two of them differ by. NumPy only."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from lmtime import stats

Row = dict[str, Any]


def latency_ratio(a: Row, b: Row, rng: np.random.Generator) -> stats.Ratio:
    """Latency of a over that of b, with its interval.

    Samples of one run were taken in the same rounds and are compared round by round, where too few
    tell nothing; of others the interval is as wide as both of theirs allow.
    """
    if a["run_id"] != b["run_id"]:
        low, high = (a[f"latency_ms_{end}"] for end in ("low", "high"))
        return stats.Ratio(
            a["latency_ms"] / b["latency_ms"],
            low / b["latency_ms_high"],
            high / b["latency_ms_low"],
        )
    n = min(len(a["samples_ms"]), len(b["samples_ms"]))
    found = stats.paired_ratio(*(np.array(row["samples_ms"][:n]) for row in (a, b)), rng)
    return found if n >= stats.MIN_PAIRS else stats.Ratio(found.ratio, 0.0, math.inf)
