"""An adaptive softmax whose scores are dropped piece by piece, their gradients being taken first.

A piece is some rows of a band: `lmtime.cost.folding` says how many.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import accumulate

import torch
from torch import Tensor

from lmtime.cost.folding import count_scores, rows_at_once
from lmtime.softmax.band_products import (
    Kept,
    band_backward,
    band_forward,
    no_autocast,
    to_residual_,
    zeros,
)
from lmtime.softmax.bands import BandWeights
from lmtime.softmax.partition import Plan


def n_scores(bands: Sequence[BandWeights], plan: Plan) -> int:
    """Of all bands and the tokens that meet them."""
    return count_scores((plan.n_tokens, *plan.counts), [sum(band.sizes) for band in bands])


def n_weights(bands: Sequence[BandWeights]) -> int:
    """Values of all tensors of all bands."""
    return sum(tensor.numel() for band in bands for tensor in band if tensor is not None)


def for_each_row(gradient: Tensor, plan: Plan) -> Tensor:
    """What reaches each row of the head, then of the tails; a single number stays one.

    gradient: () or (n_tokens,); ignored tokens get 0, for of a mean over no token it is infinite.
    """
    if plan.ignored is not None:
        gradient = gradient.expand(plan.n_tokens).masked_fill(plan.ignored, 0.0)
    if gradient.dim() == 0:
        return gradient
    return torch.cat([gradient, gradient.index_select(0, plan.rows)]).unsqueeze(1)


def in_pieces(
    hidden: Tensor,
    plan: Plan,
    bands: Sequence[BandWeights],
    gradient: float | Tensor | None,
    wants: Sequence[Sequence[bool]],
) -> tuple[Tensor, list[Tensor | None] | None]:
    """Log-probabilities, (n_tokens + n_tail_tokens, 1), and gradients of hidden and all tensors.

    gradient: what reaches each token's nll, one number or (n_tokens,); None: nothing does.
    """
    n_rows = plan.n_tokens + plan.n_tail_tokens
    accumulated = torch.promote_types(hidden.dtype, torch.float32)
    log_prob = hidden.new_empty(n_rows, 1, dtype=accumulated)
    (wants_hidden,), *wants = wants
    learns = gradient is not None
    if learns:
        gradient = torch.as_tensor(gradient, dtype=accumulated, device=hidden.device)
        gradient = for_each_row(gradient, plan).expand(n_rows, 1)
    into = torch.empty_like(hidden) if learns and wants_hidden else None
    entries = torch.cat([plan.entries, plan.words])
    grads: list[list[Tensor | None] | None] = [None] * len(bands)
    with no_autocast(hidden.device.type):
        for i, own, tokens in pieces_of(bands, plan, hidden.device.type):
            rows = hidden[tokens] if i == 0 else hidden.index_select(0, tokens)
            sums = torch.empty_like(log_prob[own])
            narrow, scores = band_forward(bands[i], rows, entries[own], log_prob[own], sums)
            log_prob[own].sub_(sums.log())
            if not learns:
                continue
            to_residual_([scores], [entries[own]], log_prob[own], sums)
            out = None
            if wants_hidden:  # the head meets every row first
                out = into[tokens] if i == 0 else torch.empty_like(rows)
            kept = Kept(rows, narrow, scores)
            grads[i] = band_backward(bands[i], kept, gradient[own] / sums, wants[i], out, grads[i])
            if wants_hidden and i > 0:
                into.index_add_(0, tokens, out)
            del narrow, scores, kept  # before the next piece has its own
    if not learns:
        return log_prob, None
    return log_prob, [into, *_flat(grads, bands, wants, hidden.dtype)]


def _flat(
    grads: Sequence[list[Tensor | None] | None],
    bands: Sequence[BandWeights],
    wants: Sequence[Sequence[bool]],
    dtype: torch.dtype,
) -> Iterator[Tensor | None]:
    """Gradients one after the other; zeros for a band without tokens."""
    for found, band, wanted in zip(grads, bands, wants, strict=True):
        for grad in zeros(band, wanted) if found is None else found:
            yield None if grad is None else grad.to(dtype)


def pieces_of(
    bands: Sequence[BandWeights], plan: Plan, device: str
) -> Iterator[tuple[int, slice, slice | Tensor]]:
    """Number of the band, places in the list of all rows, and the tokens there."""
    counts = (plan.n_tokens, *plan.counts)
    n_entries = [sum(band.sizes) for band in bands]
    n_weights = [sum(t.numel() for t in band if t is not None) for band in bands]
    steps = rows_at_once(counts, n_entries, n_weights, device)
    for i, (n_rows, end, step) in enumerate(zip(counts, accumulate(counts), steps, strict=True)):
        for start in range(end - n_rows, end, step):
            own = slice(start, min(start + step, end))
            tail = slice(own.start - plan.n_tokens, own.stop - plan.n_tokens)
            yield i, own, own if i == 0 else plan.rows[tail]
