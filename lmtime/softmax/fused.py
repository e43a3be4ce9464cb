"""The log-likelihoods of an adaptive softmax as one node of the graph.

The scores of each band become, in place, a multiple of the gradient of the negative log-likelihood
with respect to them, `softmax - onehot` of each token: exponentials less the sum of the row at the
target; the division by that sum waits. The gradients are then matrix products alone: what arrives
for each token, over the sum, scales the narrow factor of a product, never the scores. When the
products are taken depends on the size (`lmtime.cost.folding`):

- few scores are kept, once, with the rows of the tail tokens and their projections. The backward
  pass takes the products; a second one finds what the first one found.
- many scores, of a loss whose shares are known, give their products in the forward pass, piece by
  piece (`pieces.py`), and are dropped. The first backward pass of the loss alone takes the
  gradients away, to scale them in place; what is asked later is made again.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from lmtime.cost.folding import folds
from lmtime.errors import UsageError
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
from lmtime.softmax.pieces import for_each_row, in_pieces, n_scores, n_weights

N_WEIGHTS = len(BandWeights._fields)


class AdaptiveNLL(torch.autograd.Function):
    """(n_tokens, input_size), plan, share, whether it learns, tensors of all bands -> nll, loss.

    All tensors have one floating-point type; nll: (n_tokens,), fp32 at least, 0 where ignored.
    share: of each token's nll in the loss, one number or (n_tokens,); None: there is no loss.
    """

    @staticmethod
    def forward(
        ctx,
        hidden: Tensor,
        plan: Plan,
        share: float | Tensor | None,
        learns: bool,
        *weights: Tensor | None,
    ) -> tuple[Tensor, Tensor | None]:
        ctx.set_materialize_grads(False)
        ctx.plan, ctx.share = plan, share
        bands = _bands(weights)
        # fp16 gradients must be scaled before they are rounded: their range is small.
        foldable = not learns or (share is not None and hidden.dtype != torch.float16)
        ctx.folds = foldable and folds(n_scores(bands, plan), n_weights(bands))
        if ctx.folds:
            own = share if learns else None
            log_prob, ctx.ready = in_pieces(hidden, plan, bands, own, _wants(ctx))
            saved = (hidden,)
        else:
            log_prob, *saved = _whole(hidden, plan, bands, learns)
        if learns:
            ctx.save_for_backward(*saved, *weights)
        n_tokens = plan.n_tokens
        nll = log_prob[:n_tokens, 0].neg()
        nll.index_add_(0, plan.rows, log_prob[n_tokens:, 0], alpha=-1)
        if plan.ignored is not None:
            nll.masked_fill_(plan.ignored, 0.0)
        return nll, None if share is None else (nll * share).sum()

    @staticmethod
    def backward(
        ctx, grad_nll: Tensor | None, grad_loss: Tensor | None
    ) -> tuple[Tensor | None, ...]:
        if torch.is_grad_enabled():  # `once_differentiable` lets a constant pass for a gradient
            raise UsageError(
                "create_graph=True is not for the fused adaptive softmax: give it capacities, or "
                "take TorchAdaptiveSoftmax"
            )
        if grad_nll is None and grad_loss is None:  # none arrives
            return (None,) * len(ctx.needs_input_grad)
        tensors, n_weights = ctx.saved_tensors, N_WEIGHTS * (1 + len(ctx.plan.counts))
        (hidden, *kept), bands = tensors[:-n_weights], _bands(tensors[-n_weights:])
        gradient = grad_nll
        if grad_loss is not None:
            through_loss = grad_loss * ctx.share
            gradient = through_loss if grad_nll is None else grad_nll + through_loss
        with no_autocast(hidden.device.type):
            if not ctx.folds:
                grads = _products(hidden, ctx.plan, bands, kept, gradient, _wants(ctx))
            elif grad_nll is not None:
                grads = in_pieces(hidden, ctx.plan, bands, gradient, _wants(ctx))[1]
            else:
                grads, ctx.ready = ctx.ready, None
                if grads is None:
                    grads = in_pieces(hidden, ctx.plan, bands, ctx.share, _wants(ctx))[1]
                _scale_(grads, grad_loss)
        return grads[0], None, None, None, *grads[1:]


def _whole(
    hidden: Tensor, plan: Plan, bands: Sequence[BandWeights], learns: bool
) -> tuple[Tensor | None, ...]:
    """Log-probabilities of the entries of the head and of the tails, and what is kept."""
    n_tokens = plan.n_tokens
    accumulated = torch.promote_types(hidden.dtype, torch.float32)
    log_prob, sums = hidden.new_empty(2, n_tokens + plan.n_tail_tokens, 1, dtype=accumulated)
    tail_rows = hidden.index_select(0, plan.rows)
    sizes = (n_tokens, *plan.counts)
    # `Tensor.split` and `len` are functions of Python around what stands here.
    inputs = [hidden, *tail_rows.split_with_sizes(plan.counts)]
    targets = [plan.entries, *plan.words.split_with_sizes(plan.counts)]
    outputs = [log_prob.split_with_sizes(sizes), sums.split_with_sizes(sizes)]
    kept: list[Tensor | None] = []
    for band, rows, index, *out in zip(bands, inputs, targets, *outputs, strict=True):
        found = band_forward(band, rows, index, *out) if rows.shape[0] else (None, None)
        kept += found if learns else ()
    log_prob.sub_(sums.log())
    if learns and n_tokens:
        to_residual_(kept[1::2], targets, log_prob, sums)
    return log_prob, hidden, tail_rows, sums, *kept


def _products(
    hidden: Tensor,
    plan: Plan,
    bands: Sequence[BandWeights],
    kept: Sequence[Tensor | None],
    gradient: Tensor,
    wants: Sequence[Sequence[bool]],
) -> list[Tensor | None]:
    """Gradients of hidden and of all tensors of the bands, from what `_whole` has kept."""
    tail_rows, sums, *kept = kept
    (wants_hidden,), *wants = wants
    scales = (for_each_row(gradient, plan) / sums).split_with_sizes((plan.n_tokens, *plan.counts))
    inputs = [hidden, *tail_rows.split_with_sizes(plan.counts)]
    into = grad_tail = None
    if wants_hidden:
        grad_tail = torch.empty_like(tail_rows)
        into = [torch.empty_like(hidden), *grad_tail.split_with_sizes(plan.counts)]
    grads: list[Tensor | None] = []
    for i, (band, wanted) in enumerate(zip(bands, wants, strict=True)):
        parts = Kept(inputs[i], *kept[2 * i : 2 * i + 2])
        if parts.residual is None:
            grads += zeros(band, wanted)
        else:
            grads += band_backward(band, parts, scales[i], wanted, into and into[i])
    if wants_hidden:
        into[0].index_add_(0, plan.rows, grad_tail)
    return [into and into[0], *grads]


def _scale_(grads: Sequence[Tensor | None], factor: Tensor) -> None:
    """In place; on a GPU the host does not look at the factor, as it would have to wait."""
    if factor.device.type == "cpu" and factor.tolist() == 1.0:
        return
    for grad in grads:
        if grad is not None:
            grad.mul_(factor)


def _bands(weights: Sequence[Tensor | None]) -> list[BandWeights]:
    starts = range(0, len(weights), N_WEIGHTS)
    return [BandWeights(*weights[i : i + N_WEIGHTS]) for i in starts]


def _wants(ctx) -> list[Sequence[bool]]:
    """Which gradients: of the hidden states, then of the tensors of each band."""
    hidden, _, _, _, *weights = ctx.needs_input_grad
    starts = range(0, len(weights), N_WEIGHTS)
    return [(hidden,), *(weights[i : i + N_WEIGHTS] for i in starts)]
