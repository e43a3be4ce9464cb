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
    log_likelihood_,
    no_autocast,
    subtract_one_hot_,
    zeros,
)
from lmtime.softmax.bands import BandWeights
from lmtime.softmax.partition import Plan
from lmtime.softmax.products import Multiply


def n_scores(bands: Sequence[BandWeights], plan: Plan) -> int:
    """Of all bands and the tokens that meet them."""
    return count_scores((plan.n_tokens, *plan.counts), [band.n_entries for band in bands])


def new_terms(hidden: Tensor, plan: Plan) -> Tensor:
    """(3, n_tokens + n_tail_tokens, 1) for `band_forward`, fp32 at least."""
    dtype = torch.promote_types(hidden.dtype, torch.float32)
    return hidden.new_empty(3, plan.targets.shape[0], 1, dtype=dtype)


def scales_of(gradient: Tensor, plan: Plan, sizes: Sequence[int]) -> Sequence[Tensor]:
    """What reaches so many rows each of the head, then of the tails: (n, 1), or (1, 1) for all.

    gradient: () or (n_tokens,); ignored tokens get 0, for of a mean over no token it is infinite.
    """
    if plan.ignored is not None:
        gradient = gradient.expand(plan.n_tokens).masked_fill(plan.ignored, 0.0)
    if gradient.dim() == 0:
        return [gradient.view(1, 1)] * len(sizes)  # of no dimension it takes no part in the type
    rows = torch.cat([gradient, gradient.index_select(0, plan.rows)])
    return rows.unsqueeze(1).split_with_sizes(sizes)


def in_pieces(
    multiply: Multiply,
    hidden: Tensor,
    plan: Plan,
    bands: Sequence[BandWeights],
    gradient: float | Tensor | None,
    wants: Sequence[Sequence[bool]],
) -> tuple[Tensor, list[Tensor | None] | None]:
    """Log-probabilities, (n_tokens + n_tail_tokens, 1), and gradients of hidden and all tensors.

    gradient: what reaches each token's nll, one number or (n_tokens,); None: nothing does.
    """
    terms = new_terms(hidden, plan)
    of_hidden = None
    if gradient is not None:
        gradient = torch.as_tensor(gradient, dtype=terms.dtype, device=hidden.device)
        of_hidden = torch.zeros_like(hidden) if wants[0][0] and not plan.n_tokens else None
    grads: list[list[Tensor | None] | None] = [None] * len(bands)
    with no_autocast(hidden.device.type):
        for i, start, tokens, index, own_terms, scale in views_of(bands, plan, terms, gradient):
            if tokens is None:  # of the head, which meets every row
                rows = hidden.narrow(0, start, index.shape[0])
            else:
                rows = hidden.index_select(0, tokens)
            narrow, residual = band_forward(multiply, bands[i], rows, index, own_terms)
            own_log_prob = log_likelihood_(own_terms)
            if scale is not None:
                subtract_one_hot_(residual, index, own_log_prob.expm1())
                kept = Kept(rows, narrow, residual)
                of_rows, grads[i] = band_backward(
                    multiply, bands[i], kept, scale, wants[i], grads[i]
                )
                if of_rows is not None:
                    of_hidden = _joined(of_hidden, of_rows, tokens, start, hidden)
                del kept, of_rows
            del rows, narrow, residual  # before the next piece has its own
    log_prob = terms[0]
    if gradient is None:
        return log_prob, None
    return log_prob, [of_hidden, *_flat(grads, bands, wants, hidden.dtype)]


def views_of(
    bands: Sequence[BandWeights], plan: Plan, terms: Tensor, gradient: Tensor | None
) -> Iterator[tuple[int, int, Tensor | None, Tensor, Tensor, Tensor | None]]:
    """Of each piece its band, the place of its first row, its tokens, targets, terms and scales.

    One call each: a slice for every piece costs as much as a small operator.
    """
    pieces = pieces_of(bands, plan, terms.device.type)
    sizes = [n_rows for _, n_rows in pieces]
    starts = [0, *accumulate(sizes)][:-1]
    tails = plan.rows.split_with_sizes([n_rows for i, n_rows in pieces if i > 0])
    tokens = [None] * (len(pieces) - len(tails)) + list(tails)
    targets, parts = plan.targets.split_with_sizes(sizes), terms.split_with_sizes(sizes, 1)
    scales = [None] * len(sizes) if gradient is None else scales_of(gradient, plan, sizes)
    bands_of = [i for i, _ in pieces]
    return zip(bands_of, starts, tokens, targets, parts, scales, strict=True)


def _joined(
    of_hidden: Tensor | None, of_rows: Tensor, tokens: Tensor | None, start: int, hidden: Tensor
) -> Tensor:
    """With the gradient of a piece's rows: of the head, which comes first, or of some tokens."""
    if tokens is not None:
        return of_hidden.index_add_(0, tokens, of_rows)
    if of_rows.shape == hidden.shape:
        return of_rows
    of_hidden = torch.empty_like(hidden) if of_hidden is None else of_hidden
    of_hidden.narrow(0, start, of_rows.shape[0]).copy_(of_rows)
    return of_hidden


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


def pieces_of(bands: Sequence[BandWeights], plan: Plan, device: str) -> list[tuple[int, int]]:
    """Number of the band and rows of each piece, band after band."""
    counts = (plan.n_tokens, *plan.counts)
    n_entries = [band.n_entries for band in bands]
    n_weights = [sum(t.numel() for t in band if t is not None) for band in bands]
    steps = rows_at_once(counts, n_entries, n_weights, device)
    return [
        (i, min(step, n_rows - start))
        for i, (n_rows, step) in enumerate(zip(counts, steps, strict=True))
        for start in range(0, n_rows, step)
    ]
