"""Costs of the output layers and their loss, operator by operator as torch executes them.

Each function returns {(owner, phase): [Cost, ...]}. `shape` is the configuration of a model or
anything with its fields; `tail_tokens` is how many targets lie in each tail cluster: counted, or
expected from `zipf`. Every cluster is taken to be hit. Hidden states that do not lie in rows
(`in_rows=False`) are copied first.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from lmtime.config import head_size, tail_sizes
from lmtime.cost.operators import Cost, matmul, matmul_backward, traffic

Rows = dict[tuple[str, str], list[Cost]]

OUTPUT_LAYER, LOSS = "output layer", "loss"
FP32_BYTES = 4


def full(
    shape: Any,
    n_tokens: float,
    tail_tokens: Sequence[float],
    value_bytes: float,
    *,
    in_rows: bool = False,
) -> Rows:
    """One matrix product; log-softmax, gather and mean are the loss."""
    n, d, v, b = n_tokens, shape.final_hidden_size, shape.vocab_size, value_bytes
    return {
        (OUTPUT_LAYER, "forward"): [*copied_rows(n, d, b, in_rows), matmul(n, d, v, b)],
        (LOSS, "forward"): [
            traffic(2 * n * v, b, kind="log_softmax"),
            traffic(2 * n + 1, b, ids=n),  # gather the targets; their total weight
            *reduction(n, b),
        ],
        (LOSS, "backward"): [
            *reduction_backward(n, b),
            traffic(n * v + n + 1, b, ids=n),  # scatter into a zeroed matrix
            traffic(3 * n * v, b, kind="log_softmax_backward"),
        ],
        (OUTPUT_LAYER, "backward"): matmul_backward(n, d, v, b),
    }


def adaptive(
    shape: Any,
    n_tokens: float,
    tail_tokens: Sequence[float],
    value_bytes: float,
    *,
    in_rows: bool = False,
) -> Rows:
    """torch's `AdaptiveLogSoftmaxWithLoss`: a partition, a head over all tokens, narrow tails.

    With `shape.ties_words` the vectors of the words belong to the input as well.
    """
    n, d, b = n_tokens, shape.final_hidden_size, value_bytes
    forward, end, backward = adaptive_head(shape, n, n - sum(tail_tokens), b, in_rows=in_rows)
    for i, (hits, (size, width)) in enumerate(zip(tail_tokens, bands(shape)[1:], strict=True)):
        forward += tail(n, d, hits, size, width, b)
        backward += tail_backward(n, d, hits, size, width, b)
        if i > 0:
            backward.append(later_tail_backward(n, hits, b))
    return {
        (OUTPUT_LAYER, "forward"): forward + end,
        (LOSS, "forward"): reduction(n, loss_bytes(shape, b)),
        (LOSS, "backward"): reduction_backward(n, loss_bytes(shape, b)),
        (OUTPUT_LAYER, "backward"): backward,
    }


def loss_bytes(shape: Any, value_bytes: Any) -> Any:
    """Of a token's loss: an adaptive layer widens 16 bits to 32; a page's parameter has its own."""
    narrow = isinstance(value_bytes, int | float) and value_bytes < FP32_BYTES
    return FP32_BYTES if narrow and shape.output_layer == "adaptive" else value_bytes


def _widened(n: float, b: float) -> list[Cost]:
    """16-bit values become 32-bit ones, or their gradients the other way."""
    narrow = isinstance(b, int | float) and b < FP32_BYTES
    return [traffic(n, b + FP32_BYTES)] if narrow else []


def adaptive_head(
    shape: Any, n_tokens: float, n_short_list: float, value_bytes: float, *, in_rows: bool = False
) -> tuple[list[Cost], list[Cost], list[Cost]]:
    """An adaptive softmax without tails and loss: forward before and after the tails, backward.

    n_short_list: targets in the short list. Of the cutoffs the first and their number count.
    """
    n, d, b = n_tokens, shape.final_hidden_size, value_bytes
    tied = getattr(shape, "ties_words", False)
    head, head_backward = (_tied_head, _tied_head_backward) if tied else (_head, _head_backward)
    begin = [
        *copied_rows(n, d, b, in_rows),
        traffic(0, b, ids=n, masks=n),  # which targets are ignored
        traffic(0, b, ids=2 * n, masks=n),  # they stand in as word 0
        traffic(n, b),  # zeroed result
        *_cluster_rows(n, n_short_list, b),
        traffic(0, b, ids=3 * n_short_list),  # short list: the target is its own entry
    ]
    end = [
        *head(shape, n, b),
        traffic(2 * n * head_size(shape.cutoffs), b, kind="log_softmax"),
        traffic(2 * n, b, ids=n),  # gather
        # Add the tails, negate, torch's mean; then this package's: widen, negate.
        traffic(3 * n + 2 * n + n + 1, b, launches=3),
        *_widened(n, b),
        traffic(2 * n, loss_bytes(shape, b)),
    ]
    backward = [
        traffic(2 * n, loss_bytes(shape, b)),  # negate
        *_widened(n, b),
        *_gathered_log_softmax_backward(n, head_size(shape.cutoffs), b),
        *head_backward(shape, n, b),
    ]
    return begin, end, backward


def full_weights(shape: Any) -> list[Any]:
    """Size of the one matrix."""
    return [shape.final_hidden_size * shape.vocab_size]


def adaptive_weights(shape: Any) -> list[Any]:
    """Size of each tensor of weights that is the layer's own."""
    d = shape.final_hidden_size
    _, *tails = bands(shape)
    projections = [d * width for _, width in tails]
    if getattr(shape, "ties_words", False):
        return [len(tails) * d, *projections]
    words = [size * width for size, width in tails]
    return [d * head_size(shape.cutoffs), *projections, *words]


