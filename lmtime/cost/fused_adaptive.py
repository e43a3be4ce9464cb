"""Costs of the fused adaptive softmax (`lmtime.softmax.AdaptiveSoftmax`), as torch executes it.

What `output_layers.py` says holds here too. The loss has no owner of its own: its two operators are
the layer's. No target is ignored, nothing is smoothed or weighted, and all weights learn.

Unless scores are few (`folding.py`) the products of the gradients are taken in the forward pass, in
the pieces of a CPU and for a mean that is differentiated itself; GPUs take fewer pieces, and pass
over the gradients once more in the backward pass. All is for fp32: 16-bit passes, some of which go
through fp32, cost more than is said here, and fp16 never folds. The torch is one with oneDNN.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, NamedTuple

from lmtime.config import tail_sizes
from lmtime.cost.folding import count_scores, folds, room_in_row, rows_at_once
from lmtime.cost.operators import Cost, adding, matmul, matmul_backward, traffic
from lmtime.cost.output_layers import OUTPUT_LAYER, Rows, copied_rows, floor_divide
from lmtime.cost.products import (
    is_gradient_in_runs,
    is_in_runs,
    is_of_few_rows,
    is_short,
    is_short_gradient,
)

FP32_BYTES = 4


class Band(NamedTuple):
    """The head or a tail: a softmax over `n_words + n_clusters` entries, `width` wide.

    is_tied: the words belong to the input too, so that the clusters are a matrix of their own.
    """

    n_words: Any
    width: Any
    projects: bool
    n_clusters: int = 0
    is_tied: bool = False

    @property
    def matrices(self) -> list[Any]:
        """Entries of each matrix."""
        if self.is_tied and self.n_clusters:
            return [self.n_words, self.n_clusters]
        return [self.n_words + self.n_clusters]

    @property
    def n_entries(self) -> Any:
        """Of the softmax."""
        return self.n_words + self.n_clusters

    def weights(self, input_size: Any) -> list[Any]:
        """Size of each tensor, the projection first."""
        projection = [input_size * self.width] * self.projects
        return [*projection, *(entries * self.width for entries in self.matrices)]


def fused_adaptive(
    shape: Any,
    n_tokens: float,
    tail_tokens: Sequence[float],
    value_bytes: float,
    *,
    in_rows: bool = False,
) -> Rows:
    """One sort, then the passes of each band; the products of the gradients in either pass."""
    n, d, b = n_tokens, shape.final_hidden_size, value_bytes
    shared, width = shared_rank(shape), input_size(shape)
    forward = copied_rows(n, d, b, in_rows)
    if shared is not None:
        forward.append(matmul(n, d, width, b))
    forward += _partition(n, sum(tail_tokens), len(tail_tokens), b)
    backward = [traffic(2, b)]  # what arrives, times the share of each token
    if fused_folds(shape, n, tail_tokens):
        forward += _pieces(shape, n, tail_tokens, b)
    else:
        bands_forward, bands_backward = _kept(shape, n, tail_tokens, b)
        forward += bands_forward
        backward += bands_backward
    forward += _mean(n, sum(tail_tokens), b)
    if shared is not None:
        backward += matmul_backward(n, d, width, b)
    return {(OUTPUT_LAYER, "forward"): forward, (OUTPUT_LAYER, "backward"): backward}


def fused_folds(shape: Any, n_tokens: Any, tail_tokens: Sequence[Any]) -> bool:
    """Whether the scores are dropped in the forward pass; not of Altair parameters."""
    entries = [band.n_entries for band in fused_bands(shape)]
    return folds(count_scores([n_tokens, *tail_tokens], entries))


def piece_rows(shape: Any, n_tokens: Any, tail_tokens: Sequence[Any]) -> list[int]:
    """Rows of a piece of each band on a CPU; the last of a band may have fewer."""
    found, width = fused_bands(shape), input_size(shape)
    entries = [band.n_entries for band in found]
    n_weights = [sum(band.weights(width)) for band in found]
    return rows_at_once([n_tokens, *tail_tokens], entries, n_weights, "cpu")


def fused_head(shape: Any, n: Any, n_tails: Any, b: Any) -> list[Cost]:
    """Both passes in one piece, without the tails, whose tokens are n_tails.

    Of the cutoffs the first and their number count; the hidden states lie in rows.
    """
    return [
        *_partition(n, n_tails, len(shape.cutoffs), b),
        *_piece(n, input_size(shape), _head_band(shape), b),
        *_mean(n, n_tails, b),
        traffic(2, b),
    ]


def fused_tail(hits: Any, n: Any, width: Any, band: Band, b: Any) -> list[Cost]:
    """What one tail cluster of a layer, in one piece, adds to its head; n: all tokens."""
    return _tail_piece(hits, n, width, band, b)


def fused_weights(shape: Any) -> list[Any]:
    """Size of each tensor of weights that is the layer's own."""
    width, shared = input_size(shape), shared_rank(shape)
    sizes = [] if shared is None else [shape.final_hidden_size * shared]
    for band in fused_bands(shape):
        sizes += [width * band.width] * band.projects
        sizes += [entries * band.width for entries in band.matrices[band.is_tied :]]
    return sizes


