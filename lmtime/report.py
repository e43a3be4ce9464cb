"""From samples to records: intervals, work and the prediction for the same device in one row."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass, field

import numpy as np

from lmtime import cost, stats
from lmtime.calibration import Calibration
from lmtime.config import ModelConfig
from lmtime.cost import predict
from lmtime.cost.optimizers import find_optimizer
from lmtime.errors import UsageError, unknown
from lmtime.records import GROUPS, STEP, Provenance, Record, group_of
from lmtime.timing import Breakdown, StopRule
from lmtime.timing.conditions import find_device
from lmtime.timing.flops import Work
from lmtime.timing.observation import Observation
from lmtime.timing.trace import Trace

PHASES = {"train": predict.TRAIN_PHASES, "forward": predict.FORWARD_PHASES}
DTYPES = ("fp32", "tf32", "bf16")


FORWARD = "forward"
TRACED = ("kernels", "syncs", "page_faults", "busy_ms", "idle_ms")


@dataclass(frozen=True)
class Setup:
    """How a configuration is measured; no corpus and no optimizer are the model's own."""

    device: str = "auto"
    dtype: str = "fp32"
    phase: str = "train"
    corpus: str | None = None
    seed: int = 0
    rule: StopRule = field(default_factory=StopRule)
    optimizer: str | None = None

    def __post_init__(self) -> None:
        if self.dtype not in DTYPES:
            raise unknown("dtype", self.dtype, list(DTYPES))
        if self.phase not in PHASES:
            raise unknown("phase", self.phase, list(PHASES))
        if self.optimizer is not None:
            find_optimizer(self.optimizer)
            if self.phase == "forward":
                raise UsageError(
                    f"optimizer {self.optimizer!r} has nothing to update in phase forward: "
                    f"leave it out, or choose train"
                )
        object.__setattr__(self, "device", find_device(self.device))


def records_of(
    model: str, config: ModelConfig, setup: Setup, measured: Observation, conditions: Provenance
) -> list[Record]:
    """One row a part, then the step: times, counted work, and what the trace pass saw."""
    common = dict(
        run_id=conditions.run_id,
        study="profile",
        kind="measured",
        model=model,
        config=dataclasses.asdict(config),
        device=setup.device,
        device_name=conditions.device_name,
        dtype=setup.dtype,
        n_threads=conditions.n_threads,
        quality=measured.quality,
    )
    owned = measured.parameters | dict.fromkeys(
        (predict.OPTIMIZER, STEP), sum(measured.parameters.values())
    )
    traced = _traced(measured.trace)
    rows = []
    for row in measured.breakdown.rows(seed=setup.seed):
        part = (row["owner"], row["phase"])
        more = {"parameters": owned.get(part[0], 0)} | traced.get(part, {})
        rows.append(Record(**row, **common, **more))
    return rows


def _traced(trace: Trace) -> dict[tuple[str, str], dict[str, float]]:
    """What the trace pass saw of each part, and of the step."""
    rows = {(row["owner"], row["phase"]): row for row in trace.rows()}
    seen = {part: {name: row[name] for name in TRACED} for part, row in rows.items()}
    whole = {name: sum(row[name] for row in rows.values()) for name in TRACED}
    return seen | {(STEP, STEP): whole}


def with_prediction(
    rows: list[Record], config: ModelConfig, setup: Setup, hits: list[float], rates: Calibration
) -> list[Record]:
    """The roofline prediction for this device beside each measured row.

    Nothing is predicted for models without formulas, and under bf16, whose values differ in size.
    """
    if setup.dtype == "bf16" or not predict.is_known(config):
        return rows
    optimizer = predict.optimizer_of(config, setup.optimizer, setup.device)
    operators = predict.costs(config, hits, PHASES[setup.phase], optimizer=optimizer)
    bands = predict.bands(operators, rates, rated(setup.dtype))
    shares = cost.shares(bands) | {(STEP, STEP): (1.0, 1.0, 1.0)}
    bands[STEP, STEP] = sum(bands.values(), cost.Band(0, 0))
    nothing = cost.Band(0, 0)
    return [
        dataclasses.replace(
            row,
            predicted_ms_low=bands.get((row.owner, row.phase), nothing).low,
            predicted_ms_high=bands.get((row.owner, row.phase), nothing).high,
            predicted_share=shares.get((row.owner, row.phase), (0.0,))[0],
        )
        for row in rows
    ]


def rated(dtype: str) -> str:
    """The precision whose measured rate stands for a dtype: bf16 is not predicted yet."""
    return "fp32" if dtype == "bf16" else dtype


def rates(calibration: Calibration) -> dict[str, object]:
    """The measured rates that the prediction rests on."""
    return {
        "matmul_flops_per_s": calibration.matmul_flops_per_s,
        "bytes_per_s": calibration.bytes_per_s,
    }


def notes(measured: Observation) -> dict[str, object]:
    """What the reader of the rows should know of the run."""
    breakdown = measured.breakdown
    inflation = breakdown.inflation
    return {
        **measured.surroundings,
        "inflation": inflation.ratio,
        "inflation_low": inflation.low,
        "inflation_high": inflation.high,
        "plain_ms_median": float(np.median(breakdown.plain_ms)),
        "n_warmup": breakdown.n_warmup,
        "warmed_up": breakdown.warmed_up,
        "n_outliers": int(stats.outliers(breakdown.totals_ms).sum()),
        "drift": breakdown.drift,
        "groups": _groups(breakdown),
        "kinds": _kinds(measured.trace),
        "uncounted": measured.uncounted,
    }


def _groups(breakdown: Breakdown) -> dict[str, dict[str, float]]:
    """Share of the step of each group of owners, all phases together, with its interval.

    Beside it the group's share of the forward FLOPs: of all that were executed, and of those that
    a mask or padding does not make useless (causal attention).
    """
    columns = {
        name: [i for i, (owner, _) in enumerate(breakdown.parts) if group_of(owner) == name]
        for name in GROUPS
    }
    rng = np.random.default_rng(0)
    found = stats.share_intervals(breakdown.samples_ms, rng, groups=list(columns.values()))
    flops = _forward_flops(breakdown)
    return {
        name: {
            "share": float(share),
            "share_low": float(low),
            "share_high": float(high),
            "forward_flops_share": flops[name].flops / max(1, flops[FORWARD].flops),
            "forward_useful_flops_share": flops[name].useful_flops
            / max(1, flops[FORWARD].useful_flops),
        }
        for name, share, low, high in zip(columns, found.shares, found.low, found.high, strict=True)
    }


def _forward_flops(breakdown: Breakdown) -> dict[str, Work]:
    """Work of the forward pass, by group and (FORWARD) whole."""
    work = dict.fromkeys((*GROUPS, FORWARD), Work())
    for (owner, phase), done in breakdown.counts.by_owner.items():
        if phase == FORWARD:
            work[group_of(owner)] += done
            work[FORWARD] += done
    return work


def _kinds(trace: Trace) -> dict[str, dict[str, float]]:
    """Busy time of each kind of work in the traced step, in ms, by group of owners."""
    kinds: dict[str, dict[str, float]] = {name: {} for name in GROUPS}
    for row in trace.rows():
        of_group = kinds[group_of(row["owner"])]
        for kind, ms in (row["by_kind"] | {"idle": row["idle_ms"]}).items():
            of_group[kind] = of_group.get(kind, 0.0) + ms
    return kinds
