"""Costs of the Transformer with adaptive input, layer by layer, as torch executes it on a CPU."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from lmtime.cost import operators as op
from lmtime.cost.gcn import OPTIMIZER
from lmtime.cost.layers import OUTPUT_LAYER_COSTS, output_layer_weights
from lmtime.cost.operators import Cost, traffic
from lmtime.cost.optimizers import OPTIMIZERS, Optimizer
from lmtime.cost.output_layers import Rows, bands, loss_bytes


def transformer(
    shape: Any,
    tail_tokens: Sequence[float],
    *,
    input_tail_tokens: Sequence[float] | None = None,
    value_bytes: float = 4,
    causal: bool = False,
    optimizer: Optimizer = OPTIMIZERS["nesterov"],
) -> Rows:
    """{(owner, phase): operators} of one training step.

    shape: a TransformerConfig or anything with its fields, numbers or Altair parameters; `n_layers`
    and the number of cutoffs must be numbers. tail_tokens, input_tail_tokens: targets and tokens
    in each tail cluster; None: as many tokens as targets. Every band is taken to be met.
    causal: leave the pairs that the mask hides out of the FLOPs; torch's kernel has them executed.
    """
    n, b = shape.batch_size * shape.seq_len, value_bytes
    tails = tail_tokens if input_tail_tokens is None else input_tail_tokens
    rows = _embedding(shape, n, [n - sum(tails), *tails], b)
    for i in range(shape.n_layers):
        rows[_layer_name(i), "forward"] = _layer(shape, n, b, causal)
        rows[_layer_name(i), "backward"] = _layer_backward(shape, n, b, causal)
    layer = OUTPUT_LAYER_COSTS[shape.output_layer]
    rows |= layer(shape, n, tail_tokens, b, in_rows=True)
    rows["outside", "backward"] = [traffic(1, loss_bytes(shape, b))]  # the gradient
    sizes = [size for owned in weights(shape).values() for size in owned]
    rows[OPTIMIZER, OPTIMIZER] = optimizer.update(sizes, b)
    return rows


def parameters(shape: Any) -> dict[str, float]:
    """{owner: number of trainable values}; vectors shared with the output are the embedding's."""
    return {owner: sum(sizes) for owner, sizes in weights(shape).items()}


def weights(shape: Any) -> dict[str, list[Any]]:
    """{owner: size of each tensor of trainable values}."""
    d, ffn = shape.hidden_size, shape.ffn_size
    attention, feed_forward = [3 * d * d, 3 * d, d * d, d], [d * ffn, ffn, ffn * d, d]
    layer = [d, d, *attention, d, d, *feed_forward]  # each behind a norm
    return {
        "embedding": [n for size, width in bands(shape) for n in (size * width, d * width)],
        **{_layer_name(i): layer for i in range(shape.n_layers)},
        "output layer": output_layer_weights(shape),
    }


def _layer_name(i: int) -> str:
    return f"layer {i + 1}"


def _embedding(shape: Any, n: float, hits: Sequence[float], b: float) -> Rows:
    """hits: tokens in each band, the short list first."""
    d = shape.hidden_size
    forward: list[Cost] = []
    backward = [*op.dropout_backward(shape, n * d, b), traffic(2 * n * d, b)]  # scale
    for i, (n_hits, (size, width)) in enumerate(zip(hits, bands(shape), strict=True)):
        forward += _band(n, d, n_hits, width, b)
        if i > 0:  # what lay there before has no gradient: copy, with zeros in place
            backward.append(traffic(2 * n * d + 2 * n_hits * d, b, masks=n, launches=2, syncs=1))
        backward += _band_backward(n, d, n_hits, size, width, b)
        if shape.ties_words:
            backward.append(traffic(3 * size * width, b))  # add to the output layer's gradient
    forward.append(traffic(2 * n * d, b))  # scale
    forward.append(traffic(2 * n * d + shape.seq_len * d, b))  # add the positions
    forward += op.dropout(shape, n * d, b)
    return {("embedding", "forward"): forward, ("embedding", "backward"): backward}


def _band(n: float, d: float, hits: float, width: float, b: float) -> list[Cost]:
    return [
        traffic(0, b, ids=2 * n, masks=2 * n, launches=2),  # two comparisons,
        traffic(0, b, masks=3 * n),  # their conjunction,
        traffic(0, b, masks=n + 2, launches=2, syncs=1),  # whether any holds, which the host reads
        traffic(0, b, ids=2 * hits, masks=n, syncs=1),  # the band's tokens,
        traffic(0, b, ids=2 * hits),  # counted from its start
        op.embedding(hits, width, b),
        op.matmul(hits, width, d, b),
        traffic(2 * hits * d, b, masks=n, syncs=1),  # into their places
    ]


def _band_backward(
    n: float, d: float, hits: float, size: float, width: float, b: float
) -> list[Cost]:
    return [
        traffic(2 * hits * d, b, masks=n, syncs=1),  # gradient of its tokens
        *op.matmul_backward(hits, width, d, b),
        op.embedding_backward(hits, size, width, b),
    ]


def _layer(shape: Any, n: float, b: float, causal: bool) -> list[Cost]:
    d, ffn = shape.hidden_size, shape.ffn_size
    norm, residual = op.layer_norm(n, d, b), traffic(3 * n * d, b)
    dropped = op.dropout(shape, n * d, b)
    return [
        norm,
        *op.linear(n, d, 3 * d, b),
        op.attention(_attention(shape, causal), b),
        *op.linear(n, d, d, b),
        *dropped,
        residual,
        norm,
        *op.linear(n, d, ffn, b),
        traffic(2 * n * ffn, b),  # rectify
        *op.linear(n, ffn, d, b),
        *dropped,
        residual,
    ]


def _layer_backward(shape: Any, n: float, b: float, causal: bool) -> list[Cost]:
    d, ffn = shape.hidden_size, shape.ffn_size
    norm, residual = op.layer_norm_backward(n, d, b), traffic(3 * n * d, b)
    dropped = op.dropout_backward(shape, n * d, b)
    return [
        *dropped,
        *op.linear_backward(n, ffn, d, b),
        traffic(3 * n * ffn, b),  # rectify
        *op.linear_backward(n, d, ffn, b),
        norm,
        residual,
        *dropped,
        *op.linear_backward(n, d, d, b),
        op.attention_backward(_attention(shape, causal), b),
        traffic(6 * n * d, b),  # gradients of queries, keys and values side by side
        *op.linear_backward(n, d, 3 * d, b),
        norm,
        residual,
    ]


def _attention(shape: Any, causal: bool) -> op.Attention:
    return op.Attention(shape.batch_size, shape.seq_len, shape.n_heads, shape.hidden_size, causal)
