"""Costs of the softmax in chunks (`lmtime.softmax.ChunkedSoftmax`), as torch executes it.

All three products run in the forward pass, chunk by chunk; the backward pass scales what is there.
The loss has no owner of its own: its operators are the layer's. Nothing is smoothed or weighted.
Products are by oneDNN, as those of large sizes may be. Traceable.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from lmtime.cost.folding import room_in_row
from lmtime.cost.operators import Cost, adding, traffic
from lmtime.cost.output_layers import OUTPUT_LAYER, Rows, copied_rows, floor_divide

LOGITS_AT_ONCE, LEAST_ROWS = 2**23, 256  # of a chunk, as the layer has them unless told otherwise


def chunked(
    shape: Any,
    n_tokens: float,
    tail_tokens: Sequence[float],
    value_bytes: float,
    *,
    in_rows: bool = False,
) -> Rows:
    """Each chunk reads the weights twice, and reads and writes their gradient."""
    n, d, v, b = n_tokens, shape.final_hidden_size, shape.vocab_size, value_bytes
    operands = n * d, v * d  # they have gradients
    forward = [
        *copied_rows(n, d, b, in_rows),
        *_shares(n, b),
        *(traffic(values, b) for values in operands),  # zeroed gradients
        *_chunks(n, d, v, b),
        *_mean(n, b),
    ]
    backward = [
        traffic(2, b, masks=1),
        traffic(3, b),
        *(traffic(2 * values + 1, b) for values in operands),
    ]
    return {(OUTPUT_LAYER, "forward"): forward, (OUTPUT_LAYER, "backward"): backward}


def chunk_rows(n_tokens: Any, vocab_size: Any) -> Any:
    """Rows of a chunk, the last of which may have fewer."""
    most = _larger(LEAST_ROWS, floor_divide(LOGITS_AT_ONCE, vocab_size))
    return _ceil_divide(n_tokens, _ceil_divide(n_tokens, most))


def _chunks(n: Any, d: Any, v: Any, b: Any) -> list[Cost]:
    """Each operator of all chunks added up; the shape of a product is that of one chunk."""
    rows = chunk_rows(n, v)
    n_chunks, logits = _ceil_divide(n, rows), n * v
    weights = n_chunks * v * d  # read by each chunk, or written
    room = room_in_row(v, b)
    lines = logits + n * room  # what a pass over the logits passes over
    each = dict(launches=n_chunks)
    moved = n * d + weights + logits
    products = [
        Cost(2 * n * d * v, moved * b, "onednn_product", shape, **each)
        for shape in ((rows, d, v), (rows, v, d), (v, rows, d))
    ]
    return [
        products[0],
        traffic(n * room, b, launches=n_chunks * _ceil_divide(room, v)),  # filled, if there is any
        traffic(2 * lines, b, kind="log_softmax", **each),
        *(traffic(2 * n, b, ids=ids, **each) for ids in (n, 0, 0)),  # gather, negate, put
        traffic(2 * lines, b, kind="log_softmax", **each),  # back to probabilities
        traffic(2 * lines + n, b, **each),  # in the share of each token
        traffic(2 * n, b, ids=n, **each),
        traffic(3 * n, b, **each),  # less the share at the target
        traffic(2 * n, b, ids=n, **each),
        products[1],
        traffic(2 * n * d, b, **each),  # put in its rows
        adding(products[2], weights, b),
    ]


def _shares(n: Any, b: Any) -> list[Cost]:
    """Targets that are ignored; what each token counts, of its own and of smoothing."""
    return [
        traffic(0, b, ids=n, masks=n),
        traffic(0, b, ids=2 * n, masks=n),
        traffic(n, b),  # ones
        traffic(2 * n, b, masks=n),
        traffic(2 * n, b),
        traffic(0, b, masks=2 * n),
        traffic(n, b, masks=n),
        traffic(2 * n, b),
    ]


def _mean(n: Any, b: Any) -> list[Cost]:
    """The sum in the shares; masked likelihoods; over the total weight, unless there is none."""
    return [
        traffic(3 * n, b),
        traffic(n + 1, b),
        traffic(2 * n, b, masks=n),
        traffic(2, b),
        traffic(n + 1, b),
        traffic(1, b, masks=1),
        traffic(2, b, masks=1),
        traffic(3, b),
        traffic(2, b, masks=1),
    ]


def _ceil_divide(a: Any, b: Any) -> Any:
    quotient = floor_divide(a + b - 1, b)
    return int(quotient) if isinstance(quotient, float) else quotient


def _larger(a: Any, b: Any) -> Any:
    """Also of Altair parameters, which Python cannot compare."""
    return (a + b + abs(a - b)) / 2
