"""What a device can do: published dense peaks of GPUs, and what a device was measured to do.

Standard library only.
"""

from __future__ import annotations

import json
import math
from dataclasses import dataclass, field
from pathlib import Path
from typing import Protocol

from lmtime.errors import UsageError, unknown
from lmtime.records import SCHEMA, document, write_text

PRECISIONS = ("fp32", "tf32", "fp16", "bf16")


class Device(Protocol):
    """The two rates that a roofline needs, published (Gpu) or measured (Calibration)."""

    @property
    def bytes_per_s(self) -> float:
        """Memory traffic, read and written together."""

    def flops_per_s(self, dtype: str) -> float:
        """Dense matrix arithmetic; one multiply-add is two FLOPs."""


def ridge(device: Device, dtype: str) -> float:
    """FLOPs per byte at which arithmetic and memory traffic take the same time."""
    return device.flops_per_s(dtype) / device.bytes_per_s


@dataclass(frozen=True)
class Gpu:
    """Published peaks of one GPU: dense (no sparsity), accumulated in fp32, decimal units.

    None is a precision that the hardware does not speed up, or a size without a source.
    Caches are built in powers of two, so `l2_bytes` counts 1024**2 to the megabyte.
    """

    name: str  # its key in GPUS
    title: str
    fp32_flops_per_s: float
    tf32_flops_per_s: float | None
    fp16_flops_per_s: float | None
    bf16_flops_per_s: float | None
    bytes_per_s: float
    l2_bytes: int | None
    source: str

    def flops_per_s(self, dtype: str) -> float:
        """Peak rate in `dtype`, one of PRECISIONS."""
        if dtype not in PRECISIONS:
            raise unknown("precision", dtype, list(PRECISIONS))
        rates = {name: getattr(self, f"{name}_flops_per_s") for name in PRECISIONS}
        if rates[dtype] is None:
            has = ", ".join(name for name in PRECISIONS if rates[name] is not None)
            raise UsageError(f"{self.title} has no {dtype} arithmetic of its own: choose {has}")
        return rates[dtype]


def _gpu(
    name: str,
    title: str,
    tflops: tuple[float, float | None, float | None, float | None],
    gb_per_s: float,
    l2_mib: float | None,
    source: str,
) -> Gpu:
    """A row in the units of datasheets; `tflops` stands in the order of PRECISIONS."""
    rates = [None if rate is None else rate * 1e12 for rate in tflops]
    l2_bytes = None if l2_mib is None else round(l2_mib * 2**20)
    return Gpu(name, title, *rates, gb_per_s * 1e9, l2_bytes, source)


