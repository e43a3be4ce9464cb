"""Output layers that are compared: ours, torch's, and the bare products that bound them."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from lmtime.config import AdaptiveSoftmaxConfig
from lmtime.errors import UsageError, unknown
from lmtime.softmax.adaptive import AdaptiveSoftmax
from lmtime.softmax.bands import band_shapes
from lmtime.softmax.chunked import ChunkedSoftmax
from lmtime.softmax.class_based import ClassSoftmax
from lmtime.softmax.sampled import SampledSoftmax

ADAPTIVE, FULL = "torch-adaptive", "torch-full"
CHUNK_ROWS = 256  # of torch's operator: what amortises reading the weights


@dataclass(frozen=True)
class Contestant:
    """A layer and the step that is timed: forward and backward pass, all gradients.

    same_as: the contestant of the same model, whose losses and gradients it has; itself where the
    model is its own, none of a bound that computes no loss. plain: a step of bare matrix products
    of its shapes.
    """

    name: str
    layer: nn.Module
    step: Callable[[], None]
    same_as: str | None
    plain: Callable[[], None]
    hidden_waits: int = 0  # that no operator shows on a CPU: a tensor becomes a list
    hidden: Tensor | None = None

    def clear(self) -> None:
        """Without gradients, as before the first step."""
        self.layer.zero_grad(set_to_none=True)
        if self.hidden is not None:
            self.hidden.grad = None

    @property
    def gradient_bytes(self) -> int:
        """Of the gradients of the weights, which every implementation leaves behind."""
        return sum(p.nbytes for p in self.layer.parameters())


@dataclass(frozen=True)
class Task:
    """What all of them are given. hidden: (n_tokens, hidden_size), targets: (n_tokens,)."""

    hidden: Tensor
    targets: Tensor
    config: AdaptiveSoftmaxConfig  # torch's shape
    variations: Mapping[str, AdaptiveSoftmaxConfig]  # other partitions by name

    @classmethod
    def of(
        cls,
        ids: np.ndarray,
        config: AdaptiveSoftmaxConfig,
        variations: Mapping[str, AdaptiveSoftmaxConfig],
        *,
        device: str,
        seed: int,
    ) -> Task:
        """Hidden states that are random normal, in front of targets (n_tokens,) int64."""
        generator = torch.Generator().manual_seed(seed)
        hidden = torch.randn(len(ids), config.hidden_size, generator=generator).to(device)
        return cls(hidden.requires_grad_(), torch.from_numpy(ids).to(device), config, variations)


def contestants(names: Sequence[str], task: Task) -> list[Contestant]:
    """Those of the names, each with weights of its own on the device of the hidden states."""
    builders = BUILDERS | dict.fromkeys(task.variations, _variation)
    for name in names:
        if name not in builders:
            raise unknown("layer", name, list(builders))
    found = [builders[name](name, task) for name in dict.fromkeys(names)]
    return [replace(one, hidden=task.hidden) for one in found]


def _step(layer: nn.Module, loss: Callable[[Tensor, Tensor], Tensor], task: Task) -> None:
    layer.zero_grad(set_to_none=True)
    task.hidden.grad = None
    loss(task.hidden, task.targets).backward()


def _torch_adaptive(name: str, task: Task) -> Contestant:
    c, device = task.config, task.hidden.device
    layer = nn.AdaptiveLogSoftmaxWithLoss(
        c.hidden_size, c.vocab_size, c.cutoffs, c.div_value, device=device
    )
    step = partial(_step, layer, lambda x, t: layer(x, t).loss, task)
    return Contestant(name, layer, step, ADAPTIVE, _adaptive_products(c, task))


def _fused(name: str, task: Task, *, planned: bool = False) -> Contestant:
    layer = AdaptiveSoftmax(task.config).to(task.hidden.device)
    plan = None  # as a data loader would make it, before the targets are copied to the device
    if planned:
        plan = layer.plan(task.targets.cpu()).to(task.hidden.device)
    step = partial(_step, layer, lambda x, t: layer(x, t, plan=plan).loss, task)
    products = _adaptive_products(task.config, task)
    return Contestant(name, layer, step, ADAPTIVE, products, hidden_waits=not planned)


def _variation(name: str, task: Task) -> Contestant:
    return _of_shape(name, task, task.variations[name])


def _low_rank(name: str, task: Task) -> Contestant:
    rank = max(task.config.hidden_size // 4, 1)
    return _of_shape(name, task, replace(task.config, head_rank=rank))


def _of_shape(name: str, task: Task, config: AdaptiveSoftmaxConfig) -> Contestant:
    layer = AdaptiveSoftmax(config).to(task.hidden.device)
    step = partial(_step, layer, lambda x, t: layer(x, t).loss, task)
    products = _adaptive_products(config, task)
    return Contestant(name, layer, step, name, products, hidden_waits=1)


def _full(name: str, task: Task) -> Contestant:
    layer = _linear(task)
    step = partial(_step, layer, lambda x, t: F.cross_entropy(layer(x), t), task)
    return Contestant(name, layer, step, FULL, _full_products(task))


def _chunked(name: str, task: Task) -> Contestant:
    c = task.config
    layer = ChunkedSoftmax(c.hidden_size, c.vocab_size).to(task.hidden.device)
    step = partial(_step, layer, lambda x, t: layer(x, t).loss, task)
    return Contestant(name, layer, step, FULL, _full_products(task))


def _torch_chunks(name: str, task: Task, *, rows: int | None) -> Contestant:
    if not hasattr(F, "linear_cross_entropy"):
        raise UsageError(f"{name} needs torch 2.13 or later: leave it out")
    layer = _linear(task)
    more = {} if rows is None else {"batch_chunk_size": rows}
    options = torch.nn.LinearCrossEntropyOptions(**more)

    def loss(x: Tensor, t: Tensor) -> Tensor:
        return F.linear_cross_entropy(x, layer.weight, t, options=options)

    step = partial(_step, layer, loss, task)
    return Contestant(name, layer, step, FULL, _full_products(task))


def _sampled(name: str, task: Task) -> Contestant:
    c = task.config
    layer = SampledSoftmax(c.hidden_size, c.vocab_size, n_samples=min(1024, c.vocab_size - 1))
    layer.to(task.hidden.device)
    step = partial(_step, layer, lambda x, t: layer(x, t).loss, task)
    products = _products([(len(task.hidden), c.hidden_size, 1024)], task.hidden.device)
    return Contestant(name, layer, step, FULL, products)


def _classes(name: str, task: Task) -> Contestant:
    c = task.config
    layer = ClassSoftmax(c.hidden_size, c.vocab_size).to(task.hidden.device)
    step = partial(_step, layer, lambda x, t: layer(x, t).loss, task)
    side = round(c.vocab_size**0.5)
    products = _products([(len(task.hidden), c.hidden_size, 2 * side)], task.hidden.device)
    return Contestant(name, layer, step, name, products)


def _linear(task: Task) -> nn.Linear:
    c = task.config
    return nn.Linear(c.hidden_size, c.vocab_size, bias=False, device=task.hidden.device)


BUILDERS: dict[str, Callable[[str, Task], Contestant]] = {
    ADAPTIVE: _torch_adaptive,
    "fused-adaptive": _fused,
    "fused-adaptive-planned": partial(_fused, planned=True),
    "low-rank-head": _low_rank,
    "classes": _classes,
    FULL: _full,
    "chunked": _chunked,
    "torch-chunks-256": partial(_torch_chunks, rows=CHUNK_ROWS),
    "torch-chunks-auto": partial(_torch_chunks, rows=None),
    "sampled": _sampled,
}


def _adaptive_products(config: AdaptiveSoftmaxConfig, task: Task) -> Callable[[], None]:
    """Products of head and tails over the tokens that each has, and nothing else."""
    shapes, d = band_shapes(config), config.input_size
    counts = AdaptiveSoftmax(config).plan(task.targets.cpu()).counts
    found = [] if config.shared_rank is None else [(len(task.hidden), config.hidden_size, d)]
    projects = (config.head_rank is not None, *config.tail_projects)
    sizes = (config.head_size, *config.tail_sizes)
    for rows, (_, width), columns, is_projected in zip(
        (len(task.hidden), *counts), shapes, sizes, projects, strict=True
    ):
        found += [(rows, d, width)] if is_projected else []
        found.append((rows, width, columns))
    return _products([shape for shape in found if shape[0]], task.hidden.device)


def _full_products(task: Task) -> Callable[[], None]:
    shape = len(task.hidden), task.config.hidden_size, task.config.vocab_size
    return _products([shape], task.hidden.device)


def _products(shapes: Sequence[tuple[int, int, int]], device: torch.device) -> Callable[[], None]:
    """Forward, weight and input gradient of each (rows, inner) @ (inner, columns)."""
    operands = [
        (
            torch.randn(rows, inner, device=device),
            torch.randn(columns, inner, device=device),
            torch.randn(rows, columns, device=device),
        )
        for rows, inner, columns in shapes
    ]

    def step() -> None:
        for x, weight, gradient in operands:
            x.mm(weight.t())
            gradient.t().mm(x)
            gradient.mm(weight)

    return step
