"""Times that others published, beside the roofline's for the same shapes. Standard library only.

A second check of the cost model, on devices that are not at hand. `data/published/README.md` says
what the columns mean and which figures are left out.
"""

from __future__ import annotations

import csv
from dataclasses import dataclass
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from lmtime.cost import Band, Cost, band_ms, parts
from lmtime.cost.operators import embedding
from lmtime.cost.output_layers import full
from lmtime.errors import UsageError
from lmtime.hardware import find_gpu
from lmtime.records import data_file

VALUE_BYTES = {"fp32": 4, "fp16": 2, "bf16": 2}
PHASES = ("forward", "backward", "forward+backward")
FIELDS = ("what", "value", "unit", "device", "dtype", "implementation", "phase", "source", "note")


@dataclass(frozen=True)
class Figure:
    """One published time. shape: sizes by their names; device: a key of `hardware.GPUS`."""

    what: str
    latency_ms: float
    device: str
    dtype: str
    implementation: str
    phase: str
    source: str
    note: str
    shape: dict[str, int]

    @property
    def predicted(self) -> Band:
        """Least and most time by the roofline, eager, at the published peaks of the device."""
        gpu, shape = find_gpu(self.device), SimpleNamespace(**self.shape)
        costs = _output_layer if "vocab_size" in self.shape else _encoder
        phases = costs(shape, VALUE_BYTES[self.dtype])
        operators = [op for phase in self.phase.split("+") for op in phases[phase]]
        return band_ms(operators, gpu.flops_per_s(self.dtype), gpu.bytes_per_s)

    def row(self) -> dict[str, Any]:
        """The time, its prediction, and the ratio to both of its ends."""
        band = self.predicted
        return {
            "what": self.what,
            "device": self.device,
            "dtype": self.dtype,
            "implementation": self.implementation,
            "phase": self.phase,
            **self.shape,
            "latency_ms": self.latency_ms,
            "predicted_ms_low": band.low,
            "predicted_ms_high": band.high,
            "ratio_to_low": self.latency_ms / band.low,
            "ratio_to_high": self.latency_ms / band.high,
            "source": self.source,
            "note": self.note,
        }


def figures(name: str) -> list[Figure]:
    """The figures of `data/published/<name>.csv`: "output_layers" or "encoders"."""
    return read_figures(data_file("published", f"{name}.csv"))


def read_figures(path: Path) -> list[Figure]:
    """Every row of a file; one that says less than a prediction needs is refused."""
    try:
        with path.open(encoding="utf-8", newline="") as lines:
            rows = list(csv.DictReader(lines))
    except OSError as error:
        raise UsageError(f"{path} cannot be read ({error.strerror})") from None
    return [_figure(row, f"{path.name}, line {i}") for i, row in enumerate(rows, 2)]


def _figure(row: dict[str, str], where: str) -> Figure:
    missing = [name for name in FIELDS if row.get(name) is None]
    missing += [name for name in ("what", "implementation", "source") if row.get(name) == ""]
    if missing:
        raise UsageError(f"{where}: {', '.join(missing)} must be given")
    if row["unit"] != "ms" or row["phase"] not in PHASES or row["dtype"] not in VALUE_BYTES:
        raise UsageError(
            f"{where}: unit {row['unit']!r} must be ms, phase {row['phase']!r} one of "
            f"{', '.join(PHASES)}, dtype {row['dtype']!r} one of {', '.join(VALUE_BYTES)}"
        )
    try:
        find_gpu(row["device"]).flops_per_s(row["dtype"])
        sizes = {name: int(row[name]) for name in row if name not in FIELDS}
        latency_ms = float(row["value"])
    except (TypeError, ValueError) as error:
        raise UsageError(f"{where}: {error}") from None
    if latency_ms <= 0 or min(sizes.values(), default=0) < 1:
        raise UsageError(f"{where}: the time and every size must be greater than 0")
    kept = {name: row[name] for name in FIELDS if name not in ("value", "unit")}
    return Figure(latency_ms=latency_ms, shape=sizes, **kept)


# Costs


def _output_layer(shape: Any, b: float) -> dict[str, list[Cost]]:
    """Product, log-softmax and gather; every tensor of the size of the logits goes to memory."""
    sizes = SimpleNamespace(final_hidden_size=shape.hidden_size, vocab_size=shape.vocab_size)
    rows = full(sizes, shape.n_tokens, (), b, in_rows=True)
    return {
        phase: [op for (_, of), ops in rows.items() if of == phase for op in ops]
        for phase in ("forward", "backward")
    }


def _encoder(shape: Any, b: float) -> dict[str, list[Cost]]:
    """Layers, and forward the lookup, of a BERT whose heads may be fewer than fill its width."""
    n, d, ffn = shape.batch_size * shape.seq_len, shape.hidden_size, shape.ffn_size
    heads, width = shape.n_heads, shape.n_heads * shape.head_size
    mixing = parts.Attention(
        shape.batch_size, shape.seq_len, heads, heads, shape.head_size, shape.seq_len**2
    )
    layer = (
        sum(parts.linear(n, d, width, b, bias=True) for _ in range(3))
        + mixing.part(b)
        + parts.linear(n, width, d, b, bias=True)
        + parts.linear(n, d, ffn, b, bias=True)
        + parts.activation("gelu", n * ffn, b)
        + parts.linear(n, ffn, d, b, bias=True)
        + sum(parts.residual(n, d, b) + parts.layer_norm(n, d, b) for _ in range(2))
    )
    return {
        "forward": [embedding(n, d, b), *(layer.forward * shape.n_layers)],
        "backward": list(layer.backward * shape.n_layers),
    }