_ROWS = (
    _gpu("gtx-1080-ti", "GeForce GTX 1080 Ti", (11.34, None, None, None), 484, 2.75,
         "3584 cores x 1582 MHz x 2 and 352 bit x 11 Gb/s (clocks: Tom's Hardware, History of "
         "Nvidia GPUs); L2 2816 KB (Vortez review); fp16 runs at 1/64 of fp32"),
    _gpu("titan-x-pascal", "Titan X (Pascal)", (10.97, None, None, None), 480, 3,
         "3584 cores x 1531 MHz x 2 and 384 bit x 10 Gb/s (clocks: Tom's Hardware, History of "
         "Nvidia GPUs); L2 3072 KB of the GP102 chip (GameGPU); fp16 runs at 1/64 of fp32"),
    _gpu("titan-xp", "Titan Xp", (12.15, None, None, None), 548, 3,
         "3840 cores x 1582 MHz x 2 and 384 bit x 11.4 Gb/s (clocks: Tom's Hardware, History of "
         "Nvidia GPUs; 547.7 GB/s: Techgage); L2 3072 KB of the GP102 chip (GameGPU); fp16 runs "
         "at 1/64 of fp32"),
    _gpu("p100-sxm2", "Tesla P100 SXM2", (10.6, None, 21.2, None), 732, 4,
         "NVIDIA P100 datasheet as quoted by xformers; fp16 without tensor cores"),
    _gpu("p100-pcie", "Tesla P100 PCIe 16 GB", (9.5, None, 19.05, None), 732, 4,
         "NVIDIA P100 datasheet as quoted by xformers; fp16 without tensor cores; bandwidth and "
         "L2 of the same chip on SXM2"),
    _gpu("v100-sxm2", "Tesla V100 SXM2", (15.7, None, 125, None), 900, 6,
         "NVIDIA V100 datasheet as quoted by Lightning and xformers"),
    _gpu("v100-pcie", "Tesla V100 PCIe", (14, None, 112, None), 900, 6,
         "NVIDIA V100 datasheet as quoted by Lightning and xformers; L2 of the same chip on SXM2"),
    _gpu("t4", "Tesla T4", (8.1, None, 65, None), 320, 4,
         "NVIDIA T4 datasheet as quoted by Lightning (xformers counts 300 GB/s); 70 W, so the "
         "clock falls under load"),
    _gpu("rtx-2080-ti", "GeForce RTX 2080 Ti", (13.45, None, 53.8, None), 616, 5.5,
         "reference card, the lower of reference and Founders Edition (14.2 and 56.9 TFLOP/s): "
         "4352 cores x 1545 MHz x 2 (clocks: Guru3D); fp16 is half of the rate with fp16 "
         "accumulation and, like the L2, quoted from memory of the Turing whitepaper: check"),
    _gpu("rtx-3090", "GeForce RTX 3090", (35.6, 35.6, 71, 71), 936, 6,
         "NVIDIA GA102 whitepaper, appendix A; fp16 and bf16 accumulate in fp32 at half of the "
         "142 TFLOP/s with fp16 accumulation"),
    _gpu("rtx-4090", "GeForce RTX 4090", (82.6, 82.6, 165.2, 165.2), 1008, 72,
         "waredb and, for the L2, Notebookcheck; gpu-unlock-ada measured 165.6 and 165.5 TFLOP/s; "
         "fp16 accumulates in fp32 at half of the 330 TFLOP/s with fp16 accumulation"),
    _gpu("a100-sxm-40gb", "A100 SXM 40 GB", (19.5, 156, 312, 312), 1555, 40,
         "NVIDIA A100 datasheet as quoted by llm-analysis, torch inductor and stas00"),
    _gpu("a100-sxm-80gb", "A100 SXM 80 GB", (19.5, 156, 312, 312), 2039, 40,
         "NVIDIA A100 datasheet as quoted by llm-analysis, torch inductor and stas00"),
    _gpu("l4", "L4", (30.3, 60, 121, 121), 300, 48,
         "NVIDIA L4 datasheet as quoted by Grokipedia, halved: it prints 120 and 242 TFLOP/s with "
         "sparsity; L2 48 MB (cputronic)"),
    _gpu("l40s", "L40S", (91.6, 183, 362, 362), 864, 96,
         "NVIDIA L40S datasheet as quoted by mullet.se and stas00, the values without sparsity; "
         "L2 from memory and pages disagree (48 to 96 MB): check"),
    _gpu("h100-sxm", "H100 SXM5", (67, 494.5, 989, 989), 3350, 50,
         "NVIDIA H100 datasheet as quoted by Lightning and stas00, halved: it prints values with "
         "sparsity"),
    _gpu("h100-pcie", "H100 PCIe", (51, 378, 756, 756), 2000, 50,
         "NVIDIA H100 datasheet as quoted by Lightning and stas00, halved: it prints values with "
         "sparsity; L2 of the same chip on SXM5"),
    _gpu("h200-sxm", "H200 SXM", (67, 494.5, 989, 989), 4800, 50,
         "arithmetic of the H100, the same chip; bandwidth as quoted by stas00 and itkb.uw.cz"),
    _gpu("b200-sxm", "B200 SXM (HGX)", (75, 1100, 2250, 2250), 7700, None,
         "glennklockwood.com, hmc-tech and torchtitan PR 1203, the lower value where they differ: "
         "fp32 75 to 80, tf32 1100 to 1125 TFLOP/s, 7.7 to 8.0 TB/s; they give 65 to 126 MB of L2, "
         "so none is given here"),
)  # fmt: skip

GPUS: dict[str, Gpu] = {gpu.name: gpu for gpu in _ROWS}


def _key(name: str) -> str:
    return "-".join(name.lower().replace("_", " ").replace("-", " ").split())


def find_gpu(name: str) -> Gpu:
    """The row of GPUS with this key or title; case, spaces and underscores do not matter."""
    by_title = {_key(gpu.title): gpu for gpu in GPUS.values()}
    found = GPUS.get(_key(name)) or by_title.get(_key(name))
    if found is None:
        raise unknown("GPU", name, list(GPUS))
    return found


