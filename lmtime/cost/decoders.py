"""Share of the output layer in a decoder's work, from its shape. Traceable.

Matrix products of the forward pass, per token of one sequence; the backward pass has twice as
many, so its share is the same. Products of attention count for pairs that a causal mask leaves
(`causal` 1), or for all of them (0) as hardware without a causal kernel computes.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any


def layer_weights(shape: Any) -> Any:
    """Values in the matrices of one layer: queries and output, keys and values, feed-forward."""
    d = shape.hidden_size
    projections = 2 * d * (shape.n_heads + shape.n_kv_heads) * shape.head_size
    return projections + shape.n_ffn_products * d * shape.ffn_size


def head_weights(shape: Any) -> Any:
    """Values in the matrix of the output layer."""
    return shape.hidden_size * shape.vocab_size


def seen(seq_len: Any, causal: Any, window: Any, minimum: Callable = min) -> Any:
    """Positions that a token attends to on average."""
    w = minimum(seq_len, window)
    visible = (w * (w + 1) / 2 + (seq_len - w) * w) / seq_len
    return causal * visible + (1 - causal) * seq_len


def body_flops(shape: Any, seq_len: Any, causal: Any, minimum: Callable = min) -> Any:
    """FLOPs per token of all layers."""
    windowed = shape.n_windowed * seen(seq_len, causal, shape.window, minimum)
    whole = (shape.n_layers - shape.n_windowed) * seen(seq_len, causal, seq_len, minimum)
    attention = 4 * shape.n_heads * shape.head_size * (windowed + whole)
    return 2 * shape.n_layers * layer_weights(shape) + attention


def head_share(shape: Any, seq_len: Any, causal: Any, minimum: Callable = min) -> Any:
    """The output layer's share of the forward FLOPs."""
    head = 2 * head_weights(shape)
    return head / (head + body_flops(shape, seq_len, causal, minimum))


def decode_share(shape: Any) -> Any:
    """Its share of the weights that one new token of one sequence has read; bytes are alike."""
    head = head_weights(shape)
    return head / (head + shape.n_layers * layer_weights(shape))
