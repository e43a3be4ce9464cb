"""Log-likelihoods under the softmax of a product, and their gradients, a chunk of rows at a time.

One chunk lives at a time. Beside the products it is passed over three times: by the log-softmax and
the softmax, which stay in the cache with each row, and by the scale of the rows. `torch.logsumexp`
would write two temporaries of the chunk's size. By the BLAS its rows begin on cache lines
(`products.py`): there is room at the end of each, of likelihood 0.
"""

from __future__ import annotations

from functools import partial
from typing import NamedTuple

import torch
from torch import Tensor
from torch.autograd.function import FunctionCtx

from lmtime.errors import UsageError
from lmtime.softmax.products import Multiply, gradient_of_weights, in_lines, onednn


class Plan(NamedTuple):
    """How the rows are taken, and which loss is known before the backward pass."""

    chunk_rows: int
    dtype: torch.dtype  # of the operands of the products, but see `_product_dtype`
    shares: tuple[Tensor, Tensor] | None  # of each token's nll and uniform_nll in `total`, (n,)
    multiply: Multiply  # for the gradients of the rows, and `onednn` for the logits too
    word_shares: Tensor | None  # (vocab_size,), of each word in uniform_nll; None leaves it out


class ChunkedNLL(torch.autograd.Function):
    """hidden, weight, bias or None, targets, Plan -> nll, uniform_nll or None, total or None.

    nll, uniform_nll: (n,), of the target and of all words in their shares. total: both summed in
    the shares of the plan; its gradients are made in the forward pass. The first backward pass of
    the total alone takes them away, to scale them in place; what is asked later is made again.
    """

    @staticmethod
    def forward(
        ctx: FunctionCtx,
        hidden: Tensor,
        weight: Tensor,
        bias: Tensor | None,
        targets: Tensor,
        plan: Plan,
    ) -> tuple[Tensor, Tensor | None, Tensor | None]:
        ctx.set_materialize_grads(False)
        ctx.save_for_backward(hidden, weight, bias, targets)
        ctx.plan = plan
        chunks = _Chunks(hidden, weight, bias, targets, plan)
        if plan.shares is None:
            return (*chunks.run(None, ctx.needs_input_grad)[:2], None)
        nll, uniform_nll, ctx.ready = chunks.run(plan.shares, ctx.needs_input_grad)
        total = (plan.shares[0] * nll).sum()
        if uniform_nll is not None:
            total += (plan.shares[1] * uniform_nll).sum()
        return nll, uniform_nll, total

    @staticmethod
    def backward(
        ctx: FunctionCtx,
        grad_nll: Tensor | None,
        grad_uniform: Tensor | None,
        grad_total: Tensor | None,
    ) -> tuple[Tensor | None, ...]:
        *inputs, targets = ctx.saved_tensors  # raises where the graph is freed
        if torch.is_grad_enabled():
            raise UsageError("create_graph=True is not for a softmax in chunks: take FullSoftmax")
        if grad_nll is grad_uniform is grad_total is None:
            return None, None, None, None, None
        again = partial(_again, inputs, targets, ctx.plan, ctx.needs_input_grad)
        if grad_nll is None and grad_uniform is None:
            grads, ctx.ready = ctx.ready, None
            grads = again(ctx.plan.shares) if grads is None else grads
            grads = [None if grad is None else grad.mul_(grad_total) for grad in grads]
        else:
            grads = again(_scales((grad_nll, grad_uniform), grad_total, ctx.plan.shares))
        typed = [g if g is None else g.to(x.dtype) for g, x in zip(grads, inputs, strict=True)]
        return (*typed, None, None)