@dataclass(frozen=True)
class Calibration:
    """What a device was measured to do: the rates that large calls reach.

    matmul_flops_per_s: rate of large matrix products by dtype. bytes_per_s: rate of large
    copies, bytes read and written together. Rates are positive and finite.
    """

    device: str  # "cpu" or "cuda"
    device_name: str
    n_threads: int | None
    matmul_flops_per_s: dict[str, float]
    bytes_per_s: float
    provenance: dict[str, object] = field(default_factory=dict)

    def __post_init__(self) -> None:
        for name in ("device", "device_name"):
            value = getattr(self, name)
            if not isinstance(value, str) or not value:
                raise UsageError(f"{name}={value!r} must be a text that is not empty")
        threads = self.n_threads
        if threads is not None and (type(threads) is not int or threads < 1):
            raise UsageError(f"n_threads={threads!r} must be a whole number of at least 1, or null")
        if not self.matmul_flops_per_s:
            raise UsageError("flops_per_s is missing: at least one dtype must have been measured")
        for dtype, rate in self.matmul_flops_per_s.items():
            if dtype not in PRECISIONS:
                raise unknown("dtype", dtype, list(PRECISIONS))
            _require_rate(f"flops_per_s of {dtype}", rate)
        _require_rate("bytes_per_s", self.bytes_per_s)

    def flops_per_s(self, dtype: str) -> float:
        """Measured rate of large matrix products in `dtype`."""
        if dtype not in self.matmul_flops_per_s:
            has = ", ".join(self.matmul_flops_per_s)
            raise UsageError(
                f"the calibration of {self.device_name} has no {dtype} rate: choose {has}, "
                f"or measure again with lmtime calibrate"
            )
        return self.matmul_flops_per_s[dtype]

    def to_json(self) -> str:
        """The document of `lmtime calibrate`: one row a dtype."""
        rows = [{"dtype": d, "flops_per_s": r} for d, r in self.matmul_flops_per_s.items()]
        facts = {
            "device": self.device,
            "device_name": self.device_name,
            "n_threads": self.n_threads,
            "bytes_per_s": self.bytes_per_s,
        }
        whole = document("calibrate", self.provenance, rows, **facts)
        return json.dumps(whole, indent=2, ensure_ascii=False, allow_nan=False) + "\n"

    @classmethod
    def from_json(cls, text: str, origin: str = "calibration") -> Calibration:
        """The inverse of `to_json`; a mistake names `origin` (the file) and the field."""
        try:
            return cls._from_document(json.loads(text))
        except json.JSONDecodeError as error:
            raise UsageError(
                f"{origin}, line {error.lineno} is not JSON ({error.msg}): "
                f"measure again with lmtime calibrate"
            ) from None
        except UsageError as error:
            raise UsageError(f"{origin}: {error}") from None

    @classmethod
    def _from_document(cls, whole: object) -> Calibration:
        if not isinstance(whole, dict):
            raise UsageError("must be a JSON object, as lmtime calibrate writes it")
        if (schema := whole.get("schema")) != SCHEMA:
            raise UsageError(f"schema={schema!r} is not known: this version reads {SCHEMA!r}")
        rows = _require(whole, "rows", list)
        for row in rows:
            if not isinstance(row, dict) or not isinstance(row.get("dtype"), str):
                raise UsageError("rows must be objects with a dtype and its flops_per_s")
        return cls(
            device=_require(whole, "device", str),
            device_name=_require(whole, "device_name", str),
            n_threads=whole.get("n_threads"),
            matmul_flops_per_s={row["dtype"]: row.get("flops_per_s") for row in rows},
            bytes_per_s=whole.get("bytes_per_s"),
            provenance=_require(whole, "provenance", dict),
        )


def _require(whole: dict, name: str, kind: type) -> object:
    if not isinstance(whole.get(name), kind):
        plain = {str: "a text", list: "a list", dict: "an object"}[kind]
        raise UsageError(f"{name}={whole.get(name)!r} must be {plain}")
    return whole[name]


def _require_rate(name: str, rate: object) -> None:
    is_number = isinstance(rate, int | float) and not isinstance(rate, bool)
    if not is_number or not math.isfinite(rate) or rate <= 0:
        raise UsageError(f"{name}={rate!r} must be a finite number greater than 0")


def read_calibration(path: Path) -> Calibration:
    """The calibration that `write_calibration` put into the file `path`."""
    try:
        text = Path(path).read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise UsageError(
            f"{path} cannot be read ({error}): write it with lmtime calibrate --out"
        ) from None
    return Calibration.from_json(text, origin=str(path))


def write_calibration(path: Path, calibration: Calibration) -> None:
    """Write the calibration as one JSON document, the whole file or nothing."""
    write_text(Path(path), calibration.to_json())
