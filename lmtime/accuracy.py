"""How far predictions are from measurements, group by group. Standard library only."""

from __future__ import annotations

from collections.abc import Iterator
from statistics import median

from lmtime.calibration import Calibration, read_calibration
from lmtime.config import configuration_of
from lmtime.cost import predict
from lmtime.cost.calibrated import time_ms
from lmtime.cost.in_step import Sample
from lmtime.cost.operators import Cost
from lmtime.cost.roofline import wide_band_ms
from lmtime.records import GROUPS, STEP, Record, Study, group_of, studies

Parts = dict[tuple[str, str], tuple[list[Cost], float]]  # (group, phase): operators, ms
COMPARED = tuple(name for name in GROUPS if name != "outside")


def compared_sets() -> list[tuple[str, list[dict[str, object]]]]:
    """(whose rows, comparisons) of every set of rows that has a full calibration beside it."""
    return [
        (whose, comparisons(study, read_calibration(study.folder / "calibration.json")))
        for whose, study in studies("accuracy")
        if (study.folder / "calibration.json").exists()
    ]


def comparisons(study: Study, calibration: Calibration) -> list[dict[str, object]]:
    """One row a configuration and group of owners: measured, predicted, and by how much off.

    Only rows that pass their quality gate. `predicted_ms` is of the calibration; `low_ms` and
    `high_ms` are the band without one, of two rates of large calls. `error` is relative, of the
    time; `share_error` is a difference of shares of the step, both without `outside`.
    """
    return [
        row
        for step, parts in _runs(study)
        for row in _compared(step, _by_group(parts), calibration)
    ]


def samples(study: Study) -> list[Sample]:
    """Operators and seconds of each group and phase of every step, to fit coefficients to."""
    return [
        (operators, 1e-3 * ms)
        for _, parts in _runs(study)
        for (group, _), (operators, ms) in parts.items()
        if group in COMPARED
    ]


def _runs(study: Study) -> Iterator[tuple[Record, Parts]]:
    """The step of every run that passed its gate, and what was measured of its parts."""
    conditions = study.provenance()
    runs: dict[str, list[Record]] = {}
    for record in study.records():
        if not record.quality and record.run_id in conditions:
            runs.setdefault(record.run_id, []).append(record)
    for run_id, records in runs.items():
        step = next(r for r in records if r.owner == STEP)
        costs = predict.costs(
            configuration_of(step.config), conditions[run_id]["notes"]["tail_hits"]
        )
        parts: Parts = {}
        for (owner, phase), operators in costs.items():
            _add(parts, (group_of(owner), phase), operators, 0.0)
        for r in records:
            if r.owner != STEP:
                _add(parts, (group_of(r.owner), r.phase), [], r.latency_ms)
        yield step, parts


def _add(parts: Parts, part: tuple[str, str], operators: list[Cost], ms: float) -> None:
    before, so_far = parts.get(part, ([], 0.0))
    parts[part] = [*before, *operators], so_far + ms


def _by_group(parts: Parts) -> dict[str, tuple[list[Cost], float]]:
    """All phases together, of the groups that are compared."""
    found: dict[str, tuple[list[Cost], float]] = {name: ([], 0.0) for name in COMPARED}
    for (group, _), (operators, ms) in parts.items():
        if group in found:
            before, so_far = found[group]
            found[group] = [*before, *operators], so_far + ms
    return found


def _compared(
    step: Record, groups: dict[str, tuple[list[Cost], float]], calibration: Calibration
) -> list[dict[str, object]]:
    predicted = {
        name: time_ms(operators, calibration, step.dtype) for name, (operators, _) in groups.items()
    }
    rates = calibration.flops_per_s(step.dtype), calibration.bytes_per_s
    whole, told = sum(ms for _, ms in groups.values()), sum(predicted.values())
    rows = []
    for name, (operators, measured) in groups.items():
        band = wide_band_ms(operators, *rates, device=step.device)
        rows.append(
            {
                **step.to_row(),
                "owner": name,
                "measured_ms": measured,
                "predicted_ms": predicted[name],
                "low_ms": band.low,
                "high_ms": band.high,
                "error": predicted[name] / measured - 1,
                "share": measured / whole,
                "share_error": predicted[name] / told - measured / whole,
            }
        )
    return rows


def median_absolute(rows: list[dict[str, object]], field: str) -> float:
    """Median of the absolute values of a field."""
    return median(abs(row[field]) for row in rows)
