"""The conditions of a measurement: device, versions, flags, load."""

from __future__ import annotations

import os
import platform
import re
import subprocess
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from importlib.metadata import version
from pathlib import Path

import torch

from lmtime.errors import UsageError, unknown
from lmtime.records import Provenance
from lmtime.timing import pages

DEVICES = ("auto", "cpu", "cuda")


def find_device(name: str) -> str:
    """ "cpu" or "cuda"; "auto" takes the GPU where torch sees one."""
    if name not in DEVICES:
        raise unknown("device", name, list(DEVICES))
    if name == "auto":
        return "cuda" if torch.cuda.is_available() else "cpu"
    if name == "cuda" and not torch.cuda.is_available():
        raise UsageError("device cuda was asked for and torch sees none: use --device cpu")
    return name


def device_name(device: str) -> str:
    """What the maker calls it."""
    if device == "cuda":
        return torch.cuda.get_device_name()
    cpuinfo = Path("/proc/cpuinfo")
    text = cpuinfo.read_text(encoding="utf-8") if cpuinfo.exists() else ""
    return name_in(text) or platform.processor() or platform.machine()


def name_in(cpuinfo: str) -> str:
    """The model's name in the text of /proc/cpuinfo; "" where it has none.

    A virtual machine may hide the model: "AMD EPYC" is any of five generations, of which one takes
    half the time of another. The numbers of family and model then tell them apart.
    """
    found = dict(re.findall(r"^(model name|cpu family|model)\s*: *(.+)$", cpuinfo, re.MULTILINE))
    name = found.get("model name", "").strip()
    is_hidden = name and not re.search(r"\d", name)
    if is_hidden and {"cpu family", "model"} <= found.keys():
        name += f" (family {found['cpu family']}, model {found['model']})"
    return name


def device_slug(device: str) -> str:
    """What the maker calls it, as a part of a path."""
    return re.sub(r"[^a-z0-9]+", "-", device_name(device).lower()).strip("-")


def device_folder(device: str) -> str:
    """Name of the folder of a device's results: the device and, on a CPU, the threads."""
    name = device_slug(device)
    return name if device == "cuda" else f"{name}-{torch.get_num_threads()}-threads"


@contextmanager
def precision(dtype: str) -> Iterator[None]:
    """Matrix products and convolutions alike in the precision that is named, while inside.

    torch's own defaults differ: convolutions may use TF32 where products do not.
    """
    allow_tf32 = dtype == "tf32"
    convolutions, products = torch.backends.cudnn, torch.backends.cuda.matmul
    before = convolutions.allow_tf32, products.allow_tf32
    convolutions.allow_tf32 = products.allow_tf32 = allow_tf32
    try:
        yield
    finally:
        convolutions.allow_tf32, products.allow_tf32 = before


@contextmanager
def threads(n: int | None) -> Iterator[None]:
    """torch's threads on the CPU while inside; None leaves them as they are."""
    before = torch.get_num_threads()
    torch.set_num_threads(n or before)
    try:
        yield
    finally:
        torch.set_num_threads(before)


def load_average() -> float | None:
    """Load of the last minute, where the system tells."""
    return os.getloadavg()[0] if hasattr(os, "getloadavg") else None


def n_cpus(device: str) -> dict[str, int | None]:
    """Threads that a measurement on the CPU uses, and CPUs that this process may use."""
    if device == "cuda":
        return {"n_threads": None, "n_cpus": None}
    usable = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()
    return {"n_threads": torch.get_num_threads(), "n_cpus": usable}


def provenance(command: str, device: str, **more: object) -> Provenance:
    """The conditions of the run that starts now."""
    cuda = device == "cuda"
    return Provenance(
        run_id=uuid.uuid4().hex[:12],
        command=command,
        time_utc=datetime.now(UTC).isoformat(timespec="seconds"),
        device=device,
        device_name=device_name(device),
        n_threads=None if cuda else torch.get_num_threads(),
        versions={
            "python": platform.python_version(),
            "lmtime": version("lmtime"),
            "torch": torch.__version__,
            "numpy": version("numpy"),
            **({"cuda": str(torch.version.cuda)} if cuda else {}),
        },
        flags={
            "float32_matmul_precision": torch.get_float32_matmul_precision(),
            "cudnn_benchmark": torch.backends.cudnn.benchmark,
            "cudnn_allow_tf32": torch.backends.cudnn.allow_tf32,
            "matmul_allow_tf32": torch.backends.cuda.matmul.allow_tf32,
            "deterministic": torch.are_deterministic_algorithms_enabled(),
            "mkldnn": torch.backends.mkldnn.is_available(),
            "pages_kept": pages.are_kept(),
        },
        driver=_output("nvidia-smi", "--query-gpu=driver_version", "--format=csv,noheader")
        if cuda
        else None,
        git_commit=_git_commit(),
        **more,
    )


def _git_commit() -> str | None:
    """The commit that the package was read from, "-dirty" where files differ from it."""
    folder = str(Path(__file__).parent)
    return _output(
        "git", "-C", folder, "describe", "--always", "--dirty", "--abbrev=40", "--exclude=*"
    )


def _output(*command: str) -> str | None:
    """First line that a program prints, or None where there is none."""
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=10, check=True)
    except (OSError, subprocess.SubprocessError):
        return None
    return done.stdout.strip().split("\n")[0] or None
