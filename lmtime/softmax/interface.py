"""The signature of an output layer, and what all of them share: the reduction to a loss."""

from __future__ import annotations

import math
from operator import index
from typing import NamedTuple

import torch
from torch import Tensor, nn

from lmtime.errors import UsageError, unknown

REDUCTIONS = ("mean", "sum", "none")


class OutputLoss(NamedTuple):
    """What an output layer returns for a batch of targets."""

    nll: Tensor  # (...), nats for each token, 0 where the target is ignored
    loss: Tensor  # reduced over the tokens that are not ignored; (...) for reduction "none"


class Reduction(nn.Module):
    """From the log-likelihood of each token to the loss, as `F.cross_entropy` reduces it.

    With every target ignored the mean is nan and all gradients are zero, as in torch; so they are
    where no target has any weight.
    """

    def __init__(self, ignore_index: int, reduction: str, label_smoothing: float) -> None:
        super().__init__()
        if reduction not in REDUCTIONS:
            raise unknown("reduction", reduction, list(REDUCTIONS))
        if not 0 <= label_smoothing <= 1:
            raise UsageError(f"label_smoothing={label_smoothing} must lie between 0 and 1")
        self.ignore_index = _checked_ignore_index(ignore_index)
        self.reduction = reduction
        self.label_smoothing = label_smoothing

    def forward(
        self,
        nll: Tensor,
        uniform_nll: Tensor | None,
        targets: Tensor,
        weight: Tensor | None = None,
    ) -> OutputLoss:
        """nll, targets: (n_tokens,); uniform_nll: (n_tokens,), of `mean_nll`, or None.

        weight: (vocab_size,), what a word counts in the loss.
        """
        ignored = targets == self.ignore_index
        losses = nll = nll.masked_fill(ignored, 0.0)
        if weight is not None:
            known = targets.masked_fill(ignored, 0)
            counts = weight.to(nll.dtype).index_select(0, known).masked_fill(ignored, 0.0)
            losses = counts * nll
        if uniform_nll is not None:
            uniform_nll = uniform_nll.masked_fill(ignored, 0.0)
            losses = torch.lerp(losses, uniform_nll, self.label_smoothing)
        if self.reduction == "none":
            return OutputLoss(nll, losses)
        total = losses.sum()
        if self.reduction == "mean":
            total = total / (~ignored).sum() if weight is None else mean(total, counts.sum())
        return OutputLoss(nll, total)


def _checked_ignore_index(ignore_index: int) -> int:
    try:
        whole = index(ignore_index)
    except TypeError:
        whole = None
    if whole is None or not -(2**63) <= whole < 2**63 - 1:
        raise UsageError(f"{ignore_index=} must be a whole number of 64 bits; -100 stands for none")
    return whole


def mean(total: Tensor, weight: Tensor) -> Tensor:
    """total / weight; nan without any weight, and then no gradient is."""
    nothing = weight == 0
    return (total / weight.masked_fill(nothing, 1.0)).masked_fill(nothing, math.nan)


def mean_nll(log_prob: Tensor, weight: Tensor | None) -> Tensor:
    """For label smoothing: (n_tokens, vocab_size) -> (n_tokens,), weighted, over all words."""
    if weight is None:
        return -log_prob.mean(-1)
    return -(log_prob @ weight.to(log_prob.dtype)) / log_prob.shape[-1]


def product_dtype(hidden: Tensor, own: torch.dtype) -> torch.dtype:
    """The type of a product with weights of type `own`: an autocast's, which leaves fp64 alone."""
    device = hidden.device.type
    if own != torch.float64 and torch.is_autocast_enabled(device):
        return torch.get_autocast_dtype(device)
    return own


def check_int64(targets: Tensor) -> None:
    """Functions of torch differ in which other types they take."""
    found = targets.dtype if isinstance(targets, Tensor) else f"a {type(targets).__name__}"
    if found != torch.int64:
        raise UsageError(f"targets are {found} and must be torch.int64")


