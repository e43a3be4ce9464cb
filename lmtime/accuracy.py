"""How far predictions are from measurements, group by group. Standard library only."""

from __future__ import annotations

from statistics import median

from lmtime.calibration import Calibration, read_calibration
from lmtime.config import configuration_of
from lmtime.cost import predict
from lmtime.cost.calibrated import product_s, time_ms
from lmtime.cost.roofline import band_ms
from lmtime.records import GROUPS, STEP, Record, Study, group_of, studies

PRODUCTS = "matrix products"  # as the trace pass calls that kind of work
COMPARED = tuple(name for name in GROUPS if name != "outside")


def compared_sets() -> list[tuple[str, list[dict[str, object]]]]:
    """(whose rows, comparisons) of every set of rows that has a full calibration beside it.

    Products are taken to be as much slower in a step as in those of the study `profile`.
    """
    found = []
    for whose, study in studies("accuracy"):
        path = study.folder / "calibration.json"
        if path.exists():
            calibration = read_calibration(path)
            factor = in_step_factor(Study(study.folder, "profile"), calibration)
            found.append((whose, comparisons(study, calibration, in_step=factor)))
    return found


def in_step_factor(study: Study, calibration: Calibration) -> float:
    """How much longer products take in a traced step than repeated alone; median of a study.

    In a step their operands come from memory, and between them other operators run.
    """
    steps = {r.run_id: r for r in study.records() if r.owner == STEP}
    factors = []
    for run_id, conditions in study.provenance().items():
        kinds, step = conditions["notes"].get("kinds"), steps[run_id]
        if kinds is None or step.quality:
            continue
        rows = predict.costs(configuration_of(step.config), conditions["notes"]["tail_hits"])
        products = (op for ops in rows.values() for op in ops if not op.only_moves)
        alone_ms = 1e3 * sum(product_s(op, calibration, step.dtype) for op in products)
        in_step_ms = sum(of_group.get(PRODUCTS, 0.0) for of_group in kinds.values())
        factors.append(in_step_ms / alone_ms)
    return median(factors) if factors else 1.0


def comparisons(
    study: Study, calibration: Calibration, *, in_step: float = 1.0
) -> list[dict[str, object]]:
    """One row a configuration and group of owners: measured, predicted, and by how much off.

    Only rows that pass their quality gate. `predicted_ms` is of the calibration, `low_ms` and
    `high_ms` are the roofline band at its two rates of large calls. `error` is relative, of the
    time; `share_error` is a difference of shares of the step, both without `outside`.
    """
    conditions = study.provenance()
    runs: dict[str, list[Record]] = {}
    for record in study.records():
        if not record.quality and record.run_id in conditions:
            runs.setdefault(record.run_id, []).append(record)
    return [
        row
        for run_id, records in runs.items()
        for row in _compared(
            records, conditions[run_id]["notes"]["tail_hits"], calibration, in_step
        )
    ]


def _compared(
    records: list[Record], hits: list[float], calibration: Calibration, in_step: float
) -> list[dict[str, object]]:
    step = next(r for r in records if r.owner == STEP)
    config = configuration_of(step.config)
    measured = dict.fromkeys(COMPARED, 0.0)
    for r in records:
        if r.owner != STEP and group_of(r.owner) in measured:
            measured[group_of(r.owner)] += r.latency_ms
    operators: dict[str, list] = {name: [] for name in COMPARED}
    for (owner, _), ops in predict.costs(config, hits).items():
        if group_of(owner) in operators:
            operators[group_of(owner)] += ops
    predicted = {
        name: time_ms(ops, calibration, step.dtype, in_step=in_step)
        for name, ops in operators.items()
    }
    rates = calibration.flops_per_s(step.dtype), calibration.bytes_per_s
    whole, told = sum(measured.values()), sum(predicted.values())
    rows = []
    for name in COMPARED:
        band = band_ms(operators[name], *rates)
        rows.append(
            {
                **step.to_row(),
                "owner": name,
                "measured_ms": measured[name],
                "predicted_ms": predicted[name],
                "low_ms": band.low,
                "high_ms": band.high,
                "error": predicted[name] / measured[name] - 1,
                "share": measured[name] / whole,
                "share_error": predicted[name] / told - measured[name] / whole,
            }
        )
    return rows


def median_absolute(rows: list[dict[str, object]], field: str) -> float:
    """Median of the absolute values of a field."""
    return median(abs(row[field]) for row in rows)
