"""The log-likelihoods of an adaptive softmax as one node of the graph.

The scores of each band become, in place, the gradient of the negative log-likelihood
with respect to them, `softmax - onehot` of each token. The gradients are then matrix products
alone: what arrives for each token scales the narrow factor of a product, never the scores.

- Of a loss whose shares are known, as of a mean, the products are taken in the forward pass, piece
  by piece (`pieces.py`), and the scores are dropped. The first backward pass of the loss alone
  takes the gradients away, to scale them in place; what is asked later, or of `nll`, is made again.
- Few scores, those of other losses, and fp16 ones, whose gradients must be scaled before they are
  rounded, are kept, once, with the rows of the tail tokens and their projections. The backward pass
  takes the products; a second one finds what the first one found.
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
    log_likelihood_,
    no_autocast,
    subtract_one_hot_,
    zeros,
)
from lmtime.softmax.bands import BandWeights
from lmtime.softmax.partition import Plan
from lmtime.softmax.pieces import in_pieces, n_scores, new_terms, scales_of
from lmtime.softmax.products import Multiply

N_WEIGHTS = len(BandWeights._fields)


class AdaptiveNLL(torch.autograd.Function):
    """(n_tokens, input_size), plan, share, learns, multiply, tensors of all bands -> nll, loss.

    All tensors have one floating-point type; nll: (n_tokens,), fp32 at least, 0 where ignored.
    share: of each token's nll in the loss, one number or (n_tokens,); None: there is no loss.
    learns: whether there will be a backward pass; multiply: for all products but
    the gradients of the weights.
    """

    @staticmethod
    def forward(
        ctx,
        hidden: Tensor,
        plan: Plan,
        share: float | Tensor | None,
        learns: bool,
        multiply: Multiply,
        *weights: Tensor | None,
    ) -> tuple[Tensor, Tensor | None]:
        ctx.set_materialize_grads(False)
        ctx.plan, ctx.share, ctx.multiply = plan, share, multiply
        bands = _bands(weights)
        foldable = share is not None and hidden.dtype != torch.float16
        ctx.folds = not learns or (foldable and folds(n_scores(bands, plan)))
        if ctx.folds:
            own = share if learns else None
            log_prob, ctx.ready = in_pieces(multiply, hidden, plan, bands, own, _wants(ctx))
            saved = (hidden,)
        else:
            log_prob, *saved = _whole(multiply, hidden, plan, bands)
        if learns:
            ctx.save_for_backward(*saved, *weights)
        head, tails = log_prob.view(-1).split_with_sizes((plan.n_tokens, plan.n_tail_tokens))
        nll = head.neg().index_add_(0, plan.rows, tails, alpha=-1)
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
        multiply, plan, wants = ctx.multiply, ctx.plan, _wants(ctx)
        with no_autocast(hidden.device.type):
            if not ctx.folds:
                grads = _products(multiply, plan, bands, (hidden, *kept), gradient, wants)
            elif grad_nll is not None:
                grads = in_pieces(multiply, hidden, plan, bands, gradient, wants)[1]
            else:
                grads, ctx.ready = ctx.ready, None
                if grads is None:
                    grads = in_pieces(multiply, hidden, plan, bands, ctx.share, wants)[1]
                _scale_(grads, grad_loss)
        return grads[0], None, None, None, None, *grads[1:]


def _whole(
    multiply: Multiply, hidden: Tensor, plan: Plan, bands: Sequence[BandWeights]
) -> tuple[Tensor | None, ...]:
    """Log-probabilities of the entries of the head and of the tails, and what is kept."""
    terms = new_terms(hidden, plan)
    tail_rows = hidden.index_select(0, plan.rows)
    # `Tensor.split` and `len` are functions of Python around what stands here.
    inputs = [hidden, *tail_rows.split_with_sizes(plan.counts)]
    sizes = (plan.n_tokens, *plan.counts)
    targets = plan.targets.split_with_sizes(sizes)
    kept: list[Tensor | None] = []
    for band, rows, index, part in zip(
        bands, inputs, targets, terms.split_with_sizes(sizes, 1), strict=True
    ):
        kept += band_forward(multiply, band, rows, index, part) if rows.shape[0] else (None, None)
    log_prob = log_likelihood_(terms)
    for residual, index, less_one in zip(
        kept[1::2], targets, log_prob.expm1().split_with_sizes(sizes), strict=True
    ):
        if residual is not None:
            subtract_one_hot_(residual, index, less_one)
    return log_prob, hidden, tail_rows, *kept


def _products(
    multiply: Multiply,
    plan: Plan,
    bands: Sequence[BandWeights],
    kept: Sequence[Tensor | None],
    gradient: Tensor,
    wants: Sequence[Sequence[bool]],
) -> list[Tensor | None]:
    """Gradients of hidden and of all tensors of the bands, from what `_whole` has kept."""
    hidden, tail_rows, *kept = kept
    sizes = (plan.n_tokens, *plan.counts)
    scales = scales_of(gradient, plan, sizes)
    inputs = [hidden, *tail_rows.split_with_sizes(plan.counts)]
    tokens = [None, *plan.rows.split_with_sizes(plan.counts)]
    of_hidden = torch.zeros_like(hidden) if wants[0][0] and not plan.n_tokens else None
    grads: list[Tensor | None] = []
    for i, (band, wanted) in enumerate(zip(bands, wants, strict=True)):
        parts = Kept(inputs[i], *kept[2 * i : 2 * i + 2])
        if parts.residual is None:
            grads += zeros(band, wanted)
            continue
        of_rows, found = band_backward(multiply, band, parts, scales[i], wanted)
        grads += found
        if i == 0:  # the head meets every token
            of_hidden = of_rows
        elif of_rows is not None:
            of_hidden.index_add_(0, tokens[i], of_rows)
    return [of_hidden, *grads]


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
    """Which gradients of each band: of its rows, then of its tensors."""
    hidden, _, _, _, _, *weights = ctx.needs_input_grad
    starts = range(0, len(weights), N_WEIGHTS)
    return [(hidden, *weights[i : i + N_WEIGHTS]) for i in starts]
