"""The Transformer language model of Baevski and Auli (2019): adaptive input, pre-norm layers.

Structure and initialisation follow fairseq's `transformer_lm_gbw`: no norm after the last layer
(`no_decoder_final_norm`). A full softmax keeps torch's initialisation.
"""

from __future__ import annotations

import math
from itertools import accumulate

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from lmtime.config import AdaptiveSoftmaxConfig, TransformerConfig
from lmtime.softmax import OUTPUT_LAYERS, TIED_LAYERS, band_shapes


class AdaptiveInput(nn.Module):
    """Rare words have narrow vectors: (batch, seq_len) -> (batch, seq_len, hidden_size).

    Band i has hidden_size / div_value**i dimensions, projected to the hidden size; band 0 is
    projected too. As in fairseq each band that is met gathers and scatters its tokens by a mask,
    and waits for the device to learn whether it is.
    """

    def __init__(self, config: AdaptiveSoftmaxConfig) -> None:
        super().__init__()
        shapes = band_shapes(config)
        self.bands = nn.ModuleList(
            nn.Sequential(_embedding(size, width), _linear(width, config.hidden_size, bias=False))
            for size, width in shapes
        )
        self.hidden_size = config.hidden_size
        self.ends = list(accumulate(size for size, _ in shapes))

    @property
    def words(self) -> list[nn.Parameter]:
        """The vectors of each band: (size, width)."""
        return [vectors.weight for vectors, _ in self.bands]

    def forward(self, tokens: Tensor) -> Tensor:
        hidden = self.bands[0][1].weight.new_empty(*tokens.shape, self.hidden_size)
        start = 0
        for end, band in zip(self.ends, self.bands, strict=True):
            inside = (tokens >= start) & (tokens < end)
            if inside.any():  # waits for the device, as do the two lines of indexing
                hidden[inside] = band(tokens[inside] - start).to(hidden.dtype)  # of an autocast
            start = end
        return hidden


class Positions(nn.Module):
    """hidden * sqrt(hidden_size) + sine and cosine of the position, (batch, seq_len, hidden_size).

    Frequencies fall from 1 to 1/10,000, as in fairseq; positions count from 0.
    """

    def __init__(self, seq_len: int, hidden_size: int, dropout: float = 0.0) -> None:
        super().__init__()
        self.dropout = dropout
        self.scale = math.sqrt(hidden_size)
        self.register_buffer("waves", _waves(seq_len, hidden_size), persistent=False)

    def forward(self, hidden: Tensor) -> Tensor:
        placed = self.scale * hidden + self.waves[: hidden.shape[1]]
        return F.dropout(placed, self.dropout, self.training)


class Attention(nn.Module):
    """Causal self-attention: (batch, seq_len, hidden_size) -> the same."""

    def __init__(self, hidden_size: int, n_heads: int) -> None:
        super().__init__()
        self.n_heads = n_heads
        self.qkv = _linear(hidden_size, 3 * hidden_size)
        self.out = _linear(hidden_size, hidden_size)

    def forward(self, hidden: Tensor) -> Tensor:
        heads = self.qkv(hidden).unflatten(-1, (3, self.n_heads, -1))
        # (batch, n_heads, seq_len, head_dim) each
        query, key, value = (x.transpose(1, 2) for x in heads.unbind(2))
        mixed = F.scaled_dot_product_attention(query, key, value, is_causal=True)
        return self.out(mixed.transpose(1, 2).flatten(2))


class Layer(nn.Module):
    """x + attention(norm(x)), then x + ffn(norm(x)): (batch, seq_len, hidden_size)."""

    def __init__(self, config: TransformerConfig) -> None:
        super().__init__()
        self.attention_norm = nn.LayerNorm(config.hidden_size)
        self.attention = Attention(config.hidden_size, config.n_heads)
        self.dropout = config.dropout
        self.ffn_norm = nn.LayerNorm(config.hidden_size)
        self.ffn = nn.Sequential(
            _linear(config.hidden_size, config.ffn_size),
            nn.ReLU(),
            _linear(config.ffn_size, config.hidden_size),
        )

    def forward(self, hidden: Tensor) -> Tensor:
        hidden = hidden + self._kept(self.attention(self.attention_norm(hidden)))
        return hidden + self._kept(self.ffn(self.ffn_norm(hidden)))

    def _kept(self, hidden: Tensor) -> Tensor:
        return F.dropout(hidden, self.dropout, self.training)


class Transformer(nn.Module):
    """Adaptive input, positions, layers, output layer: `loss = model(tokens, targets)`."""

    def __init__(self, config: TransformerConfig) -> None:
        super().__init__()
        self.config = config
        words = AdaptiveInput(config.adaptive)
        positions = Positions(config.seq_len, config.hidden_size, config.dropout)
        self.embedding = nn.Sequential(words, positions)
        self.layers = nn.ModuleList(Layer(config) for _ in range(config.n_layers))
        if config.ties_words:
            layer = TIED_LAYERS[config.output_layer]
            self.output_layer = layer(config.adaptive, words=words.words)
        else:
            self.output_layer = OUTPUT_LAYERS[config.output_layer](config)

    @property
    def owners(self) -> dict[str, str]:
        """Module -> the row of the report that its time belongs to; children follow parents."""
        layers = {f"layers.{i}": f"layer {i + 1}" for i in range(self.config.n_layers)}
        return {
            "embedding": "embedding",
            **layers,
            "output_layer": "output layer",
            "output_layer.cross_entropy": "loss",
            "output_layer.loss": "loss",
        }

    def hidden(self, tokens: Tensor) -> Tensor:
        """The state before the output layer: (batch, seq_len) -> (batch, seq_len, hidden_size)."""
        hidden = self.embedding(tokens)
        for layer in self.layers:
            hidden = layer(hidden)
        return hidden

    def forward(self, tokens: Tensor, targets: Tensor) -> Tensor:
        """Mean loss in nats a token; tokens, targets: (batch, seq_len) int64."""
        return self.output_layer(self.hidden(tokens), targets).loss


def _waves(seq_len: int, hidden_size: int) -> Tensor:
    """(seq_len, hidden_size): sines, then cosines, then a zero where the width is odd."""
    half = hidden_size // 2
    exponents = torch.arange(half, dtype=torch.float64) / max(half - 1, 1)
    angles = torch.arange(seq_len)[:, None] * 10_000**-exponents
    waves = torch.cat([angles.sin(), angles.cos()], dim=1)
    return F.pad(waves, (0, hidden_size % 2)).to(torch.get_default_dtype())


def _embedding(n_words: int, width: int) -> nn.Embedding:
    """Normal with variance 1 / width."""
    embedding = nn.Embedding(n_words, width)  # drawn with variance 1
    with torch.no_grad():
        embedding.weight.mul_(width**-0.5)
    return embedding


def _linear(d_in: int, d_out: int, *, bias: bool = True) -> nn.Linear:
    linear = nn.Linear(d_in, d_out, bias=bias)
    nn.init.xavier_uniform_(linear.weight)
    if bias:
        nn.init.zeros_(linear.bias)
    return linear
