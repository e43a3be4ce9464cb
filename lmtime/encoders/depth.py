"""Does latency grow linearly with depth, and does throughput fall? Rows in, claims out.

Rows are those of `encoder_latency`; of them, the first layers of a network at full width. Only
what passed its quality gate counts. NumPy and the standard library.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import pairwise

import numpy as np

from lmtime.encoders.latency_rows import latency_ratio
from lmtime.encoders.plans import LATENCY, first_layers, place_in_words
from lmtime.lines import fit_line
from lmtime.records import row_sets

NOT_SHOWN = "no difference shown"
SERIES = ("device", "engine", "network", "batch_size", "seq_len")
MIN_DEPTHS = 3  # two points are a line whatever they are


def measured() -> dict[str, list[dict]]:
    """{whose: usable rows of networks that differ in depth}: this machine's, then the reference."""
    sets: dict[str, list[dict]] = {}
    for whose, rows in row_sets(LATENCY):
        sets.setdefault(whose, []).extend(rows)
    found = {whose: depth_rows(rows) for whose, rows in sets.items()}
    found = {whose: rows for whose, rows in found.items() if depth_fits(rows)}
    if not found:
        raise LookupError(
            f"no usable rows of {LATENCY}: run `lmtime run lab_depth_latency -p preset=quick`"
        )
    return found


def gain(before_ms: float, after_ms: float) -> dict[str, float]:
    """How much faster, and how much less time: 59 % faster is 37 % less."""
    speedup = before_ms / after_ms
    return {
        "speedup": speedup,
        "faster_percent": 100 * (speedup - 1),
        "time_saved_percent": 100 * (1 - after_ms / before_ms),
    }


def depth_rows(rows: Iterable[dict]) -> list[dict]:
    """Usable rows of networks that differ in depth alone, by series and depth.

    Each gains `n_layers`, and `series`: engine and device in words.
    """
    usable = [r for r in rows if not r["quality"] and _is_of_depth(r)]
    found = [
        {**r, "n_layers": len(r["layers"]), "series": place_in_words(r["device"], r["engine"])}
        for r in usable
    ]
    return sorted(found, key=lambda r: (*_series(r), r["n_layers"]))


def _is_of_depth(row: dict) -> bool:
    """Whether it has the first layers of its network, at full width."""
    same = first_layers(row["network"], len(row["layers"]))
    return {name: tuple(row[name]) for name in same.fields()} == same.fields()


def _series(row: dict) -> tuple[object, ...]:
    return tuple(row[name] for name in SERIES)


def depth_fits(rows: Iterable[dict], seed: int = 0) -> list[dict[str, object]]:
    """One row a device, engine, network and batch that was measured at three depths or more.

    The line goes through medians, each with an error in proportion to it; `largest_residual` is a
    share of the line's value, at `worst_depth`. `latency` and `throughput` compare the deepest with
    the shallowest network: "rises", "falls" or NOT_SHOWN; `n_slower` of `n_neighbours` depths are
    shown to be slower than the depth before.
    """
    series: dict[tuple[object, ...], list[dict]] = {}
    for row in depth_rows(rows):
        series.setdefault(_series(row), []).append(row)
    return [
        dict(zip(SERIES, name, strict=True)) | _fit(members, seed)
        for name, members in series.items()
        if len({r["n_layers"] for r in members}) >= MIN_DEPTHS
    ]


def _fit(rows: Sequence[dict], seed: int) -> dict[str, object]:
    depths, latency_ms = (np.array([r[c] for r in rows]) for c in ("n_layers", "latency_ms"))
    line = fit_line(depths, latency_ms, 1 / latency_ms**2)  # errors are shares of the latency
    residuals = line.residuals / line.at(depths)
    worst = int(np.argmax(np.abs(residuals)))
    rng = np.random.default_rng(seed)
    changes = [compared(a, b, rng) for a, b in pairwise(rows)]
    latency = compared(rows[0], rows[-1], rng)
    opposite = {"rises": "falls", "falls": "rises"}
    return {
        "device_name": rows[0]["device_name"],
        "series": rows[0]["series"],
        "n_depths": len(rows),
        **{name: getattr(line, name) for name in ("slope", "slope_low", "slope_high")},
        "intercept": line.intercept,
        "intercept_low": line.intercept_low,
        "intercept_high": line.intercept_high,
        "r2": line.r2,
        "residuals": residuals.tolist(),
        "largest_residual": float(residuals[worst]),
        "worst_depth": int(depths[worst]),
        "shallowest": int(depths[0]),
        "deepest": int(depths[-1]),
        "throughput_shallowest": rows[0]["throughput_per_s"],
        "throughput_deepest": rows[-1]["throughput_per_s"],
        "latency": latency,
        "throughput": opposite.get(latency, NOT_SHOWN),  # of one batch: its inverse
        "n_neighbours": len(changes),
        "n_slower": changes.count("rises"),
    }


def compared(first: dict, second: dict, rng: np.random.Generator, *, of: str = "latency") -> str:
    """Whether the second row's latency or throughput "rises", "falls", or NOT_SHOWN."""
    scale = 1.0 if of == "latency" else first["batch_size"] / second["batch_size"]
    found = latency_ratio(second, first, rng)
    low, high = scale * found.low, scale * found.high
    if low <= 1 <= high:
        return NOT_SHOWN
    return "rises" if (low > 1) == (of == "latency") else "falls"


def deepest_by_batch(rows: Iterable[dict], seed: int = 0) -> list[dict[str, object]]:
    """Throughput of the deepest network of each device, engine and network, by batch size.

    Only where there are two batches or more. `throughput` is `compared` with the smallest one's.
    """
    groups: dict[tuple[object, ...], list[dict]] = {}
    for row in depth_rows(rows):
        groups.setdefault(tuple(row[n] for n in SERIES if n != "batch_size"), []).append(row)
    rng, found = np.random.default_rng(seed), []
    for members in groups.values():
        deepest = max(r["n_layers"] for r in members)
        at = [r for r in members if r["n_layers"] == deepest]
        if len(at) < 2:
            continue
        found += [
            {
                **{name: r[name] for name in (*SERIES, "n_layers", "latency_ms")},
                "series": r["series"],
                "throughput_per_s": r["throughput_per_s"],
                "ratio": r["throughput_per_s"] / at[0]["throughput_per_s"],
                "throughput": compared(at[0], r, rng, of="throughput") if r is not at[0] else "",
            }
            for r in at
        ]
    return found
