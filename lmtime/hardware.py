"""What a device can do at most: published dense peaks of GPUs, and the bound of a CPU.

Standard library only.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Protocol

from lmtime.errors import UsageError, unknown

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

    @property
    def margin(self) -> float:
        """How far above its published peak a card may be measured.

        Cards for play raise their clock above the boost clock that their peak is computed from;
        5 % is for what is rounded.
        """
        return 1.25 if self.title.startswith(("GeForce", "Titan")) else 1.05

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


# What torch.cuda.get_device_name() reports, without the maker's words; others have no row.
REPORTED = {
    "gtx-1080-ti": "gtx-1080-ti",
    "titan-x-(pascal)": "titan-x-pascal",
    "titan-xp": "titan-xp",
    "p100-sxm2-16gb": "p100-sxm2",
    "p100-pcie-16gb": "p100-pcie",
    "v100-sxm2-16gb": "v100-sxm2",
    "v100-sxm2-32gb": "v100-sxm2",
    "v100-pcie-16gb": "v100-pcie",
    "v100-pcie-32gb": "v100-pcie",
    "t4": "t4",
    "rtx-2080-ti": "rtx-2080-ti",
    "rtx-3090": "rtx-3090",
    "rtx-4090": "rtx-4090",
    "a100-sxm4-40gb": "a100-sxm-40gb",
    "a100-sxm4-80gb": "a100-sxm-80gb",
    "l4": "l4",
    "l40s": "l40s",
    "h100-80gb-hbm3": "h100-sxm",
    "h100-pcie": "h100-pcie",
    "h200": "h200-sxm",
    "b200": "b200-sxm",
}


def gpu_of(device_name: str) -> Gpu | None:
    """The row of GPUS for the name that a driver reports, or None where there is none."""
    words = [w for w in _key(device_name).split("-") if w not in ("nvidia", "tesla", "geforce")]
    key = REPORTED.get("-".join(words))
    return None if key is None else GPUS[key]


def find_gpu(name: str) -> Gpu:
    """The row of GPUS with this key or title; case, spaces and underscores do not matter."""
    by_title = {_key(gpu.title): gpu for gpu in GPUS.values()}
    found = GPUS.get(_key(name)) or by_title.get(_key(name))
    if found is None:
        raise unknown("GPU", name, list(GPUS))
    return found


# -- sanity: what cannot be ---------------------------------------------------------------------


def check_rate(
    name: str,
    achieved: float,
    peak: float,
    *,
    margin: float = 1.05,
    bound: str = "published peak",
) -> None:
    """Raise where a rate was measured or implied that the device cannot reach.

    achieved, peak: FLOPs or bytes per second; peak is infinite where nothing bounds the rate.
    bound: what the peak is called.
    Both known errors of this kind were wrong by orders of magnitude (PyTorch issues 119806 and
    145947): of a timing that does not wait for the device, or of work that was miscounted.
    """
    if not math.isfinite(achieved) or achieved <= 0:
        raise RuntimeError(
            f"measured {name}: {achieved} per second is no rate: the timing is wrong; measure again"
        )
    if achieved > margin * peak:
        raise RuntimeError(
            f"measured {name}: {achieved:.4g} per second is above the {bound} of "
            f"{peak:.4g}: the timing is wrong; measure again, and if it stays so report it"
        )


def utilisation(flops: float, seconds: float, device: Gpu, dtype: str) -> float:
    """Model FLOPs utilisation: the part of the dense peak that `flops` in `seconds` reach."""
    if not seconds > 0:
        raise UsageError(f"seconds={seconds!r} must be greater than 0")
    peak = device.flops_per_s(dtype)
    if flops:
        check_rate(f"{dtype} arithmetic", flops / seconds, peak, margin=device.margin)
    return flops / seconds / peak


def memory_bound(bytes_per_s: float, n_bytes: float, cache_bytes: float) -> float:
    """The most that a repeated pass over n_bytes can seem to move per second.

    At most what the cache holds need not be moved; what fits into it is not bounded.
    """
    if n_bytes <= cache_bytes:
        return math.inf
    return bytes_per_s / (1 - cache_bytes / n_bytes)


# FLOPs that a core retires per cycle at most, by the flag in /proc/cpuinfo that brings them, the
# widest first: two units of fused multiply-adds on vectors of 512, 256 bit (Intel optimization
# manual; wikichip.org); bf16 by AVX512_BF16 and by AMX tiles.
CPU_FLOPS_PER_CYCLE = {
    "fp32": {"avx512f": 64, "fma": 32},
    "fp16": {"amx_fp16": 1024, "avx512_fp16": 128, "avx512f": 64, "fma": 32},
    "bf16": {"amx_bf16": 1024, "avx512_bf16": 128, "avx512f": 64, "fma": 32},
}


def cpu_peak_flops_per_s(dtype: str, cpuinfo: str, n_cores: int, max_hz: float | None) -> float:
    """A bound of a CPU's arithmetic: cores x clock x FLOPs per cycle; infinite where unknown.

    cpuinfo: text of /proc/cpuinfo. max_hz: the highest clock; where it is unknown twice the one
    in `cpuinfo`, which is the present or, in a virtual machine, the nominal one.
    """
    facts = dict(
        (part.strip() for part in line.split(":", 1))
        for line in cpuinfo.splitlines()
        if ":" in line
    )
    flags = set(facts.get("flags", "").split())
    widths = CPU_FLOPS_PER_CYCLE.get(dtype, {})
    per_cycle = next((flops for flag, flops in widths.items() if flag in flags), math.inf)
    hz = max_hz or 2e6 * float(facts.get("cpu MHz", math.inf))
    return n_cores * hz * per_cycle
