"""Costs of the gated convolutional network, layer by layer, as torch executes it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from lmtime.cost import operators as op
from lmtime.cost.layers import OUTPUT_LAYER_COSTS, output_layer_weights
from lmtime.cost.operators import Conv, traffic
from lmtime.cost.optimizers import OPTIMIZERS, Optimizer
from lmtime.cost.output_layers import Rows, loss_bytes

OPTIMIZER = "optimizer"


def gcn(
    shape: Any,
    tail_tokens: Sequence[float],
    *,
    value_bytes: float = 4,
    optimizer: Optimizer = OPTIMIZERS["nesterov"],
) -> Rows:
    """{(owner, phase): operators} of one training step.

    shape: a GCNConfig or anything with its fields, numbers or Altair parameters; `n_layers` and
    the number of cutoffs must be numbers. tail_tokens: targets in each tail cluster.
    """
    n = shape.batch_size * shape.seq_len
    rows: Rows = {("embedding", "forward"): [op.embedding(n, shape.embedding_size, value_bytes)]}
    rows |= _projection(shape, n, value_bytes)
    for i in range(shape.n_layers):
        rows |= _gated_conv(shape, i, value_bytes)
    layer = OUTPUT_LAYER_COSTS[shape.output_layer]
    rows |= layer(shape, n, tail_tokens, value_bytes)
    rows["outside", "backward"] = [traffic(1, loss_bytes(shape, value_bytes))]  # the gradient
    rows["embedding", "backward"] = [
        op.embedding_backward(n, shape.vocab_size, shape.embedding_size, value_bytes)
    ]
    sizes = [size for owned in weights(shape).values() for size in owned]
    rows[OPTIMIZER, OPTIMIZER] = optimizer.update(sizes, value_bytes)
    return rows


def parameters(shape: Any) -> dict[str, float]:
    """{owner: number of trainable values}."""
    return {owner: sum(sizes) for owner, sizes in weights(shape).items()}


def weights(shape: Any) -> dict[str, list[Any]]:
    """{owner: size of each tensor of trainable values}; a norm has directions and lengths."""
    sizes = {
        "embedding": [shape.vocab_size * shape.embedding_size],
        "input projection": _normed(shape.embedding_size, shape.hidden_size),
    }
    for i in range(shape.n_layers):
        d_in, d_out = _widths(shape, i)
        sizes[_conv_name(i)] = _normed(d_in * shape.kernel_size, 2 * d_out)
        if _widens(shape, i):
            sizes[_conv_name(i)] += _normed(d_in, d_out)
    return {**sizes, "output layer": output_layer_weights(shape)}


def _normed(d_in: Any, d_out: Any) -> list[Any]:
    """Directions, lengths and bias."""
    return [d_in * d_out, d_out, d_out]


def _conv_name(i: int) -> str:
    return f"conv {i + 1}"


def _widths(shape: Any, i: int) -> tuple[Any, Any]:
    """Input and output width of convolution i: the last one ends in the final hidden size."""
    is_last = i == shape.n_layers - 1
    return shape.hidden_size, shape.final_hidden_size if is_last else shape.hidden_size


def _widens(shape: Any, i: int) -> bool:
    """Whether the residual of convolution i is projected because the width changes."""
    return shape.widens and i == shape.n_layers - 1


def _projection(shape: Any, n: float, b: float) -> Rows:
    d_in, d_out = shape.embedding_size, shape.hidden_size
    # Behind a projected residual the gradient arrives channel by channel and is copied into rows.
    copied = [traffic(2 * n * d_out, b)] if shape.widens else []
    return {
        ("input projection", "forward"): [
            op.weight_norm(d_in * d_out, d_out, b),
            *op.linear(n, d_in, d_out, b),
        ],
        ("input projection", "backward"): [
            *copied,
            *op.linear_backward(n, d_in, d_out, b),
            op.weight_norm_backward(d_in * d_out, d_out, b),
        ],
    }


def _gated_conv(shape: Any, i: int, b: float) -> Rows:
    d_in, d_out = _widths(shape, i)
    batch_size, seq_len = shape.batch_size, shape.seq_len
    n, padded_len = batch_size * seq_len, seq_len + shape.kernel_size - 1
    conv = Conv(batch_size, padded_len, seq_len, d_in, 2 * d_out, shape.kernel_size)
    padding = traffic(batch_size * (seq_len + padded_len) * d_in, b)
    forward = [
        *op.dropout(shape, n * d_in, b),
        padding,
        op.weight_norm(conv.weights, conv.d_out, b),
        op.conv(conv, b),
        traffic(3 * n * d_out, b, kind="glu"),  # two halves in, one out
        traffic(3 * n * d_out, b),  # add the residual
        traffic(2 * n * d_out, b),  # scale
    ]
    backward = [
        traffic(2 * n * d_out, b),  # scale
        traffic(5 * n * d_out, b, kind="glu_backward"),
        *op.conv_backward(conv, b),
        op.weight_norm_backward(conv.weights, conv.d_out, b),
        padding,
        *op.dropout_backward(shape, n * d_in, b),
        traffic(3 * n * d_in, b),  # add the gradient of the residual
    ]
    if _widens(shape, i):
        residual = Conv(batch_size, seq_len, seq_len, d_in, d_out, 1)
        forward += [op.weight_norm(residual.weights, d_out, b), op.conv(residual, b)]
        backward += op.conv_backward(residual, b)
        backward += [op.weight_norm_backward(residual.weights, d_out, b)]
    return {(_conv_name(i), "forward"): forward, (_conv_name(i), "backward"): backward}
