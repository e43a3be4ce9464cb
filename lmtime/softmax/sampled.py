"""The sampled softmax: in training the sum over the vocabulary is estimated from a few words."""

from __future__ import annotations

import math

import torch
import torch.nn.functional as F
from torch import Tensor

from lmtime.errors import UsageError
from lmtime.softmax.chunked import ChunkedSoftmax


class ZipfSampler:
    """Draws word ids, frequent ones first, with P(k) as the integral of x^-power from k+1 to k+2.

    power 1 is the log-uniform distribution of TensorFlow's `log_uniform_candidate_sampler`, near
    Zipf's law; 0.75 is near counts^0.75 of such a text; 0 is uniform.
    """

    def __init__(self, vocab_size: int, power: float) -> None:
        if not 0 <= power < math.inf:
            raise UsageError(f"power={power} must be 0 or more, and finite")
        self.vocab_size = vocab_size
        self.power = power

    def sample(self, n: int, generator: torch.Generator | None = None) -> Tensor:
        """n ids with replacement, on the device of the generator."""
        device = "cpu" if generator is None else generator.device
        uniform = torch.rand(n, generator=generator, dtype=torch.float64, device=device)
        rank = self._antiderivative_inverse(uniform * self._antiderivative(self.vocab_size + 1.0))
        return (rank.long() - 1).clamp_(0, self.vocab_size - 1)  # against rounding at the ends

    def probability(self, ids: Tensor) -> Tensor:
        """Of each id in one draw, fp64; over the whole vocabulary they sum to one."""
        rank = ids.double() + 1
        # The difference of two antiderivatives, without the cancellation between them.
        step = torch.log1p(1 / rank)
        a = 1 - self.power
        inside = step if a == 0 else rank**a * torch.expm1(a * step) / a
        return inside / self._antiderivative(self.vocab_size + 1.0)

    def _antiderivative(self, x: float) -> float:
        """Of x^-power, 0 at 1."""
        a = 1 - self.power
        return math.log(x) if a == 0 else math.expm1(a * math.log(x)) / a

    def _antiderivative_inverse(self, y: Tensor) -> Tensor:
        a = 1 - self.power
        return torch.exp(y if a == 0 else torch.log1p(a * y) / a)


class SampledSoftmax(ChunkedSoftmax):
    """Full softmax whose sum over the words is estimated in training (Jean et al. 2015).

    The target counts as it is; each of `n_samples` words, drawn with replacement and shared by all
    tokens, stands for 1 / (its expected count) words like it; drawn targets are left out. So the
    sum is unbiased, its logarithm and the gradients nearly so, the more samples the nearer.
    6 * n_tokens * hidden_size * (n_samples + 1) FLOPs; the gradient of the weights is dense.

    In evaluation (`eval()` or without gradients), and with as many samples as words, the sum is
    whole and the likelihood exact. generator: where the draws come from; torch's own if None.
    """

    def __init__(
        self,
        hidden_size: int,
        vocab_size: int,
        *,
        n_samples: int,
        power: float = 1.0,
        generator: torch.Generator | None = None,
        **options: object,
    ) -> None:
        super().__init__(hidden_size, vocab_size, **options)
        if n_samples < 1:
            raise UsageError(f"{n_samples=} must be 1 or more")
        self.n_samples = n_samples
        self.sampler = ZipfSampler(vocab_size, power)
        self.generator = generator

    def _score(
        self, hidden: Tensor, targets: Tensor, shares: tuple[Tensor, Tensor] | None
    ) -> tuple[Tensor, Tensor | None, Tensor | None]:
        everything = self.n_samples >= self.head.out_features
        if everything or not self.training or not torch.is_grad_enabled():
            return super()._score(hidden, targets, shares)
        target_logit = self._logit_of(hidden, targets)
        ids = self.sampler.sample(self.n_samples, self.generator).to(hidden.device)
        scores = torch.cat([target_logit[:, None], self._sampled_logits(hidden, targets, ids)], 1)
        nll = F.cross_entropy(scores, torch.zeros_like(targets), reduction="none")
        word_shares = self._word_shares()
        if word_shares is None:
            return nll, None, None
        uniform_nll = (nll + target_logit) * word_shares.sum() - self._mean_logit(hidden)
        return nll, uniform_nll, None

    def _logit_of(self, hidden: Tensor, targets: Tensor) -> Tensor:
        """(n_tokens, hidden_size), (n_tokens,) -> (n_tokens,)."""
        vectors = F.embedding(targets, self.head.weight).to(self._sum_dtype)
        logit = (hidden.to(self._sum_dtype) * vectors).sum(-1)
        return logit if self.head.bias is None else logit + self.head.bias[targets]

    def _sampled_logits(self, hidden: Tensor, targets: Tensor, ids: Tensor) -> Tensor:
        """(n_tokens, n_samples), less the log of the expected counts; -inf for the target."""
        vectors = F.embedding(ids, self.head.weight)
        bias = None if self.head.bias is None else self.head.bias[ids]
        logits = F.linear(hidden.to(vectors.dtype), vectors, bias).to(self._sum_dtype)
        expected = self.n_samples * self.sampler.probability(ids)
        logits = logits - expected.log().to(logits.dtype)
        return logits.masked_fill(ids == targets[:, None], -math.inf)

    def _mean_logit(self, hidden: Tensor) -> Tensor:
        """Over all words in their shares: (n_tokens, hidden_size) -> (n_tokens,), exact."""
        word_shares = self._word_shares()
        vector = word_shares @ self.head.weight.to(self._sum_dtype)
        mean = (hidden.to(self._sum_dtype) * vector).sum(-1)
        return (
            mean if self.head.bias is None else mean + word_shares @ self.head.bias.to(mean.dtype)
        )