def fused_bands(shape: Any) -> list[Band]:
    """Of the short list and of each tail cluster."""
    width, n_tails = input_size(shape), len(shape.cutoffs)
    tails = getattr(shape, "tail_widths", None)
    projects = [True] * n_tails if tails is None else [tail != width for tail in tails]
    if tails is None:
        tails = [floor_divide(width, shape.div_value**i) for i in range(1, n_tails + 1)]
    sizes = tail_sizes(shape.cutoffs, shape.vocab_size)
    is_tied = getattr(shape, "ties_words", False)
    found = [band._replace(is_tied=is_tied) for band in map(Band, sizes, tails, projects)]
    return [_head_band(shape), *found]


def _head_band(shape: Any) -> Band:
    width, rank = input_size(shape), getattr(shape, "head_rank", None)
    return Band(
        shape.cutoffs[0],
        width if rank is None else rank,
        rank is not None,
        len(shape.cutoffs),
        is_tied=getattr(shape, "ties_words", False),
    )


def input_size(shape: Any) -> Any:
    """Width of what head and tails see: the hidden state itself, or its shared projection."""
    shared = shared_rank(shape)
    return shape.final_hidden_size if shared is None else shared


def shared_rank(shape: Any) -> Any:
    """Of the one projection for head and tails; None without it."""
    return getattr(shape, "shared_rank", None)


def _kept(shape: Any, n: Any, tail_tokens: Sequence[Any], b: Any) -> tuple[list[Cost], list[Cost]]:
    """Forward and backward: the scores of all bands wait for the backward pass."""
    n_tails, width = sum(tail_tokens), input_size(shape)
    forward, backward = [traffic(2 * n_tails * width, b, ids=n_tails)], []
    forward += _likelihoods(n + n_tails, b)
    for i, (rows, band) in enumerate(zip([n, *tail_tokens], fused_bands(shape), strict=True)):
        forward += [*_band(rows, width, band, b), _one_hot(rows, b)]
        backward += _band_backward(rows, width, band, b)
        if i > 0:
            backward.append(_added_rows(rows, width, b, n=n))
    return forward, backward


def _pieces(shape: Any, n: Any, tail_tokens: Sequence[Any], b: Any) -> list[Cost]:
    """Of all bands, one after the other."""
    width, found = input_size(shape), fused_bands(shape)
    costs: list[Cost] = []
    for i, (n_rows, step) in enumerate(
        zip([n, *tail_tokens], piece_rows(shape, n, tail_tokens), strict=True)
    ):
        for start in range(0, math.ceil(n_rows), step):
            rows, adds = min(step, n_rows - start), start > 0
            if i > 0:
                costs += _tail_piece(rows, n, width, found[i], b, adds=adds)
                continue
            costs += _piece(rows, width, found[i], b, adds=adds)
            if step < n_rows:  # gradients of its rows, put where they belong
                costs.append(traffic(2 * rows * width, b))
    return costs


def _tail_piece(
    rows: Any, n: Any, width: Any, band: Band, b: Any, *, adds: bool = False
) -> list[Cost]:
    """Its rows are picked, and the gradients of these added to those of all n tokens."""
    picked = traffic(2 * rows * width, b, ids=rows)
    return [picked, *_piece(rows, width, band, b, adds=adds), _added_rows(rows, width, b, n=n)]


def _piece(rows: Any, width: Any, band: Band, b: Any, *, adds: bool = False) -> list[Cost]:
    """Forward, and what it gives to the gradients; adds: to those of other rows."""
    forward = [*_band(rows, width, band, b), *_likelihoods(rows, b), _one_hot(rows, b)]
    return [*forward, *_band_backward(rows, width, band, b, adds=adds)]


