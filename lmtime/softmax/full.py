"""The softmax over the whole vocabulary: one matrix product and a cross-entropy."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from lmtime.softmax.interface import OutputLayer, mean_nll, product_dtype


class FullSoftmax(OutputLayer):
    """2 * n_tokens * hidden_size * vocab_size FLOPs forward, twice that backward.

    The log-probabilities of all words, (n_tokens, vocab_size), are kept for the backward pass.
    """

    def __init__(
        self, hidden_size: int, vocab_size: int, *, bias: bool = False, **options: object
    ) -> None:
        super().__init__(hidden_size, vocab_size, **options)
        self.head = nn.Linear(hidden_size, vocab_size, bias=bias)
        self.cross_entropy = CrossEntropy(self.loss.ignore_index, self.loss.label_smoothing > 0)

    def token_nll(self, hidden: Tensor, targets: Tensor) -> tuple[Tensor, Tensor | None]:
        """(n_tokens, hidden_size), (n_tokens,) -> (n_tokens,), and `mean_nll`."""
        return self.cross_entropy(self._scores(hidden), targets, self.weight)

    def all_log_prob(self, hidden: Tensor) -> Tensor:
        """(n_tokens, hidden_size) -> (n_tokens, vocab_size)."""
        return log_softmax(self._scores(hidden))

    def _scores(self, hidden: Tensor) -> Tensor:
        return self.head(hidden.to(product_dtype(hidden, self.head.weight.dtype)))


class CrossEntropy(nn.Module):
    """Log-softmax and gather: a module of its own, so that its time is told from the product's."""

    def __init__(self, ignore_index: int, smooth: bool) -> None:
        super().__init__()
        self.ignore_index = ignore_index
        self.smooth = smooth

    def forward(
        self, logits: Tensor, targets: Tensor, weight: Tensor | None
    ) -> tuple[Tensor, Tensor | None]:
        """logits: (n_tokens, vocab_size), targets: (n_tokens,) -> (n_tokens,) each."""
        log_prob = log_softmax(logits)
        nll = F.nll_loss(log_prob, targets, ignore_index=self.ignore_index, reduction="none")
        return nll, mean_nll(log_prob, weight) if self.smooth else None


def log_softmax(logits: Tensor) -> Tensor:
    """Over the last axis, in fp32 at least: 16-bit scores lose the tail of the distribution."""
    return F.log_softmax(logits, dim=-1, dtype=torch.promote_types(logits.dtype, torch.float32))
