"""What records of sub-networks say beside the front: equal FLOPs, noise, bias of a search."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import combinations

import numpy as np

from lmtime.config import DEPTHS, WIDTHS, find_encoder, sub_network
from lmtime.encoders import fronts
from lmtime.encoders.fronts import SURE, Measured, Row, TaskFront
from lmtime.encoders.latency_rows import latency_ratio
from lmtime.encoders.plans import SEARCH


def grid(found: Measured) -> list[Row]:
    """Latency rows of the grid of widths and depths, the latest of each, with `n_layers`."""
    latest = {r["name"]: r for r in found.rows if r["width"] is not None}
    return [{**r, "n_layers": len(r["layers"])} for r in latest.values()]


def grids(network: str) -> list[Measured]:
    """Sets with most of the grid, one a place, at one sequence of 128 tokens, own ones first."""
    full = find_encoder(network)
    keys = {sub_network(full, w, d).key for d in DEPTHS[network] for w in WIDTHS}
    found: dict[fronts.Place, Measured] = {}
    for measured in fronts.measured(network):
        if measured.place.is_usual and measured.has_most(keys):
            found.setdefault(measured.place, measured)
    return list(found.values())


def equal_flops(found: Measured, seed: int = 0) -> list[Row]:
    """Pairs of the grid with equal FLOPs: latency of the deeper over that of the wider one.

    Samples of one run are compared round by round; of others, interval with interval. `shown` is
    False where the interval of the ratio holds 1.
    """
    rows = sorted(grid(found), key=lambda r: (r["flops"], r["n_layers"]))
    rng = np.random.default_rng(seed)
    pairs = []
    for wide, deep in combinations(rows, 2):
        if wide["flops"] != deep["flops"] or wide["n_layers"] == deep["n_layers"]:
            continue
        ratio = latency_ratio(deep, wide, rng)
        pairs.append(
            {
                "place": found.place.in_words,
                "deep": deep["name"],
                "wide": wide["name"],
                "gflops": deep["flops"] / 1e9,
                "deep_ms": deep["latency_ms"],
                "wide_ms": wide["latency_ms"],
                "ratio": ratio.ratio,
                "low": ratio.low,
                "high": ratio.high,
                "shown": not ratio.low <= 1 <= ratio.high,
            }
        )
    return pairs


def sureness(front: TaskFront) -> Row:
    """How many sub-networks are on a front, and how sure that is.

    n_front: by medians and scores; n_sure: on the front in more than 95 % of resamples; n_out: in
    less than 5 %.
    """
    rows = front.table.rows
    likely = [row["front_probability"] for row in rows]
    return {
        "task": front.task,
        "place": front.place.in_words,
        "n": len(rows),
        "n_front": sum(row["on_front"] for row in rows),
        "n_sure": sum(p > SURE for p in likely),
        "n_out": sum(p < 1 - SURE for p in likely),
    }


def likely(front: TaskFront) -> list[Row]:
    """{"task", "name", "probability"} of each sub-network to be on the front, fastest first."""
    return [
        {"task": front.task, "name": row["name"], "probability": row["front_probability"]}
        for row in front.table.rows
    ]


def cheaper_no_worse(front: TaskFront) -> Row | None:
    """The fastest sub-network that scores at least what the slowest does; None if it is that one.

    `whole`: the slowest; `saved`: the share of its latency that is saved.
    """
    whole = max(front.table.rows, key=lambda row: row["latency_ms"])
    good = [row for row in front.table.rows if row["score"] >= whole["score"]]
    best = min(good, key=lambda row: row["latency_ms"])
    if best is whole:
        return None
    saved = 1 - best["latency_ms"] / whole["latency_ms"]
    return {**best, "task": front.task, "whole": whole, "saved": saved}


def searched(network: str) -> list[Row]:
    """The measured front of the last search for a network, this machine's first; [] if none.

    Rows of `encoder_search`, by predicted latency; `relative_error`: predicted over measured, less
    1; `optimism`: the score that it was chosen by, less that on unseen examples, in points.
    """
    for _, rows in fronts.row_sets(SEARCH):
        found = [r for r in rows if r["network"] == network and r["latency_ms"] is not None]
        if found:
            last = [r for r in found if r["run_id"] == found[-1]["run_id"]]
            return sorted((_judged(row) for row in last), key=lambda r: r["predicted_ms"])
    return []


def _judged(row: Row) -> Row:
    error = row["predicted_ms"] / row["latency_ms"] - 1
    return {**row, "relative_error": error, "optimism": row["score"] - row["score_held_out"]}


def search_summary(rows: Sequence[Row]) -> Row:
    """Of rows of `searched`: how far prediction and first score lie from what was seen since.

    median_error: of the sizes of the relative errors; worst_error: the largest, signed; optimism:
    the median, in points; n_lower: how many score less on unseen examples.
    """
    errors, optimism = (
        np.array([row[name] for row in rows]) for name in ("relative_error", "optimism")
    )
    return {
        "n": len(rows),
        "median_error": float(np.median(np.abs(errors))),
        "worst_error": float(errors[np.argmax(np.abs(errors))]),
        "optimism": float(np.median(optimism)),
        "n_lower": int((optimism > 0).sum()),
    }
