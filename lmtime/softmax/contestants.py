"""Output layers that are compared: ours, torch's, and the bare products that bound them."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property, partial

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
from lmtime.softmax.interface import OutputLayer
from lmtime.softmax.products import Multiply, blas, gradient_of_weights, onednn
from lmtime.softmax.sampled import SampledSoftmax

ADAPTIVE, FULL = "torch-adaptive", "torch-full"
CHUNK_ROWS = 256  # of torch's operator: what amortises reading the weights
N_SAMPLES = 1_024


Loss = Callable[[Tensor, Tensor], Tensor]  # of hidden states and targets


@dataclass(frozen=True)
class Task:
    """What all of them are given. hidden: (n_tokens, hidden_size), targets: (n_tokens,)."""

    hidden: Tensor
    targets: Tensor
    config: AdaptiveSoftmaxConfig  # torch's shape
    partitions: Mapping[str, AdaptiveSoftmaxConfig]  # others, by name

    @classmethod
    def of(
        cls,
        ids: np.ndarray,
        config: AdaptiveSoftmaxConfig,
        partitions: Mapping[str, AdaptiveSoftmaxConfig],
        *,
        device: str,
        seed: int,
    ) -> Task:
        """Hidden states that are random normal, in front of targets (n_tokens,) int64."""
        generator = torch.Generator().manual_seed(seed)
        hidden = torch.randn(len(ids), config.hidden_size, generator=generator).to(device)
        return cls(hidden.requires_grad_(), torch.from_numpy(ids).to(device), config, partitions)

    @cached_property
    def full_products(self) -> Callable[[], None]:
        """Bare products of a softmax over all words, the same for all that compute one."""
        shape = len(self.hidden), self.config.hidden_size, self.config.vocab_size
        return _products([shape], self.hidden.device)


@dataclass(frozen=True)
class Contestant:
    """A layer, and the bare matrix products of its shapes.

    same_as: the contestant of the same model, whose losses and gradients it has; itself where the
    model is its own. hidden_waits: those that no operator shows on a CPU, of a tensor that becomes
    a list.
    """

    name: str
    task: Task
    layer: nn.Module
    loss: Loss
    same_as: str
    products: Callable[[], None]
    hidden_waits: int = 0

    def step(self) -> None:
        """What is timed: forward and backward pass, to all gradients."""
        self.clear()
        self.loss(self.task.hidden, self.task.targets).backward()

    def clear(self) -> None:
        """Without gradients, as before the first step."""
        self.layer.zero_grad(set_to_none=True)
        self.task.hidden.grad = None

    @property
    def gradient_bytes(self) -> int:
        """Of the gradients of the weights, which every implementation leaves behind."""
        return sum(p.nbytes for p in self.layer.parameters())


class Bare(Contestant):
    """Matrix products alone: a limit, and no layer. Its loss is none."""

    def step(self) -> None:
        """Of the forward pass and of both gradients."""
        self.loss(self.task.hidden, self.task.targets)


def contestants(names: Sequence[str], task: Task) -> list[Contestant]:
    """Those of the names, each with weights of its own on the device of the hidden states."""
    builders = BUILDERS | dict.fromkeys(task.partitions, _partition)
    for name in names:
        if name not in builders:
            raise unknown("layer", name, list(builders))
    return [builders[name](name, task) for name in dict.fromkeys(names)]


def _torch_adaptive(name: str, task: Task) -> Contestant:
    c, device = task.config, task.hidden.device
    layer = nn.AdaptiveLogSoftmaxWithLoss(
        c.hidden_size, c.vocab_size, c.cutoffs, c.div_value, device=device
    )
    products = _adaptive_products(c, task)
    return Contestant(name, task, layer, lambda x, t: layer(x, t).loss, ADAPTIVE, products)


def _fused(name: str, task: Task) -> Contestant:
    return replace(_of_shape(name, task, task.config), same_as=ADAPTIVE)


def _planned(name: str, task: Task) -> Contestant:
    """With a plan as a data loader makes it, before the targets are copied to the device."""
    made = _fused(name, task)
    plan = made.layer.plan(task.targets.cpu()).to(task.hidden.device)
    return replace(made, loss=lambda x, t: made.layer(x, t, plan=plan).loss, hidden_waits=0)


def _fast(name: str, task: Task) -> Contestant:
    """By oneDNN on every CPU, long sums too."""
    return replace(_of_shape(name, task, task.config, fast_products=True), same_as=ADAPTIVE)


def _fast_products(name: str, task: Task) -> Contestant:
    """The products of torch's shape as `fused-adaptive-fast` takes them, in one piece, alone."""
    fast = _adaptive_products(task.config, task, onednn, gradient_of_weights)
    run = lambda x, t: fast()  # noqa: E731
    return Bare(name, task, nn.Identity(), run, name, _adaptive_products(task.config, task))