def _partition(n: Any, n_tails: Any, n_clusters: int, b: Any) -> list[Cost]:
    """The tokens by cluster, n_tails of them in tails; the host waits for their numbers."""
    n_edges = n_clusters + 4  # both ends of the vocabulary and of the ignored id too
    return [
        traffic(0, b, ids=3 * n),  # sort: ids in, ids and their order out
        traffic(0, b, ids=n + 2 * n_edges, syncs=1),  # where each cluster begins
        # Looked up: entries of the head and words of the tails, then in one list.
        traffic(0, b, ids=3 * (n + n_tails), launches=2),
        traffic(0, b, ids=2 * (n + n_tails)),
    ]


def _band(n: Any, d: Any, band: Band, b: Any) -> list[Cost]:
    """Forward: the probabilities stand in place of the scores."""
    projection = [_product(n, d, band.width, b, is_short(n, d, band.width))] * band.projects
    whole = n, band.width, band.n_entries
    is_one = len(band.matrices) == 1
    by_onednn = is_one and (is_short(*whole) or is_in_runs(*whole))
    products = [_product(n, band.width, entries, b, by_onednn) for entries in band.matrices]
    in_lines = not is_one or b != FP32_BYTES or not is_short(*whole)
    room = room_in_row(band.n_entries, b) if in_lines else 0
    filled = [traffic(n * room, b)] if room else []
    return [*projection, *products, *filled, softmax_passes(n, band.n_entries + room, b)]


def _product(rows: Any, inner: Any, columns: Any, b: Any, by_onednn: bool) -> Cost:
    """oneDNN has those of fp32 alone."""
    kind = "onednn_product" if by_onednn and b == FP32_BYTES else "product"
    return matmul(rows, inner, columns, b, kind)


def _of_weights(entries: Any, n: Any, width: Any, b: Any) -> Cost:
    """Gradient of a matrix of (entries, width)."""
    by_onednn = is_short_gradient(entries, n, width) or is_gradient_in_runs(n, width)
    return _product(entries, n, width, b, by_onednn)


def _of_rows(n: Any, entries: Any, width: Any, b: Any) -> Cost:
    """Gradient of n rows that met a matrix of (entries, width)."""
    sizes = n, entries, width
    by_onednn = is_short(*sizes) or is_of_few_rows(*sizes) or is_in_runs(*sizes)
    return _product(*sizes, b, by_onednn)


def softmax_passes(n: Any, n_entries: Any, b: Any) -> Cost:
    """Largest of each row, the target's score, softmax, the likeliest of each row."""
    values = n * n_entries
    moved = (values + n) + 2 * n + 2 * values + (values + n)
    return traffic(moved, b, ids=n, kind="fused_softmax", launches=4)


def _likelihoods(n: Any, b: Any) -> list[Cost]:
    """Of the target of each row, and less one."""
    return [
        traffic(2 * n + 3 * n + 3 * n, b, launches=3),  # logarithm, difference, sum
        traffic(2 * n, b),
    ]


def _one_hot(n: Any, b: Any) -> Cost:
    """What the gradient is at the target of each row, scattered."""
    return traffic(2 * n, b, ids=n)


def _mean(n: Any, n_tails: Any, b: Any) -> list[Cost]:
    """Likelihoods negated, tails added; the sum of all in their shares."""
    return [
        traffic(2 * n, b),
        _added_rows(n_tails, 1, b, n=n),
        traffic(3 * n + 1, b, launches=2),
    ]


def _added_rows(n_tails: Any, width: Any, b: Any, *, n: Any) -> Cost:
    """Rows of the tails added to those of all tokens."""
    return traffic((2 * n + n_tails) * width, b, ids=n_tails)


def _band_backward(n: Any, d: Any, band: Band, b: Any, *, adds: bool = False) -> list[Cost]:
    """The narrow factor of each product is scaled, never the scores.

    adds: whether gradients of the weights are there already, from other rows.
    """
    narrow = n * band.width
    scaled = traffic(2 * narrow + 1, b)
    of_weights = [_of_weights(band.width, n, d, b)] * band.projects
    of_weights += [_of_weights(entries, n, band.width, b) for entries in band.matrices]
    if adds:
        sizes = band.weights(d)
        of_weights = [
            adding(product, size, b) for product, size in zip(of_weights, sizes, strict=True)
        ]
    first = _of_rows(n, band.matrices[0], band.width, b)
    later = [matmul(n, entries, band.width, b) for entries in band.matrices[1:]]
    of_rows = [first, *(adding(product, narrow, b) for product in later)]
    of_rows += [_of_rows(n, band.width, d, b)] * band.projects
    return [*of_weights, *of_rows, scaled, scaled]
