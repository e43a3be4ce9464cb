"""Latencies of sub-networks measured where they will run, and a predictor of all the others.

It is fitted on a few dozen sub-networks whose layers differ, and judged by others. Rows are those
of `encoder_latency`.
"""

from __future__ import annotations

from dataclasses import dataclass
from fractions import Fraction
from pathlib import Path

import numpy as np

from lmtime.config import DEPTHS, WIDTHS, EncoderConfig, SubNetwork
from lmtime.encoders import fronts, measuring
from lmtime.encoders.fronts import Place, Row
from lmtime.encoders.measuring import Say
from lmtime.encoders.plans import USUAL, Case, Rounds, network_config, threads_of
from lmtime.errors import UsageError
from lmtime.pareto.predictor import LatencyPredictor, design
from lmtime.pareto.space import GridSpace, LayerSpace
from lmtime.records import document, read_jsonl
from lmtime.timing.conditions import device_name, find_device, n_cpus

N_DESIGN, N_HELD_OUT = 40, 30  # sub-networks that the predictor is fitted on, and judged by


def layer_space(network: str) -> LayerSpace:
    """Each layer with its own quarter, half, three quarters or all of its heads and neurons."""
    full = network_config(network)
    return LayerSpace(full, *_sizes(full), DEPTHS.get(network, (Fraction(1),)))


def _sizes(full: EncoderConfig) -> tuple[list[int], list[int]]:
    return tuple(
        sorted({max(1, round(min(sizes) * width)) for width in WIDTHS})
        for sizes in (full.heads, full.ffn_sizes)
    )


def designed(
    network: str, place: Place, n: int = N_DESIGN, n_held_out: int = N_HELD_OUT, seed: int = 0
) -> tuple[list[Case], list[Case]]:
    """What a predictor is fitted on, and others, drawn at random, that it is judged by."""
    space, rng = layer_space(network), np.random.default_rng(seed)
    fitted = {sub.key: sub for sub in design(space, n, rng)}
    others: dict[str, SubNetwork] = {}
    while len(others) < min(n_held_out, space.size - len(fitted)):
        drawn = space.random(rng)
        if drawn.key not in fitted:
            others.setdefault(drawn.key, drawn)
    return tuple(
        [case_of(network, sub, place) for sub in subs.values()] for subs in (fitted, others)
    )


def case_of(network: str, sub: SubNetwork, place: Place) -> Case:
    """What is measured of a sub-network at a place."""
    return Case(place.engine, network, sub, place.batch_size, place.seq_len)


def measure(
    network: str,
    place: Place,
    *,
    space: str = "grid",
    wanted: Rounds = USUAL,
    command: str,
    say: Say = lambda text: None,
) -> Path:
    """Latencies of the grid of widths and depths, or of the design of a predictor; their file."""
    if space == "grid":
        full = network_config(network)
        grid = GridSpace(full, WIDTHS, DEPTHS.get(network, (Fraction(1),)))
        cases = [case_of(network, sub, place) for sub in grid.sub_networks()]
    else:
        cases = [case for part in designed(network, place) for case in part]
    return measure_missing(cases, place, wanted, command, say)


def measure_missing(
    cases: list[Case], place: Place, wanted: Rounds, command: str, say: Say
) -> Path:
    """Those that have no usable row with as many samples; the file of the rows."""
    cuda = place.device == "cuda"
    if cuda and place.engine != "torch":
        raise UsageError(f"{place.engine} is measured on CPUs: choose torch on a GPU")
    usable = n_cpus("cpu")["n_cpus"]
    if not cuda and usable and threads_of(place.device) > usable:
        raise UsageError(f"device {place.device}: this process may use {usable} CPUs, no more")
    (path,) = measuring.run_missing(
        cases,
        device=find_device("cuda" if cuda else "cpu"),
        n_threads=() if cuda else (threads_of(place.device),),
        rounds_of=lambda batch_size: wanted,
        command=command,
        say=say,
    )
    return path


def measured_document(path: Path, network: str, place: Place, space: str) -> Row:
    """The JSON document of what was measured; of a design, how well it predicts others."""
    rows = [r for r in read_jsonl(path) if r["network"] == network and place.has(r)]
    more = {}
    if space != "grid":
        judged = judged_predictor(network, place)
        more = {"median_error_held_out": judged.median_error, "n_held_out": len(judged.errors)}
    return document("pareto measure", conditions_of(path, rows[-1]["run_id"]), rows, **more)


def conditions_of(path: Path, run_id: str) -> Row:
    """The provenance of a run, from beside the file of its rows."""
    found = read_jsonl(path.parent / "provenance.jsonl")
    return next((row for row in found if row["run_id"] == run_id), {})


@dataclass(frozen=True)
class Judged:
    """A latency predictor, and its relative errors on sub-networks that it was not fitted on."""

    predictor: LatencyPredictor
    errors: np.ndarray  # (n_held_out,), predicted over measured, less 1

    @property
    def median_error(self) -> float:
        """Median of the errors' sizes, as a fraction."""
        return float(np.median(np.abs(self.errors)))


def judged_predictor(network: str, place: Place) -> Judged:
    """Fitted on the rows of the design at hand, judged by the rows held out."""
    wanted = designed(network, place)
    measured = _latencies_here(network, place)
    fitted, others = ([c.sub for c in cases if c.sub.key in measured] for cases in wanted)
    if len(fitted) < N_DESIGN // 2 or not others:
        raise UsageError(
            f"{len(fitted)} of the {N_DESIGN} sub-networks that a predictor of {network} is "
            f"fitted on were measured on {place.device} with {place.engine} and passed the quality "
            f"gate: `lmtime pareto measure --network {network} --space layers {place.options}` "
            f"measures the others, best while nothing else runs"
        )
    predictor = LatencyPredictor.fit(fitted, [measured[sub.key] for sub in fitted])
    errors = predictor.errors(others, [measured[sub.key] for sub in others])
    return Judged(predictor, errors.relative)


def _latencies_here(network: str, place: Place) -> dict[str, float]:
    """Key -> ms of all that was measured on a device of this machine's name."""
    here = device_name("cuda" if place.device == "cuda" else "cpu")
    return {
        SubNetwork.of_row(row).key: row["latency_ms"]
        for found in fronts.measured(network)
        if (found.place, found.device_name) == (place, here)
        for row in found.rows
    }
