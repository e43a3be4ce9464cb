"""The softmax over the whole vocabulary without its logits: a chunk of rows at a time."""

from __future__ import annotations

import math

import torch
from torch import Tensor, nn

from lmtime.errors import UsageError
from lmtime.softmax.chunked_nll import ChunkedNLL, Plan
from lmtime.softmax.full import log_softmax
from lmtime.softmax.interface import OutputLayer, OutputLoss, mean, product_dtype
from lmtime.softmax.products import multiply_by


class ChunkedSoftmax(OutputLayer):
    """`FullSoftmax` with the same result, and memory for `chunk_rows` rows of logits.

    With reduction "mean" or "sum" the gradients are made during the forward pass, while the chunk
    is there: 6 * n_tokens * hidden_size * vocab_size FLOPs, none of them in the backward pass,
    which only scales them. A second backward pass (`retain_graph`) and gradients through `nll` make
    all of it again; with reduction "none" the backward pass makes the logits once more, a third of
    that.

    Beside a chunk the gradients, the weights' in fp32 also for 16-bit weights, wait for the
    backward pass.

    memory_bytes: for the fp32 logits of a chunk; at least `min_rows` rows are taken in any case,
    since each chunk reads the weights twice, and reads and writes their gradient.
    fast_products: in fp32 on a CPU take oneDNN wherever it is faster at all, and for long sums too,
    which err about twice as much; but for the gradients of the weights.
    Under autocast the products run in its type, otherwise in that of the weights.

    Not `F.linear_cross_entropy` of torch 2.13: with all targets ignored its mean has gradients nan;
    the error of its 16-bit gradients grows with the chunks; it does not smooth labels in chunks,
    returns no loss of single tokens beside the reduced one, and a 16-bit loss for 16-bit input; its
    backward pass runs once by default; and it takes so few rows by default that reading the weights
    costs more than the products.
    """

    def __init__(
        self,
        hidden_size: int,
        vocab_size: int,
        *,
        bias: bool = False,
        memory_bytes: int = 2**25,
        min_rows: int = 256,
        fast_products: bool = False,
        **options: object,
    ) -> None:
        super().__init__(hidden_size, vocab_size, **options)
        if memory_bytes < 1 or min_rows < 1:
            raise UsageError(f"{memory_bytes=} and {min_rows=} must be 1 or more")
        self.head = nn.Linear(hidden_size, vocab_size, bias=bias)
        self.memory_bytes = memory_bytes
        self.min_rows = min_rows
        self.multiply = multiply_by(fast_products)

    def chunk_rows(self, n_tokens: int) -> int:
        """Rows of a chunk, as even as `n_tokens` allows; the last may have fewer."""
        most = max(self.min_rows, self.memory_bytes // (4 * self.head.out_features))
        n_chunks = max(1, math.ceil(n_tokens / most))
        return max(1, math.ceil(n_tokens / n_chunks))

    def reduce(self, hidden: Tensor, targets: Tensor) -> OutputLoss:
        """(n_tokens, hidden_size), (n_tokens,) -> (n_tokens,), and the loss."""
        ignored = targets == self.loss.ignore_index
        known = targets.masked_fill(ignored, 0)
        weights = self._token_weights(known).masked_fill(ignored, 0.0)
        smoothing = self.loss.label_smoothing
        shares = ((1 - smoothing) * weights, smoothing * (~ignored).to(weights.dtype))
        fused = self.loss.reduction != "none" and torch.is_grad_enabled()
        nll, uniform_nll, total = self._score(hidden, known, shares if fused else None)
        nll = nll.masked_fill(ignored, 0.0)
        if total is None:
            total = shares[0] * nll
            if uniform_nll is not None:
                total = total + shares[1] * uniform_nll.masked_fill(ignored, 0.0)
        if self.loss.reduction == "none":
            return OutputLoss(nll, total)
        total = total.sum()
        return OutputLoss(
            nll, mean(total, weights.sum()) if self.loss.reduction == "mean" else total
        )

    def token_nll(self, hidden: Tensor, targets: Tensor) -> tuple[Tensor, Tensor | None]:
        """(n_tokens, hidden_size), (n_tokens,) -> (n_tokens,), and `mean_nll`."""
        known = targets.masked_fill(targets == self.loss.ignore_index, 0)
        return self._score(hidden, known, None)[:2]

    def all_log_prob(self, hidden: Tensor) -> Tensor:
        """(n_tokens, hidden_size) -> (n_tokens, vocab_size), the whole of it."""
        return log_softmax(self.head(hidden.to(self.head.weight.dtype)))

    @torch.no_grad()
    def predict(self, hidden: Tensor) -> Tensor:
        """The most likely word: (..., hidden_size) -> (...) int64, a chunk at a time."""
        rows = self._rows(hidden)
        chunks = rows.to(self.head.weight.dtype).split(self.chunk_rows(len(rows)))
        return torch.cat([self.head(chunk).argmax(-1) for chunk in chunks]).view(hidden.shape[:-1])

    def _score(
        self, hidden: Tensor, targets: Tensor, shares: tuple[Tensor, Tensor] | None
    ) -> tuple[Tensor, Tensor | None, Tensor | None]:
        dtype = product_dtype(hidden, self.head.weight.dtype)
        plan = Plan(self.chunk_rows(len(hidden)), dtype, shares, self.multiply, self._word_shares())
        return ChunkedNLL.apply(hidden, self.head.weight, self.head.bias, targets, plan)

    def _word_shares(self) -> Tensor | None:
        """(vocab_size,): what each word has in the mean over all words; None without smoothing."""
        if self.loss.label_smoothing == 0:
            return None
        n_words = self.head.out_features
        if self.weight is None:
            return self.head.weight.new_full((n_words,), 1 / n_words, dtype=self._sum_dtype)
        return self.weight.to(self._sum_dtype) / n_words

    def _token_weights(self, targets: Tensor) -> Tensor:
        if self.weight is None:
            return torch.ones_like(targets, dtype=self._sum_dtype)
        return self.weight.to(self._sum_dtype).gather(0, targets)

    @property
    def _sum_dtype(self) -> torch.dtype:
        return torch.promote_types(self.head.weight.dtype, torch.float32)
