"""The gated convolutional language model (Dauphin et al. 2017), five layers by default.

Our reconstruction: only the depth and the corpus of the IISWC 2019 network are known. Block and
initialisation follow fairseq's `fconv_lm`, but that words are not dropped out.
"""

from __future__ import annotations

import math

import torch.nn.functional as F
from torch import Tensor, nn
from torch.nn.utils.parametrizations import weight_norm

from lmtime.config import GCNConfig
from lmtime.softmax import OUTPUT_LAYERS


class GatedConv(nn.Module):
    """(R(h) + GLU(conv(h))) * sqrt(1/2): a gated convolution that sees no later position.

    R is the identity, or a projection where the width changes. (batch, in_size, seq_len) ->
    (batch, out_size, seq_len).
    """

    def __init__(self, in_size: int, out_size: int, kernel_size: int, dropout: float = 0.0) -> None:
        super().__init__()
        self.n_left = kernel_size - 1
        self.dropout = dropout
        self.conv = _normed(nn.Conv1d(in_size, 2 * out_size, kernel_size), gain=4.0)
        self.residual = nn.Identity()
        if in_size != out_size:
            self.residual = _normed(nn.Conv1d(in_size, out_size, 1), gain=1.0)

    def forward(self, hidden: Tensor) -> Tensor:
        kept = F.dropout(hidden, self.dropout, self.training)
        gated = F.glu(self.conv(F.pad(kept, (self.n_left, 0))), dim=1)
        return (gated + self.residual(hidden)) * math.sqrt(0.5)


class GCN(nn.Module):
    """Embedding, projection, gated convolutions, output layer: `loss = model(tokens, targets)`."""

    def __init__(self, config: GCNConfig) -> None:
        super().__init__()
        self.config = config
        self.embedding = nn.Embedding(config.vocab_size, config.embedding_size)
        nn.init.normal_(self.embedding.weight, std=0.1)
        self.projection = _normed(nn.Linear(config.embedding_size, config.hidden_size), gain=1.0)
        sizes = [config.hidden_size] * config.n_layers + [config.final_hidden_size]
        self.convs = nn.ModuleList(
            GatedConv(sizes[i], sizes[i + 1], config.kernel_size, config.dropout)
            for i in range(config.n_layers)
        )
        self.output_layer = OUTPUT_LAYERS[config.output_layer](config)

    @property
    def owners(self) -> dict[str, str]:
        """Module -> the row of the report that its time belongs to; children follow parents."""
        convs = {f"convs.{i}": f"conv {i + 1}" for i in range(self.config.n_layers)}
        return {
            "embedding": "embedding",
            "projection": "input projection",
            **convs,
            "output_layer": "output layer",
            "output_layer.cross_entropy": "loss",
            "output_layer.loss": "loss",
        }

    def hidden(self, tokens: Tensor) -> Tensor:
        """The state before the output layer: (batch, seq_len) -> (batch, seq_len, final size)."""
        hidden = self.projection(self.embedding(tokens)).transpose(1, 2)
        for conv in self.convs:
            hidden = conv(hidden)
        return hidden.transpose(1, 2)

    def forward(self, tokens: Tensor, targets: Tensor) -> Tensor:
        """Mean loss in nats a token; tokens, targets: (batch, seq_len) int64."""
        return self.output_layer(self.hidden(tokens), targets).loss


def _normed(layer: nn.Linear | nn.Conv1d, gain: float) -> nn.Module:
    """Weight-normalised, initialised to keep the variance (fairseq's `ConvTBC`, `Linear`)."""
    fan_in = layer.weight[0].numel()
    nn.init.normal_(layer.weight, std=math.sqrt(gain / fan_in))
    nn.init.zeros_(layer.bias)
    return weight_norm(layer, dim=0)
