"""Does the best sub-network change with the device? The fronts of one task on every device.

A device is what latencies were measured on, or a rule in its place: FLOPs, or the number of layers
alone, which is what a device that never waits for arithmetic goes by. NumPy and records.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import product

import numpy as np

from lmtime.config import SubNetwork
from lmtime.encoders import fronts
from lmtime.encoders.fronts import SURE, Measured, Row
from lmtime.pareto.front import FrontTable, front_table
from lmtime.pareto.transfer import excess_latency

COUNTS = ("names", "on_every", "on_some", "on_none", "moved")  # of `agreement`
RULES = {"flops": "FLOPs", "layers": "layers alone"}


@dataclass(frozen=True)
class DeviceFront:
    """timed: latency rows of the sub-networks that were measured on all devices, in one order."""

    device: str
    device_name: str  # "" for a rule
    timed: tuple[Row, ...]
    table: FrontTable

    @property
    def is_rule(self) -> bool:
        """Whether nothing was measured."""
        return not self.device_name

    def latency_ms(self, part: slice = slice(None)) -> np.ndarray:
        """(n_sub_networks,): medians of a part of the samples, or of all."""
        if self.is_rule or part == slice(None):
            return np.array([row["latency_ms"] for row in self.timed])
        return np.array([np.median(row["samples_ms"][part]) for row in self.timed])

    def scores(self) -> np.ndarray:
        """(n_sub_networks,), in the order of `timed`."""
        rows = self.rows()
        return np.array([rows[row["name"]]["score"] for row in self.timed])

    def rows(self) -> dict[str, Row]:
        """Rows of the front's table by the name of the sub-network."""
        return {row["name"]: row for row in self.table.rows}


def device_fronts(
    network: str, task: str, *, n_resamples: int = fronts.N_RESAMPLES
) -> list[DeviceFront]:
    """On each device that measured most of the sub-networks, the rules last; [] where none did."""
    scored, _ = fronts.scores(task, network)
    keys = fronts.keys_of(scored)
    sets: dict[tuple[str, str], Measured] = {}
    for found in fronts.measured(network):
        if found.place.is_usual and found.has_most(keys):
            sets.setdefault((found.place.in_words, found.device_name), found)
    if not sets:
        return []
    for found in sets.values():
        keys &= fronts.keys_of(found.rows)
    words = [in_words for in_words, _ in sets]
    timed = {
        (in_words if words.count(in_words) == 1 else f"{in_words}, {name}", name): found.rows
        for (in_words, name), found in sets.items()
    }
    timed |= {
        (words, ""): tuple(fronts.as_device(scored, network, rule)) for rule, words in RULES.items()
    }
    return [_front(*of, rows, scored, keys, n_resamples) for of, rows in timed.items()]


def _front(
    device: str,
    name: str,
    rows: tuple[Row, ...],
    scored: list[Row],
    keys: set[str],
    n_resamples: int,
) -> DeviceFront:
    """Of those sub-networks alone whose keys are given."""
    latest = {SubNetwork.of_row(row).key: row for row in rows}
    shared = tuple(latest[key] for key in sorted(keys))
    return DeviceFront(device, name, shared, front_table(shared, scored, n_resamples=n_resamples))


def agreement(found: list[DeviceFront]) -> Row:
    """On how many of the measured devices' fronts the sub-networks are.

    on_every, on_some, on_none: their names, by the medians; moved: those that are on one front in
    more than 95 % of resamples and on another in less than 5 %.
    """
    tables = [front.rows() for front in found if not front.is_rule]
    names = list(tables[0])
    on = {name: [table[name]["on_front"] for table in tables] for name in names}
    likely = {name: [table[name]["front_probability"] for table in tables] for name in names}
    return {
        "n_devices": len(tables),
        "names": names,
        "on_every": [name for name in names if all(on[name])],
        "on_some": [name for name in names if any(on[name]) and not all(on[name])],
        "on_none": [name for name in names if not any(on[name])],
        "moved": [n for n in names if max(likely[n]) > SURE and min(likely[n]) < 1 - SURE],
    }


def transfers(found: list[DeviceFront]) -> list[Row]:
    """What a sub-network chosen on one device, or by a rule, costs on each measured one.

    excess_median, excess_max: over the scores of the front of `run_on`, how much longer it takes
    than the best of at least that score there. Where both are one device, half of its samples
    choose and the others run: so much is noise.
    """
    rows = []
    for a, b in product(found, repeat=2):
        if b.is_rule:
            continue
        halves = (slice(0, None, 2), slice(1, None, 2)) if a is b else (slice(None),) * 2
        excess = excess_latency(a.latency_ms(halves[0]), b.latency_ms(halves[1]), b.scores())
        rows.append(
            {
                "chosen_on": a.device,
                "run_on": b.device,
                "is_rule": a.is_rule,
                "excess_median": float(np.median(excess)),
                "excess_max": float(excess.max()),
            }
        )
    return rows


def worst(rows: list[Row]) -> list[Row]:
    """Of each pair of devices in rows of `transfers` the one of the largest excess."""
    found: dict[tuple[str, str], Row] = {}
    for row in sorted(rows, key=lambda row: row["is_rule"]):
        pair = row["chosen_on"], row["run_on"]
        found[pair] = max(found.get(pair, row), row, key=lambda row: row["excess_max"])
    return list(found.values())