def _partition(name: str, task: Task) -> Contestant:
    return _of_shape(name, task, task.partitions[name])


def _of_shape(name: str, task: Task, config: AdaptiveSoftmaxConfig, **options: bool) -> Contestant:
    layer, products = AdaptiveSoftmax(config, **options), _adaptive_products(config, task)
    return _ours(name, task, layer, name, products, hidden_waits=1)


def _full(name: str, task: Task) -> Contestant:
    layer = _linear(task)
    loss = lambda x, t: F.cross_entropy(layer(x), t)  # noqa: E731
    return Contestant(name, task, layer, loss, FULL, task.full_products)


def _chunked(name: str, task: Task, *, fast: bool = False) -> Contestant:
    sizes = task.config.hidden_size, task.config.vocab_size
    layer = ChunkedSoftmax(*sizes, fast_products=fast)
    return _ours(name, task, layer, FULL, task.full_products)


def _torch_chunks(name: str, task: Task, *, rows: int | None) -> Contestant:
    if not hasattr(F, "linear_cross_entropy"):
        raise UsageError(f"{name} needs torch 2.13 or later: leave it out")
    layer = _linear(task)
    options = nn.LinearCrossEntropyOptions(**({} if rows is None else {"batch_chunk_size": rows}))

    def loss(x: Tensor, t: Tensor) -> Tensor:
        return F.linear_cross_entropy(x, layer.weight, t, options=options)

    return Contestant(name, task, layer, loss, FULL, task.full_products)


def _sampled(name: str, task: Task) -> Contestant:
    """In training: its loss is an estimate of the full one."""
    c, n_samples = task.config, min(N_SAMPLES, task.config.vocab_size - 1)
    layer = SampledSoftmax(c.hidden_size, c.vocab_size, n_samples=n_samples)
    products = _products([(len(task.hidden), c.hidden_size, n_samples)], task.hidden.device)
    return _ours(name, task, layer, name, products)


def _classes(name: str, task: Task) -> Contestant:
    """Products as if the words of a class were in one matrix, whichever class a token has."""
    c = task.config
    layer = ClassSoftmax(c.hidden_size, c.vocab_size)
    side = round(c.vocab_size**0.5)
    products = _products([(len(task.hidden), c.hidden_size, 2 * side)], task.hidden.device)
    return _ours(name, task, layer, name, products)


def _ours(
    name: str,
    task: Task,
    layer: OutputLayer,
    same_as: str,
    products: Callable[[], None],
    **more: int,
) -> Contestant:
    """A layer of this package."""
    layer.to(task.hidden.device)
    return Contestant(name, task, layer, lambda x, t: layer(x, t).loss, same_as, products, **more)


def _linear(task: Task) -> nn.Linear:
    c = task.config
    return nn.Linear(c.hidden_size, c.vocab_size, bias=False, device=task.hidden.device)


BUILDERS: dict[str, Callable[[str, Task], Contestant]] = {
    ADAPTIVE: _torch_adaptive,
    "fused-adaptive": _fused,
    "fused-adaptive-planned": _planned,
    "fused-adaptive-fast": _fast,
    "fast-products": _fast_products,
    "classes": _classes,
    FULL: _full,
    "chunked": _chunked,
    "chunked-fast": partial(_chunked, fast=True),
    "torch-chunks-256": partial(_torch_chunks, rows=CHUNK_ROWS),
    "torch-chunks-auto": partial(_torch_chunks, rows=None),
    "sampled": _sampled,
}


def _adaptive_products(
    config: AdaptiveSoftmaxConfig, task: Task, *ways: Multiply
) -> Callable[[], None]:
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
    return _products([shape for shape in found if shape[0]], task.hidden.device, *ways)


def _products(
    shapes: Sequence[tuple[int, int, int]],
    device: torch.device,
    multiply: Multiply = blas,
    of_weights: Multiply = lambda scores, rows: scores.t().mm(rows),
) -> Callable[[], None]:
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
            multiply(x, weight)
            of_weights(gradient, x)
            multiply(gradient, weight.t())

    return step