def bands(shape: Any) -> list[tuple[Any, Any]]:
    """(words, width) of the short list and of each tail cluster; sizes, not cutoffs."""
    d, n_tails = shape.final_hidden_size, len(shape.cutoffs)
    widths = [d, *(floor_divide(d, shape.div_value**i) for i in range(1, n_tails + 1))]
    sizes = [shape.cutoffs[0], *tail_sizes(shape.cutoffs, shape.vocab_size)]
    return list(zip(sizes, widths, strict=True))


def floor_divide(a: Any, b: Any) -> Any:
    """`a // b`, also of Altair parameters, which know only the remainder."""
    return (a - a % b) / b


def copied_rows(n: float, d: float, b: float, in_rows: bool) -> list[Cost]:
    """Hidden states that lie otherwise are copied into rows."""
    return [] if in_rows else [traffic(2 * n * d, b)]


def _head(shape: Any, n: float, b: float) -> list[Cost]:
    return [matmul(n, shape.final_hidden_size, head_size(shape.cutoffs), b)]


def _head_backward(shape: Any, n: float, b: float) -> list[Cost]:
    return matmul_backward(n, shape.final_hidden_size, head_size(shape.cutoffs), b)


def _tied_head(shape: Any, n: float, b: float) -> list[Cost]:
    """Two products, each copied into its part of one buffer."""
    d = shape.final_hidden_size
    parts = (shape.cutoffs[0], len(shape.cutoffs))
    return [cost for k in parts for cost in (matmul(n, d, k, b), traffic(2 * n * k, b))]


def _tied_head_backward(shape: Any, n: float, b: float) -> list[Cost]:
    """The gradient of the buffer is copied whole before each part is taken out of it."""
    d, n_words, n_tails = shape.final_hidden_size, shape.cutoffs[0], len(shape.cutoffs)
    buffer = traffic(2 * n * (n_words + n_tails), b)
    return [
        buffer,
        traffic((2 + 1 + 2) * n * n_tails, b, launches=3),  # take out; zeros, and in its place
        *matmul_backward(n, d, n_tails, b),
        buffer,
        traffic(2 * n * n_words, b),  # take out; nothing is left behind
        *matmul_backward(n, d, n_words, b),
        traffic(3 * n * d, b),  # add the two gradients of the hidden states
    ]


def _cluster_rows(n: float, hits: float, b: float) -> list[Cost]:
    """Find the tokens of one cluster: two comparisons, their conjunction, positions, targets.

    How many there are depends on the targets, so that the host waits for the last two.
    """
    return [
        traffic(0, b, ids=2 * n, masks=2 * n, launches=2),
        traffic(0, b, masks=3 * n),
        traffic(0, b, ids=hits, masks=n, syncs=1),
        traffic(0, b, ids=2 * hits, masks=n, syncs=1),
    ]


def tail(n: float, d: float, hits: float, size: float, width: float, b: float) -> list[Cost]:
    """Forward of one tail cluster, which `hits` of n tokens fall into: size words, width wide."""
    return [
        *_cluster_rows(n, hits, b),
        traffic(0, b, ids=2 * hits),  # targets counted from the start of the cluster
        traffic(2 * hits * d, b, ids=hits),  # its hidden states
        matmul(hits, d, width, b),
        matmul(hits, width, size, b),
        traffic(0, b, ids=2 * hits),  # the head's entry for the cluster
        traffic(2 * hits * size, b, kind="log_softmax"),
        traffic(2 * hits, b, ids=hits),  # gather
        traffic(2 * hits, b, ids=hits),  # into the result
    ]


def tail_backward(
    n: float, d: float, hits: float, size: float, width: float, b: float
) -> list[Cost]:
    """Backward of the same."""
    return [
        traffic(2 * hits, b, ids=hits),  # gradient of its tokens
        *_gathered_log_softmax_backward(hits, size, b),
        *matmul_backward(hits, width, size, b),
        *matmul_backward(hits, d, width, b),
        traffic(n * d, b),  # a zeroed gradient of all hidden states,
        traffic(2 * n * d + hits * d, b, ids=hits),  # the cluster's rows added to it,
        traffic(3 * n * d, b),  # and it to the head's
    ]


def later_tail_backward(n: float, hits: float, b: float) -> Cost:
    """What a tail adds to its backward pass unless it is the first, which filled a constant."""
    return traffic(2 * n, b, ids=hits)


def _gathered_log_softmax_backward(rows: float, columns: float, b: float) -> list[Cost]:
    """Zero a matrix, copy it with the gathered column added, log-softmax gradient."""
    values = rows * columns
    return [
        traffic(values, b, kind="fill"),
        traffic(2 * values + rows, b, ids=rows),
        traffic(3 * values, b, kind="log_softmax_backward"),
    ]


def reduction(n: float, b: float) -> list[Cost]:
    """Mask the ignored targets, sum, count the others, divide."""
    return [
        traffic(0, b, ids=n, masks=n),
        traffic(2 * n, b, masks=n),
        traffic(n + 1, b),
        traffic(0, b, masks=2 * n),
        traffic(0, b, ids=1, masks=n),
        traffic(2, b, ids=1),
    ]


def reduction_backward(n: float, b: float) -> list[Cost]:
    """The mean's gradient, for every target that is not ignored."""
    return [traffic(2, b, ids=1), traffic(2 * n, b, masks=n)]
