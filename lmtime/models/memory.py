"""How much memory a step needs, known before any is taken.

The step runs once on tensors without values (`FakeTensorMode`), forward and backward, and every
storage is counted from its first operator until it is freed, so transient results are in it too.
"""

from __future__ import annotations

import logging
import weakref
from collections.abc import Iterator
from contextlib import nullcontext
from itertools import accumulate
from pathlib import Path

import torch
from torch import Tensor, nn
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from lmtime.config import ModelConfig
from lmtime.cost.memory import MemoryEstimate
from lmtime.cost.optimizers import Optimizer
from lmtime.cost.predict import expected_hits, optimizer_of
from lmtime.errors import TooLarge
from lmtime.models import _model

GIB = 2**30
aten = torch.ops.aten
INDEXING = (aten.index, aten.index_put, aten.index_put_, aten._index_put_impl_)


def step_bytes(
    config: ModelConfig, *, phase: str = "train", optimizer: Optimizer | None = None
) -> MemoryEstimate:
    """Estimate for fp32 on one device, a step after the first; allocates nothing.

    phase: "train" or "forward". optimizer: else the model's own, on a CPU. Targets of an adaptive
    softmax are spread as words of the model's corpus are. What kernels take inside, allocators
    waste and the process itself needs is not in it.
    """
    optimizer = optimizer or optimizer_of(config)
    trains = phase == "train"
    storages = _Storages(_cluster_sizes(config))
    with FakeTensorMode():
        model = _model(config)
        storages.hold(model)
        with storages:
            _run(model, config, trains)
    sizes = [p.nbytes for p in model.parameters()]
    weights = sum(sizes)
    if not trains:
        return MemoryEstimate(weights, 0, 0, storages.peak - weights)
    updating = 2 * weights + optimizer.temporary(sizes)
    return MemoryEstimate(
        parameters=weights,
        gradients=weights,
        optimizer=optimizer.n_copies * weights,
        activations=max(storages.peak, updating) - 2 * weights,
    )


def require_memory(
    config: ModelConfig,
    device: str | torch.device,
    *,
    phase: str = "train",
    optimizer: Optimizer | None = None,
) -> None:
    """Refuses a step that does not fit on a device, before it is tried.

    What torch cannot run without values (some mixtures of experts) is let through.
    """
    complaints = logging.getLogger("torch._subclasses.fake_tensor")
    complaints.disabled = True
    try:
        needed = step_bytes(config, phase=phase, optimizer=optimizer)
    except (RuntimeError, NotImplementedError):
        return
    finally:
        complaints.disabled = False
    available = available_bytes(device)
    if needed.total <= available:
        return
    held = {
        "weights": needed.parameters,
        "gradients": needed.gradients,
        "optimizer": needed.optimizer,
        "activations": needed.activations,
    }
    parts = ", ".join(f"{name} {size / GIB:.1f}" for name, size in held.items() if size)
    lighter = " or use phase forward" if phase == "train" else ""
    raise TooLarge(
        f"this step needs about {needed.total / GIB:.1f} GiB ({parts}) and there are "
        f"{available / GIB:.1f} GiB available on this {torch.device(device).type}: "
        f"lower batch_size or seq_len{lighter}"
    )


def available_bytes(device: str | torch.device) -> int:
    """Free memory of a GPU; of a CPU what the system can give, or less where a cgroup limits it."""
    if torch.device(device).type == "cuda":
        return torch.cuda.mem_get_info(device)[0]
    return min(_free_of_system(), *_free_of_cgroups())


MEMINFO = Path("/proc/meminfo")
CGROUPS = Path("/sys/fs/cgroup")
LIMITS = (("memory.max", "memory.current"),
          ("memory/memory.limit_in_bytes", "memory/memory.usage_in_bytes"))  # fmt: skip


def _free_of_system() -> int:
    if not MEMINFO.exists():
        return 2**63  # no Linux: not known
    lines = dict(line.split(":", 1) for line in MEMINFO.read_text().splitlines())
    return int(lines["MemAvailable"].split()[0]) * 1024


def _free_of_cgroups() -> Iterator[int]:
    yield 2**63
    for limit, used in LIMITS:
        if (CGROUPS / limit).exists() and (text := (CGROUPS / limit).read_text().strip()) != "max":
            yield int(text) - int((CGROUPS / used).read_text())


# A step without values


def _run(model: nn.Module, config: ModelConfig, trains: bool) -> None:
    tokens, targets = torch.zeros(2, config.batch_size, config.seq_len, dtype=torch.int64)
    with nullcontext() if trains else torch.no_grad():
        loss = model(tokens, targets)
    if trains:
        loss.backward()


def _cluster_sizes(config: ModelConfig) -> list[int]:
    """Tokens of the short list and of each tail."""
    tails = [max(1, round(hits)) for hits in expected_hits(config)]
    return [config.n_tokens - sum(tails), *tails]


class _Storages(TorchDispatchMode):
    """Counts the bytes of storages that live.

    Masks have no values either: the k-th that picks tokens picks those of the k-th cluster, and
    every question whether something is so is answered by yes. Where clusters begin among sorted
    targets is told by their sizes.
    """

    def __init__(self, cluster_sizes: list[int]) -> None:
        super().__init__()
        self.live = self.peak = 0
        self._seen: set[int] = set()
        self._cluster_sizes = cluster_sizes
        self._masks: dict[int, tuple[Tensor, int]] = {}
        self._ends: Tensor | None = None

    def hold(self, model: nn.Module) -> None:
        """Count what the model has already."""
        for tensor in (*model.parameters(), *model.buffers()):
            self._note(tensor)

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        packet = func._overloadpacket
        if packet is aten._local_scalar_dense:
            return self._value(args[0])
        if packet is aten.nonzero:
            out = torch.stack(self._positions(args[0]), 1)
        else:
            if packet in INDEXING:
                picked = [self._positions(index) for index in args[1]]
                args = (args[0], [index for several in picked for index in several], *args[2:])
            out = func(*args, **(kwargs or {}))
        if packet is aten.searchsorted:
            self._ends = out
        for tensor in tree_leaves(out):
            if isinstance(tensor, Tensor):
                self._note(tensor)
        return out

    def _value(self, scalar: Tensor) -> bool | int:
        if scalar.dtype == torch.bool:
            return True
        if self._ends is None or scalar.untyped_storage() != self._ends.untyped_storage():
            return 1
        ends = [0, *accumulate(self._cluster_sizes), 0, 0]  # the last two: no target is ignored
        return ends[scalar.storage_offset()]

    def _positions(self, index: Tensor | None) -> list[Tensor | None]:
        """Ids in place of a mask, one tensor for each of its dimensions; (n_picked,) each."""
        if index is None or index.dtype != torch.bool:
            return [index]
        if id(index) not in self._masks:
            turn = len(self._masks) % len(self._cluster_sizes)
            self._masks[id(index)] = index, self._cluster_sizes[turn]  # held, so that ids differ
        n_picked = self._masks[id(index)][1]
        return [index.new_empty(n_picked, dtype=torch.int64) for _ in range(index.dim())]

    def _note(self, tensor: Tensor) -> None:
        storage = tensor.untyped_storage()
        key = storage._cdata
        if key in self._seen:
            return
        self._seen.add(key)
        size = storage.nbytes()
        self.live += size
        self.peak = max(self.peak, self.live)
        weakref.finalize(storage, self._free, key, size)

    def _free(self, key: int, size: int) -> None:
        self._seen.discard(key)
        self.live -= size