class _Chunks:
    """The operands in the type of the products, and the loop over their rows."""

    def __init__(
        self, hidden: Tensor, weight: Tensor, bias: Tensor | None, targets: Tensor, plan: Plan
    ) -> None:
        dtype = _product_dtype(plan.dtype, hidden.device)
        self.sum_dtype = torch.promote_types(dtype, torch.float32)
        self.hidden, self.weight = hidden.to(dtype), weight.to(dtype)
        self.bias = None if bias is None else bias.to(self.sum_dtype)
        self.targets = targets[:, None]
        self.plan = plan

    def run(
        self, scales: tuple[Tensor, Tensor] | None, needs: tuple[bool, ...]
    ) -> tuple[Tensor, Tensor | None, list[Tensor | None]]:
        """nll, uniform_nll, and the gradients of both in the given scales, (n,) each."""
        n_tokens, smooth = len(self.hidden), self.plan.word_shares is not None
        inputs = (self.hidden, self.weight, self.bias)
        wanted = [scales is not None and need for need in needs[:3]]
        with torch.autocast(self.hidden.device.type, enabled=False):
            grads = [
                torch.zeros_like(x, dtype=self.sum_dtype) if want else None
                for x, want in zip(inputs, wanted, strict=True)
            ]
            nll = self.hidden.new_empty(n_tokens, dtype=self.sum_dtype)
            uniform_nll = torch.empty_like(nll) if smooth else None
            for start in range(0, n_tokens, self.plan.chunk_rows):
                rows = slice(start, start + self.plan.chunk_rows)
                lines = self._log_prob(rows)
                log_prob = self._of_words(lines)
                nll[rows] = -log_prob.gather(1, self.targets[rows])[:, 0]
                if smooth:
                    uniform_nll[rows] = -(log_prob @ self.plan.word_shares)
                if any(wanted):
                    self._to_gradient_(lines, rows, scales)
                    self._add_products(log_prob, rows, grads)
                del lines, log_prob  # before the next chunk has its own
        return nll, uniform_nll, grads

    def _log_prob(self, rows: slice) -> Tensor:
        """(chunk, vocab_size), with what room there is in a row."""
        hidden = self.hidden[rows]
        if self.plan.multiply is onednn:
            logits = onednn(hidden, self.weight)
        else:
            logits = in_lines(hidden, [self.weight], None)
        logits = logits.to(self.sum_dtype)
        if self.bias is not None:
            self._of_words(logits).add_(self.bias)
        return torch.log_softmax(logits, -1, out=logits)

    def _of_words(self, lines: Tensor) -> Tensor:
        """Without the room, a view."""
        return lines.narrow(1, 0, self.weight.shape[0])

    def _to_gradient_(self, lines: Tensor, rows: slice, scales: tuple[Tensor, Tensor]) -> None:
        """Of the logits, in the place of the log-probabilities."""
        target_scale, uniform_scale = (scale[rows, None] for scale in scales)
        torch.softmax(lines, -1, out=lines)  # twice as fast as `exp`, and as exact
        targets, word_shares = self.targets[rows], self.plan.word_shares
        if word_shares is None:
            lines.mul_(target_scale)
        else:
            lines.mul_(target_scale + uniform_scale * word_shares.sum())
            self._of_words(lines).addr_(uniform_scale[:, 0], word_shares, alpha=-1)
        lines.scatter_(1, targets, lines.gather(1, targets) - target_scale)

    def _add_products(self, grad: Tensor, rows: slice, grads: list[Tensor | None]) -> None:
        """16-bit products are summed in fp32: the error does not grow with the number of chunks."""
        grad_hidden, grad_weight, grad_bias = grads
        if grad_bias is not None:
            grad_bias += grad.sum(0)
        grad = grad.to(self.hidden.dtype)
        if grad_hidden is not None:
            grad_hidden[rows] = self.plan.multiply(grad, self.weight.T)
        if grad_weight is None:
            return
        if grad.dtype == grad_weight.dtype:
            gradient_of_weights(grad, self.hidden[rows], grad_weight)
        else:
            grad_weight += grad.T @ self.hidden[rows]


def _again(
    inputs: list[Tensor | None],
    targets: Tensor,
    plan: Plan,
    needs: tuple[bool, ...],
    scales: tuple[Tensor, Tensor],
) -> list[Tensor | None]:
    return _Chunks(*inputs, targets, plan).run(scales, needs)[2]


def _product_dtype(dtype: torch.dtype, device: torch.device) -> torch.dtype:
    """On a CPU fp32 for 16 bits: torch's 16-bit products there are 5 to 80 times slower.

    Measured with torch 2.13 on a processor without 16-bit arithmetic; it takes an fp32 copy of the
    weights.
    """
    return torch.promote_types(dtype, torch.float32) if device.type == "cpu" else dtype


def _scales(
    grads: tuple[Tensor | None, Tensor | None],
    grad_total: Tensor | None,
    shares: tuple[Tensor, Tensor] | None,
) -> tuple[Tensor, ...]:
    """What reaches each token's nll and uniform_nll, on their own and through the total."""
    given = next(grad for grad in grads if grad is not None)
    scales = [torch.zeros_like(given) if grad is None else grad for grad in grads]
    if grad_total is not None:
        scales = [scale + grad_total * share for scale, share in zip(scales, shares, strict=True)]
    return tuple(scales)
