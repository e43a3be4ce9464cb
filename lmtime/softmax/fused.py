"""The log-likelihoods of an adaptive softmax as one node of the graph.

The forward pass turns the scores of each band, in place, into a multiple of the gradient of the
negative log-likelihood with respect to them, `softmax - onehot` of each token: exponentials less
the sum of the row at the target; the division by that sum waits. The backward pass is then matrix
products alone: what arrives for each token, over the sum, scales the narrow factor of a product,
never the scores, so it may differ from token to token, and a second backward pass finds what the
first one found. What is kept: these scores once, the hidden states, the rows of the tail tokens
and their projections.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import NamedTuple

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from lmtime.softmax.bands import BandWeights
from lmtime.softmax.partition import Plan

# Scores whose softmax is taken at once: on a CPU they stay in the cache between two passes.
SCORES_AT_ONCE = {"cpu": 2**18}
SCORES_AT_ONCE_ELSEWHERE = 2**26

N_WEIGHTS = len(BandWeights._fields)


class AdaptiveNLL(torch.autograd.Function):
    """(n_tokens, input_size), plan, whether gradients are wanted, tensors of all bands -> nll.

    All tensors have one floating-point type; nll: (n_tokens,), fp32 at least, 0 where ignored.
    """

    @staticmethod
    def forward(ctx, hidden: Tensor, plan: Plan, keep: bool, *weights: Tensor | None) -> Tensor:
        n_tokens = len(hidden)
        accumulated = torch.promote_types(hidden.dtype, torch.float32)
        log_prob, sums = hidden.new_empty(2, n_tokens + len(plan.rows), 1, dtype=accumulated)
        tail_rows = hidden.index_select(0, plan.rows)
        sizes = (n_tokens, *plan.counts)
        inputs = [hidden, *tail_rows.split(plan.counts)]
        targets = [plan.entries, *plan.words.split(plan.counts)]
        outputs = [log_prob.split(sizes), sums.split(sizes)]
        kept: list[Tensor | None] = []
        for band, rows, index, *out in zip(_bands(weights), inputs, targets, *outputs, strict=True):
            kept += _band_forward(band, rows, index, *out) if len(rows) else (None, None)
        log_prob.sub_(sums.log())
        nll = log_prob[:n_tokens, 0].neg()
        nll.index_add_(0, plan.rows, log_prob[n_tokens:, 0], alpha=-1)
        if plan.ignored is not None:
            nll.masked_fill_(plan.ignored, 0.0)
        if keep:
            if accumulated != hidden.dtype:
                sums.fill_(1.0)  # these are divided already
            at_target = log_prob.expm1_().mul_(sums).to(hidden.dtype)  # exact near certainty
            for scores, index, value in zip(
                kept[1::2], targets, at_target.split(sizes), strict=True
            ):
                if scores is not None:
                    scores.scatter_(1, index.unsqueeze(1), value)
            ctx.counts = plan.counts
            saved = (hidden, tail_rows, plan.rows, plan.ignored, sums, *kept, *weights)
            ctx.save_for_backward(*saved)
        return nll

    @staticmethod
    @once_differentiable
    def backward(ctx, gradient: Tensor) -> tuple[Tensor | None, ...]:
        hidden, tail_rows, rows, ignored, sums, *saved = ctx.saved_tensors
        kept, weights = saved[: 2 + 2 * len(ctx.counts)], saved[2 + 2 * len(ctx.counts) :]
        wants_hidden, _, _, *wants = ctx.needs_input_grad
        if ignored is not None:  # of a mean over no token it is infinite
            gradient = gradient.masked_fill(ignored, 0.0)
        scales = torch.cat([gradient, gradient.index_select(0, rows)]).unsqueeze(1).div_(sums)
        grad_tail = torch.empty_like(tail_rows) if wants_hidden else None
        inputs = [hidden, *tail_rows.split(ctx.counts)]
        scales = scales.split((len(hidden), *ctx.counts))
        into = [torch.empty_like(hidden), *grad_tail.split(ctx.counts)] if wants_hidden else None
        grads: list[Tensor | None] = []
        with _no_autocast(hidden.device.type):
            for i, (band, wanted) in enumerate(zip(_bands(weights), _groups(wants), strict=True)):
                parts = _Kept(inputs[i], *kept[2 * i : 2 * i + 2])
                grads += _band_backward(band, parts, scales[i], wanted, into and into[i])
            if wants_hidden:
                into[0].index_add_(0, rows, grad_tail)
        return into and into[0], None, None, *grads


class _Kept(NamedTuple):
    """What a band needs in the backward pass; the last two are None where it met no token."""

    rows: Tensor  # (n, input_size)
    narrow: Tensor | None  # (n, width)
    residual: Tensor | None  # (n, n_entries), a multiple of softmax - onehot


def _band_forward(
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
    pieces = [whole] if len(rows) <= n_rows else zip(*(x.split(n_rows) for x in whole), strict=True)
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


def _band_backward(
    band: BandWeights, kept: _Kept, scale: Tensor, wants: Sequence[bool], into: Tensor | None
) -> list[Tensor | None]:
    """Gradients of projection, words, clusters and bias; that of the rows is put in `into`.

    scale: (n, 1), what arrives for each token over the sum of its row.
    """
    rows, narrow, residual = kept
    if residual is None:  # zeros, not None: DistributedDataParallel waits for a gradient of each
        zeros = zip(band, wants, strict=True)
        return [torch.zeros_like(tensor) if wanted else None for tensor, wanted in zeros]
    wants_projection, wants_words, wants_clusters, wants_bias = wants
    parts = [residual] if band.clusters is None else residual.split(band.sizes, dim=1)
    words = clusters = projection = None
    if wants_words or wants_clusters:
        scaled = torch.mul(narrow, scale, out=torch.empty_like(narrow))
        words = parts[0].t().mm(scaled) if wants_words else None
        clusters = parts[1].t().mm(scaled) if wants_clusters else None
    bias = residual.t().mv(scale.squeeze(1).to(residual.dtype)) if wants_bias else None
    if into is not None or wants_projection:
        grad = torch.empty_like(narrow) if into is None or band.projection is not None else into
        torch.mm(parts[0], band.words, out=grad)
        if band.clusters is not None:
            grad.addmm_(parts[1], band.clusters)
        grad.mul_(scale)
        projection = grad.t().mm(rows) if wants_projection else None
        if band.projection is not None and into is not None:
            torch.mm(grad, band.projection, out=into)
    return [projection, words, clusters, bias]


def _groups(flat: Sequence) -> list[Sequence]:
    """What belongs to each band."""
    return [flat[i : i + N_WEIGHTS] for i in range(0, len(flat), N_WEIGHTS)]


def _bands(weights: Sequence[Tensor | None]) -> list[BandWeights]:
    return [BandWeights(*group) for group in _groups(weights)]


def _no_autocast(device: str) -> AbstractContextManager:
    """All tensors have their type already; without an autocast entering costs nothing."""
    if torch.is_autocast_enabled(device):
        return torch.autocast(device, enabled=False)
    return nullcontext()