def shaped_like(targets: Tensor, nll: Tensor, loss: Tensor) -> OutputLoss:
    """nll: (n_tokens,), and a loss of the same shape or of none."""
    if targets.dim() == 1:  # a view is an operator and a node of the graph
        return OutputLoss(nll, loss)
    shape = targets.shape
    return OutputLoss(nll.reshape(shape), loss.reshape(shape) if loss.dim() else loss)


class OutputLayer(nn.Module):
    """A normalised distribution over the vocabulary, given a hidden state.

    A subclass says how likely the targets are (`token_nll`), and how likely every word is
    (`all_log_prob`), both for hidden states of shape (n_tokens, hidden_size).

    weight: (vocab_size,), as that of `F.cross_entropy`; `nll` stays unweighted.
    """

    def __init__(
        self,
        hidden_size: int,
        vocab_size: int,
        *,
        weight: Tensor | None = None,
        ignore_index: int = -100,
        reduction: str = "mean",
        label_smoothing: float = 0.0,
    ) -> None:
        super().__init__()
        if weight is not None:
            weight = torch.as_tensor(weight).detach()
            if weight.shape != (vocab_size,):
                raise UsageError(
                    f"weight of shape {tuple(weight.shape)} must be ({vocab_size},), one a word"
                )
        self.hidden_size = hidden_size
        self.vocab_size = vocab_size
        self.register_buffer("weight", weight)
        self.loss = Reduction(ignore_index, reduction, label_smoothing)

    def token_nll(self, hidden: Tensor, targets: Tensor) -> tuple[Tensor, Tensor | None]:
        """Negative log-likelihood of the target and, with label smoothing, `mean_nll`.

        Both (n_tokens,); where the target is ignored they may hold any finite value.
        """
        raise NotImplementedError

    def all_log_prob(self, hidden: Tensor) -> Tensor:
        """Log-probability of every word, (n_tokens, vocab_size)."""
        raise NotImplementedError

    def reduce(self, hidden: Tensor, targets: Tensor) -> OutputLoss:
        """(n_tokens, hidden_size), (n_tokens,) -> (n_tokens,), and the loss.

        A layer overrides it that can take the gradients of a known reduction earlier.
        """
        return self.loss(*self.token_nll(hidden, targets), targets, self.weight)

    def forward(self, hidden: Tensor, targets: Tensor) -> OutputLoss:
        """hidden: (..., hidden_size); targets: (...) int64."""
        rows, flat = self._checked(hidden, targets)
        return shaped_like(targets, *self.reduce(rows, flat))

    def _checked(self, hidden: Tensor, targets: Tensor) -> tuple[Tensor, Tensor]:
        """Hidden states that lie in rows, (n_tokens, hidden_size), and targets, (n_tokens,)."""
        check_int64(targets)
        rows = self._rows(hidden)
        if hidden.shape[:-1] != targets.shape:
            raise UsageError(
                f"hidden of shape {tuple(hidden.shape)} needs targets of shape "
                f"{tuple(hidden.shape[:-1])}, not {tuple(targets.shape)}"
            )
        return rows.contiguous(), targets.flatten().contiguous()

    def log_prob(self, hidden: Tensor) -> Tensor:
        """Log-probability of every word: (..., hidden_size) -> (..., vocab_size)."""
        flat = self.all_log_prob(self._rows(hidden))
        return flat.reshape(*hidden.shape[:-1], flat.shape[-1])

    def predict(self, hidden: Tensor) -> Tensor:
        """The most likely word: (..., hidden_size) -> (...) int64."""
        return self.log_prob(hidden).argmax(-1)

    def _rows(self, hidden: Tensor) -> Tensor:
        """(..., hidden_size) -> (n_tokens, hidden_size)."""
        if not hidden.dim() or not hidden.is_floating_point():
            raise UsageError(
                f"hidden states of shape {tuple(hidden.shape)} and {hidden.dtype} must be "
                f"(..., {self.hidden_size}) and floating-point"
            )
        if hidden.shape[-1] != self.hidden_size:
            raise UsageError(f"hidden states {hidden.shape[-1]} wide must be {self.hidden_size}")
        return hidden if hidden.dim() == 2 else hidden.reshape(-1, self.hidden_size)
