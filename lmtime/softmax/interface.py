"""The signature of an output layer, and what all of them share: the reduction to a loss."""

from __future__ import annotations

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

    With every target ignored the mean is nan and all gradients are zero, as in torch.
    """

    def __init__(self, ignore_index: int, reduction: str, label_smoothing: float) -> None:
        super().__init__()
        if reduction not in REDUCTIONS:
            raise unknown("reduction", reduction, list(REDUCTIONS))
        if not 0 <= label_smoothing <= 1:
            raise UsageError(f"label_smoothing={label_smoothing} must lie between 0 and 1")
        self.ignore_index = ignore_index
        self.reduction = reduction
        self.label_smoothing = label_smoothing

    def forward(self, nll: Tensor, uniform_nll: Tensor | None, targets: Tensor) -> OutputLoss:
        """nll, targets: (n_tokens,). uniform_nll: (n_tokens,), the mean over all words, or None."""
        ignored = targets == self.ignore_index
        nll = nll.masked_fill(ignored, 0.0)
        smoothed = nll
        if uniform_nll is not None:
            uniform_nll = uniform_nll.masked_fill(ignored, 0.0)
            smoothed = torch.lerp(nll, uniform_nll, self.label_smoothing)
        if self.reduction == "none":
            return OutputLoss(nll, smoothed)
        total = smoothed.sum()
        if self.reduction == "mean":
            total = total / (~ignored).sum()
        return OutputLoss(nll, total)


def check_int64(targets: Tensor) -> None:
    """Functions of torch differ in which other types they take."""
    if targets.dtype != torch.int64:
        raise UsageError(f"targets are {targets.dtype} and must be torch.int64")


class OutputLayer(nn.Module):
    """A normalised distribution over the vocabulary, given a hidden state.

    A subclass says how likely the targets are (`token_nll`), and how likely every word is
    (`all_log_prob`), both for hidden states of shape (n_tokens, hidden_size).
    """

    def __init__(
        self,
        hidden_size: int,
        *,
        ignore_index: int = -100,
        reduction: str = "mean",
        label_smoothing: float = 0.0,
    ) -> None:
        super().__init__()
        self.hidden_size = hidden_size
        self.loss = Reduction(ignore_index, reduction, label_smoothing)

    def token_nll(self, hidden: Tensor, targets: Tensor) -> tuple[Tensor, Tensor | None]:
        """Negative log-likelihood of the target and, with label smoothing, its mean over all words.

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
        return self.loss(*self.token_nll(hidden, targets), targets)

    def forward(self, hidden: Tensor, targets: Tensor) -> OutputLoss:
        """hidden: (..., hidden_size); targets: (...) int64."""
        rows, flat = self._checked(hidden, targets)
        nll, loss = self.reduce(rows, flat)
        nll = nll.reshape(targets.shape)
        return OutputLoss(nll, loss.reshape(targets.shape) if loss.dim() else loss)

    def _checked(self, hidden: Tensor, targets: Tensor) -> tuple[Tensor, Tensor]:
        """Hidden states that lie in rows, (n_tokens, hidden_size), and targets, (n_tokens,)."""
        if hidden.shape[:-1] != targets.shape:
            raise UsageError(
                f"hidden of shape {tuple(hidden.shape)} needs targets of shape "
                f"{tuple(hidden.shape[:-1])}, not {tuple(targets.shape)}"
            )
        check_int64(targets)
        return self._rows(hidden).contiguous(), targets.reshape(-1)

    def log_prob(self, hidden: Tensor) -> Tensor:
        """Log-probability of every word: (..., hidden_size) -> (..., vocab_size)."""
        flat = self.all_log_prob(self._rows(hidden))
        return flat.reshape(*hidden.shape[:-1], flat.shape[-1])

    def predict(self, hidden: Tensor) -> Tensor:
        """The most likely word: (..., hidden_size) -> (...) int64."""
        return self.log_prob(hidden).argmax(-1)

    def _rows(self, hidden: Tensor) -> Tensor:
        """(..., hidden_size) -> (n_tokens, hidden_size)."""
        if hidden.shape[-1] != self.hidden_size:
            raise UsageError(f"hidden states {hidden.shape[-1]} wide must be {self.hidden_size}")
        return hidden.reshape(-1, self.hidden_size)
