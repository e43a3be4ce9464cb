"""The products of one band of an adaptive softmax, forward and backward."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import NamedTuple

import torch
from torch import Tensor

from lmtime.softmax.bands import BandWeights
from lmtime.softmax.products import Multiply, gradient_of_weights, scores_of


class Kept(NamedTuple):
    """What a band needs in the backward pass; the last two are None where it met no token."""

    rows: Tensor  # (n, input_size)
    narrow: Tensor | None  # (n, width)
    residual: Tensor | None  # (n, n_entries), softmax - onehot


def band_forward(
    multiply: Multiply, band: BandWeights, rows: Tensor, index: Tensor, terms: Tensor
) -> tuple[Tensor, Tensor]:
    """The narrowed rows, (n, width), and the softmax, (n, n_entries), of a band.

    rows: (n, input_size), index: (n, 1) targets as entries of the band. terms, (3, n, 1), is filled
    for `log_likelihood_`.
    """
    target_score, largest_score, largest_prob = terms.unbind()
    narrow = rows if band.projection is None else multiply(rows, band.projection)
    matrices = [band.words] if band.clusters is None else [band.words, band.clusters]
    scores = scores_of(multiply, narrow, matrices, band.bias)
    is_16_bit = scores.dtype != terms.dtype
    values = scores.to(terms.dtype) if is_16_bit else scores
    torch.gather(values, 1, index, out=target_score)
    torch.amax(values, 1, keepdim=True, out=largest_score)
    torch.softmax(values, 1, out=values)  # twice as fast as `exp`, and as exact
    torch.amax(values, 1, keepdim=True, out=largest_prob)
    values = values.to(scores.dtype) if is_16_bit else values
    has_room = values.shape[1] > band.n_entries
    return narrow, values.narrow(1, 0, band.n_entries) if has_room else values


def log_likelihood_(terms: Tensor) -> Tensor:
    """Of the target of each row, (n, 1), in place of its score.

    terms: (3, n, 1), scores of the target and of the likeliest entry, and how likely that is: it
    tells the sum of the exponentials.
    """
    target_score, largest_score, largest_prob = terms.unbind()
    return target_score.sub_(largest_score).add_(largest_prob.log_())


def subtract_one_hot_(softmax: Tensor, index: Tensor, probability_less_one: Tensor) -> None:
    """What the scores' gradient is, in place: (n, n_entries); the others are (n, 1)."""
    softmax.scatter_(1, index, probability_less_one.to(softmax.dtype))


def band_backward(
    multiply: Multiply,
    band: BandWeights,
    kept: Kept,
    scale: Tensor,
    wants: Sequence[bool],
    totals: Sequence[Tensor | None] | None = None,
) -> tuple[Tensor | None, list[Tensor | None]]:
    """The gradient of the rows, and those of projection, words, clusters and bias.

    scale: (n, 1), what arrives for each token, or (1, 1) for all. wants: which of the five. totals:
    gradients of the tensors from other rows; they are added.
    """
    rows, narrow, residual = kept
    wants_rows, wants_projection, wants_words, wants_clusters, wants_bias = wants
    of_projection, of_words, of_clusters, of_bias = totals or [None] * len(band)
    of_rows = None
    parts = [residual] if band.clusters is None else residual.split(band.sizes, dim=1)
    if wants_rows or wants_projection:
        grad = multiply(parts[0], band.words.t())
        if band.clusters is not None:
            grad.addmm_(parts[1], band.clusters)
        grad.mul_(scale)
        if wants_projection:
            of_projection = _added(of_projection, grad, rows)
        if wants_rows:
            of_rows = grad if band.projection is None else multiply(grad, band.projection.t())
    if wants_words or wants_clusters:
        scaled = (narrow * scale).to(narrow.dtype)
        of_words = _added(of_words, parts[0], scaled) if wants_words else None
        of_clusters = _added(of_clusters, parts[1], scaled) if wants_clusters else None
    if wants_bias:
        shares = scale.expand(residual.shape[0], 1).squeeze(1)
        of_bias = _added(of_bias, residual, shares.to(residual.dtype))
    return of_rows, [of_projection, of_words, of_clusters, of_bias]


def zeros(band: BandWeights, wants: Sequence[bool]) -> list[Tensor | None]:
    """Of a band without tokens; not None: DistributedDataParallel waits for a gradient of each."""
    of_tensors = wants[1:]
    return [torch.zeros_like(t) if want else None for t, want in zip(band, of_tensors, strict=True)]


def _added(total: Tensor | None, of_scores: Tensor, rows: Tensor) -> Tensor:
    """total + of_scores transposed @ rows, a vector too. 16-bit products are added up in fp32."""
    if total is not None and total.dtype.itemsize < 4:
        total = total.float()
    if total is not None and total.dtype != rows.dtype:
        return total.add_(of_scores.t() @ rows)
    if rows.dim() == 1:
        left = of_scores.t()
        return left.mv(rows) if total is None else total.addmv_(left, rows)
    return gradient_of_weights(of_scores, rows, total)


def no_autocast(device: str) -> AbstractContextManager:
    """All tensors have their type already; without an autocast entering costs nothing."""
    if torch.is_autocast_enabled(device):
        return torch.autocast(device, enabled=False)
    return nullcontext()
