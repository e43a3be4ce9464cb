"""The adaptive softmax of torch, behind the signature of this package."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from lmtime.config import AdaptiveSoftmaxConfig
from lmtime.softmax.interface import OutputLayer


class AdaptiveSoftmax(OutputLayer):
    """`nn.AdaptiveLogSoftmaxWithLoss` (Grave et al. 2017): a short list and narrow tail clusters.

    torch's layer is kept as it is, with its two host synchronisations a cluster. It fails under
    autocast when the input is fp32, so here it always runs in the precision of its weights.
    Label smoothing needs the probability of every word and so costs a full softmax.
    """

    def __init__(self, config: AdaptiveSoftmaxConfig, **options: object) -> None:
        super().__init__(config.hidden_size, **options)
        self.layer = nn.AdaptiveLogSoftmaxWithLoss(
            config.hidden_size, config.vocab_size, config.cutoffs, config.div_value
        )

    def token_nll(self, hidden: Tensor, targets: Tensor) -> tuple[Tensor, Tensor | None]:
        """(n_tokens, hidden_size), (n_tokens,) -> (n_tokens,), and the mean over all words."""
        # An ignored target stands in as word 0: dropping its row would wait for the device.
        known = targets.masked_fill(targets == self.loss.ignore_index, 0)
        with torch.autocast(hidden.device.type, enabled=False):
            nll = -self.layer(hidden.to(self.layer.head.weight.dtype), known).output
        return nll, -self.all_log_prob(hidden).mean(-1) if self.loss.label_smoothing else None

    def all_log_prob(self, hidden: Tensor) -> Tensor:
        """(n_tokens, hidden_size) -> (n_tokens, vocab_size)."""
        with torch.autocast(hidden.device.type, enabled=False):
            return self.layer.log_prob(hidden.to(self.layer.head.weight.dtype))
