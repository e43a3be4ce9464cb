"""From a configuration and a device to predicted records. Standard library only."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from lmtime.calibration import Calibration
from lmtime.config import GCNConfig, HuggingFaceConfig, ModelConfig, TransformerConfig
from lmtime.cost.calibrated import time_ms
from lmtime.cost.gcn import OPTIMIZER, gcn
from lmtime.cost.gcn import weights as gcn_weights
from lmtime.cost.huggingface import huggingface
from lmtime.cost.huggingface import is_known as is_known_huggingface
from lmtime.cost.huggingface import weights as huggingface_weights
from lmtime.cost.operators import Cost
from lmtime.cost.optimizers import FOREACH, LOOP, Optimizer, find_optimizer
from lmtime.cost.output_layers import Rows
from lmtime.cost.precision import FP32, PRECISIONS, Precision, peak_rate, widened
from lmtime.cost.roofline import Band, band_ms, shares
from lmtime.cost.segments import Host, host_bound_share, host_of, in_order, part_s, segments
from lmtime.cost.transformer import transformer
from lmtime.cost.transformer import weights as transformer_weights
from lmtime.cost.zipf import LAWS, tail_tokens
from lmtime.errors import UsageError, unknown
from lmtime.hardware import Gpu
from lmtime.records import STEP, Record

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
    *,
    optimizer: Optimizer | None = None,
    precision: Precision = FP32,
) -> dict[tuple[str, str], list[Cost]]:
    """{(owner, phase): operators}.

    hits: targets in each tail cluster, else those of the law. optimizer: what the model is trained
    with, else its own, on a CPU.
    """
    hits = expected_hits(config) if hits is None else hits
    options = dict(optimizer=optimizer or optimizer_of(config), value_bytes=precision.value_bytes)
    rows = widened(_rows(config, hits, options), config, precision)
    return {part: ops for part, ops in rows.items() if part[1] in phases}


def _rows(config: ModelConfig, hits: Sequence[float], options: dict[str, Any]) -> Rows:
    if isinstance(config, GCNConfig):
        return gcn(config, hits, **options)
    if isinstance(config, TransformerConfig):
        return transformer(config, hits, **options)
    _require_known(config)
    return huggingface(config, **options)


def optimizer_name(config: ModelConfig) -> str:
    """What such a model is trained with unless told otherwise."""
    return "adamw" if isinstance(config, HuggingFaceConfig) else "nesterov"


def optimizer_of(config: ModelConfig, name: str | None = None, device: str = "cpu") -> Optimizer:
    """By its name, or the model's own, as torch runs it on a kind of device ("cpu" or not)."""
    way = LOOP if device == "cpu" else FOREACH
    return find_optimizer(name or optimizer_name(config), unfused=way)


def parameters(config: ModelConfig) -> dict[str, float]:
    """{owner: number of trainable values}."""
    return {owner: sum(sizes) for owner, sizes in weights(config).items()}


def weights(config: ModelConfig) -> dict[str, list[float]]:
    """{owner: size of each tensor of trainable values}."""
    if isinstance(config, GCNConfig):
        return gcn_weights(config)
    if isinstance(config, TransformerConfig):
        return transformer_weights(config)
    _require_known(config)
    return huggingface_weights(config)


def _require_known(config: HuggingFaceConfig) -> None:
    if not is_known(config):
        raise UsageError(
            f"there are no formulas for a {config.model_type}: measure it with lmtime profile"
        )


def bands(
    operators: dict[tuple[str, str], list[Cost]], device: Gpu | Calibration, dtype: str
) -> dict[tuple[str, str], Band]:
    """The roofline band of each part on a device, without launches and waits."""
    rates = peak_rate(device, find_precision(dtype)), device.bytes_per_s
    return {part: band_ms(ops, *rates) for part, ops in operators.items()}


def find_precision(dtype: str) -> Precision:
    """By its name in a prediction."""
    if dtype not in PRECISIONS:
        raise unknown("dtype of a prediction", dtype, list(PRECISIONS))
    return PRECISIONS[dtype]


@dataclass(frozen=True)
class Expected:
    """Time of one part in ms.

    low: the roofline at best, with no launch and no wait. middle: the middle of the roofline, with
    the time that the device waits for the host; by a calibration that ended with steps, what they
    say. high: nothing overlaps.
    """

    low: float
    middle: float
    high: float


def expected_ms(
    operators: Rows, device: Gpu | Calibration, dtype: str, host: Host
) -> dict[tuple[str, str], Expected]:
    """Of each part of a step on a device; host: what launches and waits cost."""
    found = bands(operators, device, dtype)
    seconds = part_s(operators, _device_s(device, dtype), host)
    fixed = {
        part: sum(op.launches * host.launch_s + op.syncs * host.sync_s for op in ops)
        for part, ops in operators.items()
    }
    roofline = {
        part: Expected(band.low, 1e3 * seconds[part], band.high + 1e3 * fixed[part])
        for part, band in found.items()
    }
    if isinstance(device, Gpu) or not device.in_step:
        return roofline
    return {part: _in_step(roofline[part], ops, device, dtype) for part, ops in operators.items()}


def _in_step(
    roofline: Expected, operators: Sequence[Cost], device: Calibration, dtype: str
) -> Expected:
    """As steps that were measured say; the roofline's ends make room for it."""
    ms = time_ms(operators, device, find_precision(dtype).rate)
    return Expected(min(roofline.low, ms), ms, max(roofline.high, ms))


def waiting(operators: Rows, device: Gpu | Calibration, dtype: str) -> dict[str, float]:
    """How often the host launches and waits in a step, and how long the device waits for it."""
    host = host_of(device)
    ordered = [op for _, op in in_order(operators)]
    found = segments(ordered, _device_s(device, dtype), host)
    return {
        "launches": sum(op.launches for op in ordered),
        "syncs": sum(op.syncs for op in ordered),
        "host_bound_share": host_bound_share(found, host),
    }


def _device_s(device: Gpu | Calibration, dtype: str) -> Callable[[Cost], float]:
    rates = peak_rate(device, find_precision(dtype)), device.bytes_per_s
    return lambda op: 1e-3 * band_ms([op], *rates).middle


def predict(
    model: str,
    config: ModelConfig,
    device: Gpu | Calibration,
    *,
    dtype: str = "fp32",
    optimizer: str | None = None,
) -> list[Record]:
    """One record a part of a training step, and one for the step: its times are `Expected`.

    dtype: a name of `cost.precision.PRECISIONS`. optimizer: of `cost.optimizers.NAMES`, else the
    model's own. Nothing is measured: inefficiency is not in it.
    """
    operators = step_costs(config, device, dtype, optimizer)
    found = expected_ms(operators, device, dtype, host_of(device))
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


def step_costs(
    config: ModelConfig, device: Gpu | Calibration, dtype: str, optimizer: str | None = None
) -> Rows:
    """Operators of a training step, as such a device runs them."""
    update = optimizer_of(config, optimizer, _names(device)[0])
    return costs(config, optimizer=update, precision=find_precision(dtype))


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
