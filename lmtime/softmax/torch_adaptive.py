"""The adaptive softmax of torch, behind the signature of this package."""

from __future__ import annotations

from collections.abc import Sequence

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from lmtime.config import AdaptiveSoftmaxConfig
from lmtime.errors import UsageError
from lmtime.softmax.bands import band_shapes
from lmtime.softmax.interface import OutputLayer, mean_nll


class TorchAdaptiveSoftmax(OutputLayer):
    """`nn.AdaptiveLogSoftmaxWithLoss` (Grave et al. 2017): a short list and narrow tail clusters.

    torch's layer is kept as it is, with its two host synchronisations a cluster. It fails under
    autocast when the input is fp32, so here it always runs in the precision of its weights.
    Label smoothing needs the probability of every word and so costs a full softmax. A cluster that
    no target hits has no gradient, not one of zeros.

    words: vectors that another layer has too, one table a band (`band_shapes`); the projections to
    the widths of the tails are always the layer's own.
    """

    def __init__(
        self,
        config: AdaptiveSoftmaxConfig,
        *,
        words: Sequence[nn.Parameter] | None = None,
        **options: object,
    ) -> None:
        if not config.is_torchs:
            raise UsageError(
                "torch's adaptive softmax takes no tail_widths, head_rank or shared_rank: leave "
                "them out, or use AdaptiveSoftmax"
            )
        super().__init__(config.hidden_size, config.vocab_size, **options)
        self.layer = nn.AdaptiveLogSoftmaxWithLoss(
            config.hidden_size,
            config.vocab_size,
            config.cutoffs,
            config.div_value,
            device=None if words is None else "meta",  # tied weights come from elsewhere
        )
        if words is not None:
            _tie(self.layer, config, words)

    def token_nll(self, hidden: Tensor, targets: Tensor) -> tuple[Tensor, Tensor | None]:
        """(n_tokens, hidden_size), (n_tokens,) -> (n_tokens,), and `mean_nll`."""
        # An ignored target stands in as word 0: dropping its row would wait for the device.
        known = targets.masked_fill(targets == self.loss.ignore_index, 0)
        with torch.autocast(hidden.device.type, enabled=False):
            nll = -_at_least_fp32(self.layer(hidden.to(self._dtype), known).output)
        if self.loss.label_smoothing == 0:
            return nll, None
        return nll, mean_nll(self.all_log_prob(hidden), self.weight)

    def all_log_prob(self, hidden: Tensor) -> Tensor:
        """(n_tokens, hidden_size) -> (n_tokens, vocab_size)."""
        with torch.autocast(hidden.device.type, enabled=False):
            return _at_least_fp32(self.layer.log_prob(hidden.to(self._dtype)))

    @property
    def _dtype(self) -> torch.dtype:
        return self.layer.tail[0][0].weight.dtype


def _at_least_fp32(log_prob: Tensor) -> Tensor:
    """The sum of a batch is beyond the range of fp16."""
    return log_prob.to(torch.promote_types(log_prob.dtype, torch.float32))


class TiedLinear(nn.Module):
    """(n_tokens, width) -> (n_tokens, n_words): the product with vectors of another layer."""

    def __init__(self, words: nn.Parameter) -> None:
        super().__init__()
        self.words = words

    def forward(self, hidden: Tensor) -> Tensor:
        return F.linear(hidden, self.words)


class TiedHead(nn.Module):
    """Scores of the short list, by vectors of another layer, and of the tails, by its own.

    (n_tokens, hidden_size) -> (n_tokens, n_words + n_tails). Both products are copied into one
    buffer, as in fairseq's `TiedHeadModule`.
    """

    def __init__(self, words: nn.Parameter, n_tails: int) -> None:
        super().__init__()
        self.short_list = TiedLinear(words)
        self.tails = _projection(words.shape[1], n_tails)

    def forward(self, hidden: Tensor) -> Tensor:
        n_words = len(self.short_list.words)
        scores = hidden.new_empty(len(hidden), n_words + self.tails.out_features)
        scores[:, :n_words] = self.short_list(hidden)
        scores[:, n_words:] = self.tails(hidden)
        return scores


def _tie(
    layer: nn.AdaptiveLogSoftmaxWithLoss,
    config: AdaptiveSoftmaxConfig,
    words: Sequence[nn.Parameter],
) -> None:
    """Put modules that use `words` in the places of torch's own."""
    given, wanted = [tuple(table.shape) for table in words], band_shapes(config)
    if given != wanted:
        raise UsageError(f"tied words of shapes {given} must be {wanted}, one table a band")
    short_list, *tails = words
    layer.head = TiedHead(short_list, len(tails))
    for i, table in enumerate(tails):
        layer.tail[i] = nn.Sequential(
            _projection(config.hidden_size, table.shape[1]), TiedLinear(table)
        )


def _projection(d_in: int, d_out: int) -> nn.Linear:
    """Initialised as fairseq does."""
    linear = nn.Linear(d_in, d_out, bias=False)
    nn.init.xavier_uniform_(linear.weight)
    return linear
