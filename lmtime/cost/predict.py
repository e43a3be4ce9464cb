"""From a configuration and a device to predicted records. Standard library only."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

from lmtime.calibration import Calibration
from lmtime.config import GCNConfig, HuggingFaceConfig, ModelConfig, TransformerConfig
from lmtime.cost.gcn import OPTIMIZER, gcn
from lmtime.cost.gcn import parameters as gcn_parameters
from lmtime.cost.huggingface import huggingface
from lmtime.cost.huggingface import is_known as is_known_huggingface
from lmtime.cost.huggingface import parameters as huggingface_parameters
from lmtime.cost.operators import Cost
from lmtime.cost.output_layers import Rows
from lmtime.cost.roofline import Band, band_ms, shares
from lmtime.cost.transformer import parameters as transformer_parameters
from lmtime.cost.transformer import transformer
from lmtime.cost.zipf import LAWS, tail_tokens
from lmtime.errors import UsageError, unknown
from lmtime.hardware import Gpu
from lmtime.records import STEP, Record

DTYPES = ("fp32", "tf32")  # precisions of the matrix products; all values are 4 bytes in memory
FORWARD_PHASES = ("forward",)
TRAIN_PHASES = ("forward", "backward", OPTIMIZER)


def is_known(config: ModelConfig) -> bool:
    """Whether there are formulas for this model; others are measured and counted only."""
    return not isinstance(config, HuggingFaceConfig) or is_known_huggingface(config)


def expected_hits(config: ModelConfig) -> list[float]:
    """Targets in each tail cluster by the law of the model's corpus; none without clusters."""
    if isinstance(config, HuggingFaceConfig):
        return []
    law = LAWS[config.corpus]
    return tail_tokens(config.n_tokens, config.cutoffs, config.vocab_size, law)


def costs(
    config: ModelConfig,
    hits: Sequence[float] | None = None,
    phases: tuple[str, ...] = TRAIN_PHASES,
) -> dict[tuple[str, str], list[Cost]]:
    """{(owner, phase): operators}; hits: targets in each tail cluster, else those of the law."""
    rows = _rows(config, expected_hits(config) if hits is None else hits)
    return {part: ops for part, ops in rows.items() if part[1] in phases}


def _rows(config: ModelConfig, hits: Sequence[float]) -> Rows:
    if isinstance(config, GCNConfig):
        return gcn(config, hits)
    if isinstance(config, TransformerConfig):
        return transformer(config, hits)
    _require_known(config)
    return huggingface(config)


def parameters(config: ModelConfig) -> dict[str, float]:
    """{owner: number of trainable values}."""
    if isinstance(config, GCNConfig):
        return gcn_parameters(config)
    if isinstance(config, TransformerConfig):
        return transformer_parameters(config)
    _require_known(config)
    return huggingface_parameters(config)


def _require_known(config: HuggingFaceConfig) -> None:
    if not is_known(config):
        raise UsageError(
            f"there are no formulas for a {config.model_type}: measure it with lmtime profile"
        )


def bands(
    operators: dict[tuple[str, str], list[Cost]], device: Gpu | Calibration, dtype: str
) -> dict[tuple[str, str], Band]:
    """The roofline band of each part on a device."""
    if dtype not in DTYPES:
        raise unknown("dtype of a prediction", dtype, list(DTYPES))
    rates = device.flops_per_s(dtype), device.bytes_per_s
    return {part: band_ms(ops, *rates) for part, ops in operators.items()}


def predict(
    model: str, config: ModelConfig, device: Gpu | Calibration, *, dtype: str = "fp32"
) -> list[Record]:
    """One record a part of a training step, and one for the step: the middle of the band.

    Nothing is measured: launches, waiting and inefficiency are not in it.
    """
    operators = costs(config)
    found = bands(operators, device, dtype)
    part_shares = shares(found)
    owned = dict(parameters(config))
    owned[OPTIMIZER] = sum(owned.values())
    name, title = _names(device)
    rows = [
        Record(
            run_id="prediction",
            study="predict",
            kind="predicted",
            model=model,
            config=dataclasses.asdict(config),
            device=name,
            device_name=title,
            dtype=dtype,
            n_threads=getattr(device, "n_threads", None),
            owner=owner,
            phase=phase,
            latency_ms=band.middle,
            latency_ms_low=band.low,
            latency_ms_high=band.high,
            share=part_shares[owner, phase][0],
            share_low=part_shares[owner, phase][1],
            share_high=part_shares[owner, phase][2],
            flops=sum(op.flops for op in operators[owner, phase]),
            bytes=sum(op.bytes for op in operators[owner, phase]),
            parameters=int(owned.get(owner, 0)),
        )
        for (owner, phase), band in found.items()
    ]
    return [*rows, step_row(rows)]


def step_row(rows: list[Record], **changes: object) -> Record:
    """The whole step: times, work and shares are the sums of the parts."""
    totals = {
        name: sum(getattr(r, name) for r in rows)
        for name in ("latency_ms", "latency_ms_low", "latency_ms_high", "flops", "bytes")
    }
    owned = {r.owner: r.parameters for r in rows if r.owner != OPTIMIZER}
    whole = dict(owner=STEP, phase=STEP, share=1.0, share_low=1.0, share_high=1.0)
    return dataclasses.replace(
        rows[0], **(totals | whole | {"parameters": sum(owned.values())} | changes)
    )


def _names(device: Gpu | Calibration) -> tuple[str, str]:
    if isinstance(device, Gpu):
        return device.name, device.title
    return device.device, device.device_name
