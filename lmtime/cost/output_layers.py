"""Costs of the output layers and their loss, operator by operator as torch executes them.

Each function returns {(owner, phase): [Cost, ...]}. `shape` is a GCNConfig or anything with its
fields; `tail_tokens` is how many targets lie in each tail cluster: counted, or expected from
`zipf`. Every cluster is taken to be hit.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from lmtime.config import head_size, tail_sizes
from lmtime.cost.operators import Cost, matmul, matmul_backward, traffic

Rows = dict[tuple[str, str], list[Cost]]

OUTPUT_LAYER, LOSS = "output layer", "loss"


def full(shape: Any, n_tokens: float, tail_tokens: Sequence[float], value_bytes: float) -> Rows:
    """One matrix product; log-softmax, gather and mean are the loss."""
    n, d, v, b = n_tokens, shape.final_hidden_size, shape.vocab_size, value_bytes
    return {
        (OUTPUT_LAYER, "forward"): [traffic(2 * n * d, b), matmul(n, d, v, b)],
        (LOSS, "forward"): [
            traffic(2 * n * v, b),  # log-softmax
            traffic(2 * n + 1, b, ids=n),  # gather the targets; their total weight
            *_reduction(n, b),
        ],
        (LOSS, "backward"): [
            *_reduction_backward(n, b),
            traffic(n * v + n + 1, b, ids=n),  # scatter into a zeroed matrix
            traffic(3 * n * v, b),  # log-softmax
        ],
        (OUTPUT_LAYER, "backward"): matmul_backward(n, d, v, b),
    }


def adaptive(shape: Any, n_tokens: float, tail_tokens: Sequence[float], value_bytes: float) -> Rows:
    """torch's `AdaptiveLogSoftmaxWithLoss`: a partition, a head over all tokens, narrow tails."""
    n, d, b = n_tokens, shape.final_hidden_size, value_bytes
    head = head_size(shape.cutoffs)
    forward = [
        traffic(2 * n * d, b),  # hidden states in rows
        traffic(0, b, ids=n, masks=n),  # which targets are ignored
        traffic(0, b, ids=2 * n, masks=n),  # they stand in as word 0
        traffic(n, b),  # zeroed result
        *_cluster_rows(n, n - sum(tail_tokens), b),
        traffic(0, b, ids=3 * (n - sum(tail_tokens))),  # short list: the target is its own entry
        matmul(n, d, head, b),
        traffic(2 * n * head, b),  # log-softmax
        traffic(2 * n, b, ids=n),  # gather
        traffic(3 * n + 2 * n + n + 1 + 2 * n, b),  # add the tails, negate, torch's mean, negate
    ]
    backward = [
        traffic(2 * n, b),  # negate
        *_gathered_log_softmax_backward(n, head, b),
        *matmul_backward(n, d, head, b),
    ]
    for i, (hits, size, width) in enumerate(
        zip(
            tail_tokens, tail_sizes(shape.cutoffs, shape.vocab_size), _tail_dims(shape), strict=True
        )
    ):
        forward += _tail(n, d, hits, size, width, b)
        backward += _tail_backward(n, d, hits, size, width, b)
        if i > 0:
            backward.append(traffic(2 * n, b, ids=hits))  # the first tail filled a constant
    return {
        (OUTPUT_LAYER, "forward"): forward,
        (LOSS, "forward"): _reduction(n, b),
        (LOSS, "backward"): _reduction_backward(n, b),
        (OUTPUT_LAYER, "backward"): backward,
    }


OUTPUT_LAYER_COSTS = {"full": full, "adaptive": adaptive}


def parameters(shape: Any) -> float:
    """Weights of the output layer."""
    if shape.output_layer == "full":
        return shape.final_hidden_size * shape.vocab_size
    d = shape.final_hidden_size
    tails = zip(tail_sizes(shape.cutoffs, shape.vocab_size), _tail_dims(shape), strict=True)
    head = d * head_size(shape.cutoffs)
    return head + sum(d * width + width * size for size, width in tails)


def _tail_dims(shape: Any) -> list[float]:
    d, n_tails = shape.final_hidden_size, len(shape.cutoffs)
    return [floor_divide(d, shape.div_value**i) for i in range(1, n_tails + 1)]


def floor_divide(a: Any, b: Any) -> Any:
    """`a // b`, also of Altair parameters, which know only the remainder."""
    return (a - a % b) / b


def _cluster_rows(n: float, hits: float, b: float) -> list[Cost]:
    """Find the tokens of one cluster: two comparisons, their conjunction, positions, targets."""
    return [
        traffic(0, b, ids=2 * n, masks=2 * n),
        traffic(0, b, masks=3 * n),
        traffic(0, b, ids=hits, masks=n),
        traffic(0, b, ids=2 * hits, masks=n),
    ]


def _tail(n: float, d: float, hits: float, size: float, width: float, b: float) -> list[Cost]:
    return [
        *_cluster_rows(n, hits, b),
        traffic(0, b, ids=2 * hits),  # targets counted from the start of the cluster
        traffic(2 * hits * d, b, ids=hits),  # its hidden states
        matmul(hits, d, width, b),
        matmul(hits, width, size, b),
        traffic(0, b, ids=2 * hits),  # the head's entry for the cluster
        traffic(2 * hits * size, b),  # log-softmax
        traffic(2 * hits, b, ids=hits),  # gather
        traffic(2 * hits, b, ids=hits),  # into the result
    ]


def _tail_backward(
    n: float, d: float, hits: float, size: float, width: float, b: float
) -> list[Cost]:
    return [
        traffic(2 * hits, b, ids=hits),  # gradient of its tokens
        *_gathered_log_softmax_backward(hits, size, b),
        *matmul_backward(hits, width, size, b),
        *matmul_backward(hits, d, width, b),
        traffic(n * d, b),  # a zeroed gradient of all hidden states,
        traffic(2 * n * d + hits * d, b, ids=hits),  # the cluster's rows added to it,
        traffic(3 * n * d, b),  # and it to the head's
    ]


def _gathered_log_softmax_backward(rows: float, columns: float, b: float) -> list[Cost]:
    """Zero a matrix, copy it with the gathered column added, log-softmax gradient."""
    values = rows * columns
    return [traffic(values, b), traffic(2 * values + rows, b, ids=rows), traffic(3 * values, b)]


def _reduction(n: float, b: float) -> list[Cost]:
    """Mask the ignored targets, sum, count the others, divide."""
    return [
        traffic(0, b, ids=n, masks=n),
        traffic(2 * n, b, masks=n),
        traffic(n + 1, b),
        traffic(0, b, masks=2 * n),
        traffic(0, b, ids=1, masks=n),
        traffic(2, b, ids=1),
    ]


def _reduction_backward(n: float, b: float) -> list[Cost]:
    return [traffic(2, b, ids=1), traffic(2 * n, b, masks=n)]
