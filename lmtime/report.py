"""From samples to records: intervals, work and the prediction for the same device in one row."""

from __future__ import annotations

import dataclasses
import itertools
from dataclasses import dataclass, field

import numpy as np

from lmtime import cost, stats
from lmtime.config import GCNConfig
from lmtime.cost import predict
from lmtime.errors import unknown
from lmtime.hardware import Calibration
from lmtime.records import GROUPS, STEP, Provenance, Record, group_of
from lmtime.timing import Breakdown, StopRule
from lmtime.timing.conditions import find_device

PHASES = {"train": predict.TRAIN_PHASES, "forward": predict.FORWARD_PHASES}
DTYPES = ("fp32", "tf32", "bf16")


@dataclass(frozen=True)
class Setup:
    """How a configuration is measured."""

    device: str = "auto"
    dtype: str = "fp32"
    phase: str = "train"
    corpus: str = "movie-reviews"
    seed: int = 0
    rule: StopRule = field(default_factory=StopRule)

    def __post_init__(self) -> None:
        if self.dtype not in DTYPES:
            raise unknown("dtype", self.dtype, list(DTYPES))
        if self.phase not in PHASES:
            raise unknown("phase", self.phase, list(PHASES))
        object.__setattr__(self, "device", find_device(self.device))


def records_of(
    model: str, config: GCNConfig, setup: Setup, breakdown: Breakdown, conditions: Provenance
) -> list[Record]:
    """The measured columns: one row a part, then the step."""
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
        quality=breakdown.quality,
    )
    return [Record(**row, **common) for row in breakdown.rows(seed=setup.seed)]


def with_work(
    rows: list[Record],
    config: GCNConfig,
    setup: Setup,
    hits: np.ndarray,
    calibration: Calibration,
) -> list[Record]:
    """FLOPs, bytes and parameters of each part, and the roofline prediction for this device.

    The analytic bytes are those of 4-byte values; under bf16 they and the prediction stay unknown.
    """
    operators = predict.costs(config, hits.tolist(), PHASES[setup.phase])
    owned = cost.parameters(config)
    owned |= dict.fromkeys((predict.OPTIMIZER, STEP), sum(owned.values()))
    bands = predict.bands(operators, calibration, rated(setup.dtype))
    whole = (STEP, STEP)
    operators[whole] = list(itertools.chain(*operators.values()))
    shares = cost.shares(bands) | {whole: (1.0, 1.0, 1.0)}
    bands[whole] = sum(bands.values(), cost.Band(0, 0))
    done = []
    for row in rows:
        part = (row.owner, row.phase)
        work = sum(operators.get(part, []), cost.Cost(0, 0))
        row = dataclasses.replace(row, flops=work.flops, parameters=int(owned.get(row.owner, 0)))
        if setup.dtype != "bf16":
            band = bands.get(part, cost.Band(0, 0))
            row = dataclasses.replace(
                row,
                bytes=work.bytes,
                predicted_ms_low=band.low,
                predicted_ms_high=band.high,
                predicted_share=shares.get(part, (0.0,))[0],
            )
        done.append(row)
    return done


def rated(dtype: str) -> str:
    """The precision whose measured rate stands for a dtype: bf16 is not predicted yet."""
    return "fp32" if dtype == "bf16" else dtype


def rates(calibration: Calibration) -> dict[str, object]:
    """The measured rates that the prediction rests on."""
    return {
        "matmul_flops_per_s": calibration.matmul_flops_per_s,
        "bytes_per_s": calibration.bytes_per_s,
    }


def notes(breakdown: Breakdown, hits: np.ndarray) -> dict[str, object]:
    """What the reader of the rows should know of the run."""
    inflation = breakdown.inflation
    return {
        "inflation": inflation.ratio,
        "inflation_low": inflation.low,
        "inflation_high": inflation.high,
        "plain_ms_median": float(np.median(breakdown.plain_ms)),
        "n_warmup": breakdown.n_warmup,
        "warmed_up": breakdown.warmed_up,
        "n_outliers": int(stats.outliers(breakdown.totals_ms).sum()),
        "tail_hits": [float(h) for h in hits],
        "groups": _groups(breakdown),
    }


def _groups(breakdown: Breakdown) -> dict[str, dict[str, float]]:
    """Share of the step of each group of owners, all phases together, with its interval."""
    columns = {
        name: [i for i, (owner, _) in enumerate(breakdown.parts) if group_of(owner) == name]
        for name in GROUPS
    }
    rng = np.random.default_rng(0)
    found = stats.share_intervals(breakdown.samples_ms, rng, groups=list(columns.values()))
    return {
        name: {"share": float(share), "share_low": float(low), "share_high": float(high)}
        for name, share, low, high in zip(columns, found.shares, found.low, found.high, strict=True)
    }
