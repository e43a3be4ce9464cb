"""A BERT-type encoder whose heads and feed-forward width may differ from layer to layer.

One network runs whole, or as a sub-network that reads only the first rows and columns of its
weights; `cut` copies those into a network that is really smaller. transformers 5 has neither
head pruning nor head masks, so that slicing is done here.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from lmtime.config import EncoderConfig, SubNetwork, whole_network

INITIAL_STD = 0.02  # of BERT's weights


@dataclass(frozen=True)
class Masks:
    """Factors of what each head and each neuron gives: one (n_heads,) and (ffn_size,) a layer.

    Ones change nothing; zeros are the plain twin of cutting.
    """

    heads: list[Tensor]
    neurons: list[Tensor]


class Encoder(nn.Module):
    """`logits = encoder(tokens, mask, token_types)`: (batch, n_classes) from [CLS] at position 0.

    tokens: (batch, seq_len) int64. mask: the same shape, True where there is a token; absent, all
    are. Random weights as BERT's are drawn.
    """

    def __init__(self, config: EncoderConfig) -> None:
        super().__init__()
        self.config = config
        d = config.hidden_size
        self.words = nn.Embedding(config.vocab_size, d)
        self.positions = nn.Embedding(config.max_positions, d)
        self.token_types = nn.Embedding(config.n_token_types, d) if config.n_token_types else None
        self.norm = nn.LayerNorm(d, eps=config.layer_norm_eps)
        self.dropout = nn.Dropout(config.dropout)
        self.layers = nn.ModuleList(
            Layer(config, heads, ffn)
            for heads, ffn in zip(config.heads, config.ffn_sizes, strict=True)
        )
        self.pooler = nn.Linear(d, d) if config.has_pooler else None
        self.classifier = nn.Linear(d, config.n_classes)
        self.apply(_initialise)

    def forward(
        self,
        tokens: Tensor,
        mask: Tensor | None = None,
        token_types: Tensor | None = None,
        sub: SubNetwork | None = None,
        masks: Masks | None = None,
    ) -> Tensor:
        """The logits of a batch; sub: only this part of the network runs."""
        *_, last = self.hidden_states(tokens, mask, token_types, sub, masks)
        return self.classify(last)

    def hidden_states(
        self,
        tokens: Tensor,
        mask: Tensor | None = None,
        token_types: Tensor | None = None,
        sub: SubNetwork | None = None,
        masks: Masks | None = None,
    ) -> Iterator[Tensor]:
        """The embedding's and then each kept layer's output, (batch, seq_len, hidden_size)."""
        hidden = self.embed(tokens, token_types)
        yield hidden
        sub = sub or whole_network(self.config)
        seen = None if mask is None else mask.bool()[:, None, None, :]
        for i, heads, ffn in zip(sub.layers, sub.heads, sub.ffn_sizes, strict=True):
            factors = (masks.heads[i], masks.neurons[i]) if masks else None
            hidden = self.layers[i](hidden, seen, heads, ffn, factors)
            yield hidden

    def embed(self, tokens: Tensor, token_types: Tensor | None = None) -> Tensor:
        """(batch, seq_len, hidden_size): words, positions and, where there are any, types."""
        positions = torch.arange(tokens.shape[1], device=tokens.device)
        hidden = self.words(tokens) + self.positions(positions)
        if self.token_types is not None:
            types = torch.zeros_like(tokens) if token_types is None else token_types
            hidden = hidden + self.token_types(types)
        return self.dropout(self.norm(hidden))

    def classify(self, hidden: Tensor) -> Tensor:
        """Logits, (batch, n_classes), of the last layer's output."""
        first = hidden[:, 0]
        if self.pooler is not None:
            first = torch.tanh(self.pooler(first))
        return self.classifier(self.dropout(first))


class Layer(nn.Module):
    """Self-attention and feed-forward, each added to its input and normalised after it."""

    def __init__(self, config: EncoderConfig, n_heads: int, ffn_size: int) -> None:
        super().__init__()
        d, width = config.hidden_size, n_heads * config.head_size
        self.head_size = config.head_size
        self.query, self.key, self.value = (nn.Linear(d, width) for _ in range(3))
        self.attention_output = nn.Linear(width, d)
        self.attention_norm = nn.LayerNorm(d, eps=config.layer_norm_eps)
        self.intermediate = nn.Linear(d, ffn_size)
        self.output = nn.Linear(ffn_size, d)
        self.output_norm = nn.LayerNorm(d, eps=config.layer_norm_eps)
        self.dropout = nn.Dropout(config.dropout)

    def forward(
        self,
        hidden: Tensor,
        seen: Tensor | None,
        n_heads: int,
        ffn_size: int,
        factors: tuple[Tensor, Tensor] | None = None,
    ) -> Tensor:
        """hidden: (batch, seq_len, d). seen: (batch, 1, 1, seq_len) bool, of the keys."""
        width = n_heads * self.head_size
        context = self._context(hidden, seen, width)
        if factors:
            context = context * factors[0][:n_heads].repeat_interleave(self.head_size)
        added = _columns(context, self.attention_output, width)
        hidden = self.attention_norm(hidden + self.dropout(added))
        inner = F.gelu(_rows(hidden, self.intermediate, ffn_size))
        if factors:
            inner = inner * factors[1][:ffn_size]
        return self.output_norm(hidden + self.dropout(_columns(inner, self.output, ffn_size)))

    def _context(self, hidden: Tensor, seen: Tensor | None, width: int) -> Tensor:
        """What the first heads gather, (batch, seq_len, width)."""
        batch, seq_len, _ = hidden.shape
        query, key, value = (
            _rows(hidden, linear, width).view(batch, seq_len, -1, self.head_size).transpose(1, 2)
            for linear in (self.query, self.key, self.value)
        )
        p = self.dropout.p if self.training else 0.0
        context = F.scaled_dot_product_attention(query, key, value, seen, dropout_p=p)
        return context.transpose(1, 2).reshape(batch, seq_len, width)


def _rows(x: Tensor, linear: nn.Linear, n: int) -> Tensor:
    """The first n outputs of a linear map."""
    return F.linear(x, linear.weight[:n], linear.bias[:n])


def _columns(x: Tensor, linear: nn.Linear, n: int) -> Tensor:
    """A linear map of its first n inputs."""
    return F.linear(x, linear.weight[:, :n], linear.bias)


def _initialise(module: nn.Module) -> None:
    if isinstance(module, nn.Linear | nn.Embedding):
        nn.init.normal_(module.weight, std=INITIAL_STD)
    if isinstance(module, nn.Linear):
        nn.init.zeros_(module.bias)


@torch.no_grad()
def cut(encoder: Encoder, sub: SubNetwork) -> Encoder:
    """A network of its own with copies of the weights that the sub-network uses; same outputs."""
    weight = encoder.words.weight
    with torch.device("meta"):  # no weights are drawn: all are copied
        small = Encoder(sub.config(encoder.config)).to(weight.dtype)
    small = small.to_empty(device=weight.device).train(encoder.training)
    for name, value in encoder.state_dict().items():
        if not name.startswith("layers."):
            small.state_dict()[name].copy_(value)
    for layer, i in zip(small.layers, sub.layers, strict=True):
        whole = encoder.layers[i].state_dict()
        for name, value in layer.state_dict().items():
            value.copy_(whole[name][tuple(slice(n) for n in value.shape)])
    return small
