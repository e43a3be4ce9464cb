"""Memory of a training step from shapes alone: weights, gradients, states, and the peak beside.

A step is a list of stages in the order of the forward pass. Each keeps values for the backward
pass, which frees them in the opposite order while gradients come to be; the peak is the most that
lives at once. Standard library only; `lmtime.models.memory` runs the step without values instead.
Products in runs (`lmtime.softmax.runs`), where a CPU is one for them, hold some megabytes more.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import reduce
from typing import Any

from lmtime.config import GCNConfig, HuggingFaceConfig, ModelConfig, TransformerConfig, head_size
from lmtime.cost.chunked import chunk_rows
from lmtime.cost.fused_adaptive import (
    fused_bands,
    fused_folds,
    input_size,
    piece_rows,
    shared_rank,
)
from lmtime.cost.operators import ID_BYTES
from lmtime.cost.optimizers import Optimizer
from lmtime.cost.output_layers import bands
from lmtime.cost.precision import FP32, Precision
from lmtime.cost.predict import expected_hits, optimizer_of, weights


@dataclass(frozen=True)
class MemoryEstimate:
    """Bytes at the peak of a step, by what they hold.

    activations: all that is neither a weight, its gradient nor its optimizer state when the peak
    is reached; gradients that do not exist yet leave room for activations. None is not known.
    """

    parameters: int
    gradients: int
    optimizer: int
    activations: int | None

    @property
    def total(self) -> int | None:
        """All of them together: the peak."""
        if self.activations is None:
            return None
        return self.parameters + self.gradients + self.optimizer + self.activations

    def row(self) -> dict[str, int | None]:
        """The fields and their sum."""
        return dataclasses.asdict(self) | {"total": self.total}


@dataclass(frozen=True)
class Stage:
    """Some operators in a row, in values (not bytes).

    kept: for the backward pass, by autograd. forward, backward: the most that lives beside it
    while the stage runs; the gradient that comes in is part of it, those of its weights are not.
    weights: sizes of the tensors whose gradients it brings about.
    """

    kept: Any = 0
    forward: Any = 0
    backward: Any = 0
    weights: tuple[Any, ...] = ()


def peak(stages: Sequence[Stage], *, maximum: Callable[[Any, Any], Any] = max) -> Any:
    """The most values that live at once, beside the weights; gradients count as they come to be."""
    moments, live = [], 0
    for stage in stages:
        moments.append(live + stage.kept + stage.forward)
        live += stage.kept
    for stage in reversed(stages):
        gradients = sum(stage.weights)
        moments.append(live + stage.backward + gradients)
        live += gradients - stage.kept
    return reduce(maximum, moments)


def training_bytes(
    config: ModelConfig, *, precision: Precision = FP32, optimizer: Optimizer | None = None
) -> MemoryEstimate:
    """Estimate of a step after the first; optimizer: else the model's own, on a CPU.

    Activations are not known where the cross-entropy is wider than the rest.
    Allocators, kernels and the process take memory that is not in it.
    """
    optimizer = optimizer or optimizer_of(config)
    tensors = [size for sizes in weights(config).values() for size in sizes]
    total = sum(tensors)
    activations, value_bytes = None, precision.value_bytes
    is_even = precision.loss_bytes == value_bytes
    if not isinstance(config, HuggingFaceConfig) and is_even:
        ids = 2 * config.n_tokens * ID_BYTES  # tokens and targets
        stages = STAGES[type(config)](config, expected_hits(config))
        moved = value_bytes * peak(stages) + ids - value_bytes * total
        activations = round(max(moved, value_bytes * optimizer.temporary(tensors)))
    sizes = (total, total, optimizer.n_copies * total)
    return MemoryEstimate(*(round(value_bytes * size) for size in sizes), activations)


# The gated convolutional network


def gcn_stages(shape: Any, hits: Sequence[Any]) -> list[Stage]:
    """Embedding, projection, convolutions, output layer; hits: targets in each tail cluster."""
    n, e, h = shape.batch_size * shape.seq_len, shape.embedding_size, shape.hidden_size
    stages = [
        Stage(n * e, 0, n * e, (shape.vocab_size * e,)),
        Stage(0, e * h, n * e + e * h, (e * h, 2 * h)),  # weight norm
        Stage(e * h, n * h, 2 * n * h + n * e + e * h),
    ]
    for i in range(shape.n_layers):
        stages += _conv(shape, n, is_last=i == shape.n_layers - 1)
    return stages + OUTPUT_STAGES[shape.output_layer](shape, n, hits, in_rows=False)


def _conv(shape: Any, n: Any, *, is_last: bool) -> list[Stage]:
    """Norm of the kernel, convolution and gate; a residual that widens is projected."""
    d_in = shape.hidden_size
    d_out = shape.final_hidden_size if is_last else d_in
    padded = shape.batch_size * (shape.seq_len + shape.kernel_size - 1) * d_in
    kernel = 2 * d_in * shape.kernel_size * d_out
    halves, residual = 2 * n * d_out, n * d_in
    stages = [
        Stage(0, residual + padded + kernel, kernel + padded + residual, (kernel, 4 * d_out)),
        Stage(padded + kernel, residual, residual + halves + padded + kernel),
        Stage(halves, residual + 2 * n * d_out, residual + n * d_out + halves),  # gate, sum
    ]
    if is_last and shape.widens:
        square = d_in * d_out
        beside = n * d_in + n * d_out
        stages += [
            Stage(0, beside + square, beside + square, (square, 2 * d_out)),
            Stage(n * d_in + square, 2 * n * d_out, beside + n * d_out + square),
        ]
    return stages


# The Transformer


def transformer_stages(shape: Any, hits: Sequence[Any]) -> list[Stage]:
    """Bands of the input, layers, output layer; input tokens are spread as targets are."""
    n, d, ffn = shape.batch_size * shape.seq_len, shape.hidden_size, shape.ffn_size
    stages = [
        Stage(
            kept=n_hits * width,
            forward=n * d + n_hits * d,
            backward=2 * n * d + n_hits * (d + width) + _meeting(shape, size * width),
            weights=(d * width,) if shape.ties_words else (d * width, size * width),
        )
        for n_hits, (size, width) in zip([n - sum(hits), *hits], bands(shape), strict=True)
    ]
    layer = [
        # Norm and three projections in one: the input, the normed, the queries, keys, values.
        Stage(5 * n * d + 2 * n, 0, 7 * n * d, (3 * d * d, 5 * d)),
        Stage(n * d + n * shape.n_heads, n * d, 5 * n * d, (d * d, d)),  # attention
        # Norm and widening: the sum, the normed; then what is left of the rectified.
        Stage(2 * n * d + 2 * n, n * ffn, 2 * n * d + n * ffn, (d * ffn, ffn + 2 * d)),
        Stage(n * ffn, n * ffn, n * d + 2 * n * ffn, (d * ffn, d)),
    ]
    stages += layer * shape.n_layers
    return stages + OUTPUT_STAGES[shape.output_layer](shape, n, hits, in_rows=True)


def _meeting(shape: Any, words: Any) -> Any:
    """Tied words have a gradient from the output layer already: another one, and their sum."""
    return 2 * words if shape.ties_words else 0


STAGES = {GCNConfig: gcn_stages, TransformerConfig: transformer_stages}


# Output layers


def _full(shape: Any, n: Any, hits: Sequence[Any], *, in_rows: bool) -> list[Stage]:
    """Log-probabilities are kept; their gradient and that of the logits live beside them."""
    d, v = shape.final_hidden_size, shape.vocab_size
    held = 0 if in_rows else n * d  # the states that were copied into rows
    return [
        Stage(kept=n * d, forward=held + n * v, backward=n * v + n * d, weights=(d * v,)),
        Stage(kept=n * v, forward=held + n * v, backward=2 * n * v),
    ]


def _adaptive(shape: Any, n: Any, hits: Sequence[Any], *, in_rows: bool) -> list[Stage]:
    """Tails come first, then the head; the logits of the last tail live until both are done."""
    d, head = shape.final_hidden_size, head_size(shape.cutoffs)
    held = 0 if in_rows else n * d
    stages, logits = [Stage(kept=n * d, forward=held)], 0
    for n_hits, (size, width) in zip(hits, bands(shape)[1:], strict=True):
        logits = n_hits * size
        rows = n_hits * (d + width)
        stages += [
            Stage(0, held, 2 * n * d + n_hits * d),  # its states picked; their gradient spread
            Stage(rows, held + logits, n * d + rows + logits, (d * width, size * width)),
            Stage(logits, held + logits, n * d + 2 * logits),
        ]
    return [
        *stages,
        Stage(0, held + logits + n * head, n * head + n * d, (d * head,)),
        Stage(n * head, held + logits + n * head, 2 * n * head),
    ]


def _fused_adaptive(shape: Any, n: Any, hits: Sequence[Any], *, in_rows: bool) -> list[Stage]:
    """The hidden states, their projection if head and tails share one, and a node for all bands."""
    d, width = shape.final_hidden_size, input_size(shape)
    held = 0 if in_rows else n * d
    shared = []
    if shared_rank(shape) is not None:
        shared = [Stage(kept=n * width, backward=n * width + n * d, weights=(d * width,))]
    node = _folded_bands if fused_folds(shape, n, hits) else _kept_bands
    return [Stage(kept=n * d), *shared, *node(shape, n, hits, held)]


def _kept_bands(shape: Any, n: Any, hits: Sequence[Any], held: Any) -> list[Stage]:
    """What all bands keep is freed when the last of them is done."""
    width = input_size(shape)
    kept, bands_backward = sum(hits) * width, []
    for i, (n_rows, band) in enumerate(zip([n, *hits], fused_bands(shape), strict=True)):
        narrow = n_rows * band.width
        kept += n_rows * band.n_entries + narrow * band.projects
        own_rows = n_rows * width * (i > 0)
        bands_backward.append(
            Stage(
                backward=n * width + own_rows + narrow * (1 + band.projects),
                weights=tuple(band.weights(width)),
            )
        )
    head, *tails = bands_backward
    return [Stage(kept=kept, forward=held, backward=n * width), *reversed(tails), head]


def _folded_bands(shape: Any, n: Any, hits: Sequence[Any], held: Any) -> list[Stage]:
    """Gradients of the rows, then of the weights of each band; a piece at most lives beside."""
    width, found = input_size(shape), fused_bands(shape)
    stages = [Stage(kept=n * width)]
    rows = map(min, piece_rows(shape, n, hits), [n, *hits])
    for i, (n_rows, band) in enumerate(zip(rows, found, strict=True)):
        picked = 2 * n_rows * width * (i > 0)  # rows of a tail, and their gradient
        narrow = n_rows * band.width * (3 if band.projects else 1)
        sizes = tuple(band.weights(width))
        beside = held + picked + narrow + n_rows * band.n_entries
        stages.append(Stage(sum(sizes), beside, backward=-sum(sizes), weights=sizes))
    return stages


def _chunked(shape: Any, n: Any, hits: Sequence[Any], *, in_rows: bool) -> list[Stage]:
    """Both gradients are made in the forward pass, that of the weights in its final place."""
    d, v = shape.final_hidden_size, shape.vocab_size
    held = 0 if in_rows else n * d
    chunk = chunk_rows(n, v) * (v + d)
    kept = 2 * n * d + d * v
    return [Stage(kept=kept, forward=held + chunk, backward=-d * v, weights=(d * v,))]


OUTPUT_STAGES = {
    "adaptive": _adaptive,
    "fused-adaptive": _fused_adaptive,
    "full": _full,
    "chunked": _chunked,
}
