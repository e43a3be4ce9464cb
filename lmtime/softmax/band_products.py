"""The products of one band of an adaptive softmax, forward and backward."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import NamedTuple

import torch
from torch import Tensor

from lmtime.softmax.bands import BandWeights

# Scores whose softmax is taken at once: on a CPU they stay in the cache between two passes.
SCORES_AT_ONCE = {"cpu": 2**18}
SCORES_AT_ONCE_ELSEWHERE = 2**26


class Kept(NamedTuple):
    """What a band needs in the backward pass; the last two are None where it met no token."""

    rows: Tensor  # (n, input_size)
    narrow: Tensor | None  # (n, width)
    residual: Tensor | None  # (n, n_entries), a multiple of softmax - onehot


def band_forward(
    band: BandWeights, rows: Tensor, targets: Tensor, at_target: Tensor, sums: Tensor
) -> tuple[Tensor, Tensor]:
    """The narrowed rows, and the exponentials of their scores less the largest of the row.

    rows: (n, input_size), targets: (n,) entries of the band. Writes the score of the target, less
    the largest, and the sum of the exponentials: (n, 1) each. 16-bit exponentials are over the sum.
    """
    narrow = rows if band.projection is None else rows.mm(band.projection.t())
    scores = _scores(narrow, band)
    n_at_once = SCORES_AT_ONCE.get(scores.device.type, SCORES_AT_ONCE_ELSEWHERE)
    n_rows = max(16, n_at_once // scores.shape[1])
    whole = (scores, targets.unsqueeze(1), at_target, sums)
    pieces = (
        [whole] if rows.shape[0] <= n_rows else zip(*(x.split(n_rows) for x in whole), strict=True)
    )
    for part, index, found, total in pieces:
        values = part.to(sums.dtype)  # the scores themselves, but for 16-bit ones
        values.sub_(values.amax(1, keepdim=True))
        torch.gather(values, 1, index, out=found)
        torch.sum(values.exp_(), 1, keepdim=True, out=total)
        if values.dtype != part.dtype:
            torch.div(values, total, out=part)
    return narrow, scores


def _scores(narrow: Tensor, band: BandWeights) -> Tensor:
    """(n, width) -> (n, n_entries), both matrices of a tied head straight into one buffer."""
    if band.clusters is None:
        if band.bias is None:
            return narrow.mm(band.words.t())
        return torch.addmm(band.bias, narrow, band.words.t())
    scores = narrow.new_empty(len(narrow), sum(band.sizes))
    for matrix, out in zip(
        (band.words, band.clusters), scores.split(band.sizes, dim=1), strict=True
    ):
        torch.mm(narrow, matrix.t(), out=out)
    return scores if band.bias is None else scores.add_(band.bias)


def to_residual_(
    scores: Sequence[Tensor | None], targets: Sequence[Tensor], log_prob: Tensor, sums: Tensor
) -> None:
    """The entries of the targets become those of softmax - onehot, exact near certainty.

    log_prob, sums: (n, 1) of the rows of all scores together; 16-bit sums are 1 from here on.
    """
    dtype = next(part.dtype for part in scores if part is not None)
    if dtype != sums.dtype:
        sums.fill_(1.0)  # these are divided already
    values = log_prob.expm1().mul_(sums).to(dtype)
    values = values.split_with_sizes([index.shape[0] for index in targets])
    for part, index, value in zip(scores, targets, values, strict=True):
        if part is not None:
            part.scatter_(1, index.unsqueeze(1), value)


def band_backward(
    band: BandWeights,
    kept: Kept,
    scale: Tensor,
    wants: Sequence[bool],
    into: Tensor | None,
    totals: Sequence[Tensor | None] | None = None,
) -> list[Tensor | None]:
    """Gradients of projection, words, clusters and bias; that of the rows is put in `into`.

    scale: (n, 1), what arrives for each token over the sum of its row. totals: gradients of the
    same tensors from other rows; they are added.
    """
    rows, narrow, residual = kept
    wants_projection, wants_words, wants_clusters, wants_bias = wants
    of_projection, of_words, of_clusters, of_bias = totals or [None] * len(band)
    parts = [residual] if band.clusters is None else residual.split(band.sizes, dim=1)
    if into is not None or wants_projection:
        grad = torch.empty_like(narrow) if into is None or band.projection is not None else into
        torch.mm(parts[0], band.words, out=grad)
        if band.clusters is not None:
            grad.addmm_(parts[1], band.clusters)
        grad.mul_(scale)
        if wants_projection:
            of_projection = _added(of_projection, grad.t(), rows)
        if band.projection is not None and into is not None:
            torch.mm(grad, band.projection, out=into)
    if wants_words or wants_clusters:
        scaled = torch.mul(narrow, scale, out=torch.empty_like(narrow))
        of_words = _added(of_words, parts[0].t(), scaled) if wants_words else None
        of_clusters = _added(of_clusters, parts[1].t(), scaled) if wants_clusters else None
    if wants_bias:
        of_bias = _added(of_bias, residual.t(), scale.squeeze(1).to(residual.dtype))
    return [of_projection, of_words, of_clusters, of_bias]


def zeros(band: BandWeights, wants: Sequence[bool]) -> list[Tensor | None]:
    """Of a band without tokens; not None: DistributedDataParallel waits for a gradient of each."""
    return [torch.zeros_like(t) if want else None for t, want in zip(band, wants, strict=True)]


def _added(total: Tensor | None, left: Tensor, right: Tensor) -> Tensor:
    """total + left @ right; right may be a vector. 16-bit products are added up in fp32."""
    if total is None:
        return left.mm(right) if right.dim() == 2 else left.mv(right)
    if total.dtype.itemsize < 4:
        total = total.float()
    if total.dtype != right.dtype:
        return total.add_(left @ right)
    return total.addmm_(left, right) if right.dim() == 2 else total.addmv_(left, right)


def no_autocast(device: str) -> AbstractContextManager:
    """All tensors have their type already; without an autocast entering costs nothing."""
    if torch.is_autocast_enabled(device):
        return torch.autocast(device, enabled=False)
    return nullcontext()
