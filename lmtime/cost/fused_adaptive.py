"""Costs of the fused adaptive softmax (`lmtime.softmax.AdaptiveSoftmax`), as torch executes it.

What `output_layers.py` says holds here too. The loss has no owner of its own: its two operators are
the layer's. No target is ignored, and nothing is smoothed or weighted. A CPU takes the passes over
the scores in pieces: they move the same bytes, and their launches are counted as of one piece.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

from lmtime.config import tail_sizes
from lmtime.cost.operators import Cost, adding, matmul, matmul_backward, traffic
from lmtime.cost.output_layers import OUTPUT_LAYER, Rows, copied_rows, floor_divide


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


def fused_adaptive(
    shape: Any,
    n_tokens: float,
    tail_tokens: Sequence[float],
    value_bytes: float,
    *,
    in_rows: bool = False,
) -> Rows:
    """One sort, then the passes of each band, and products alone in the backward pass."""
    n, b = n_tokens, value_bytes
    forward, backward = fused_head(shape, n, sum(tail_tokens), b, in_rows=in_rows)
    for hits, band in zip(tail_tokens, fused_bands(shape)[1:], strict=True):
        its_forward, its_backward = fused_tail(hits, input_size(shape), band, b)
        forward, backward = forward + its_forward, backward + its_backward
    return {(OUTPUT_LAYER, "forward"): forward, (OUTPUT_LAYER, "backward"): backward}


def fused_head(
    shape: Any, n_tokens: float, n_tails: float, value_bytes: float, *, in_rows: bool = False
) -> tuple[list[Cost], list[Cost]]:
    """The layer and its loss without the tails, whose tokens are n_tails: forward, backward.

    Of the cutoffs the first and their number count.
    """
    n, d, b = n_tokens, shape.final_hidden_size, value_bytes
    shared, width, band = shared_rank(shape), input_size(shape), _head_band(shape)
    forward = copied_rows(n, d, b, in_rows)
    if shared is not None:
        forward.append(matmul(n, d, width, b))
    forward += [
        *_partition(n, len(shape.cutoffs), b),
        traffic(2 * n_tails * width, b, ids=n_tails),
        *_band(n, width, band, b),
        *_likelihoods(n, n_tails, b),
        traffic(2 * n, b, ids=n),
        traffic(n + 1 + 2, b, launches=2),  # the mean
    ]
    backward = [
        *_scales(n, n_tails, b),
        *_band_backward(n, width, band, b),
        traffic(2 * n * width + n_tails * width, b, ids=n_tails),  # tails to the head's
    ]
    if shared is not None:
        backward += matmul_backward(n, d, width, b)
    return forward, backward


def fused_tail(n: Any, d: Any, band: Band, b: Any) -> tuple[list[Cost], list[Cost]]:
    """One tail cluster of n tokens that are d wide: forward, backward."""
    counted = traffic(0, b, ids=2 * n)  # targets from its start
    return [counted, *_band(n, d, band, b), traffic(2 * n, b, ids=n)], _band_backward(n, d, band, b)


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
    head, sizes = _head_band(shape), tail_sizes(shape.cutoffs, shape.vocab_size)
    is_tied = [head.is_tied] * n_tails
    return [head, *map(Band, sizes, tails, projects, [0] * n_tails, is_tied)]


def _head_band(shape: Any) -> Band:
    rank, is_tied = getattr(shape, "head_rank", None), getattr(shape, "ties_words", False)
    width = input_size(shape) if rank is None else rank
    return Band(shape.cutoffs[0], width, rank is not None, len(shape.cutoffs), is_tied)


def input_size(shape: Any) -> Any:
    """Width of what head and tails see: the hidden state itself, or its shared projection."""
    shared = shared_rank(shape)
    return shape.final_hidden_size if shared is None else shared


def shared_rank(shape: Any) -> Any:
    """Of the one projection for head and tails; None without it."""
    return getattr(shape, "shared_rank", None)


def _partition(n: Any, n_tails: int, b: Any) -> list[Cost]:
    """The tokens by cluster, of which n_tails are tails; the host waits for their numbers."""
    n_edges = n_tails + 4  # both ends of the vocabulary and of the ignored id too
    return [
        traffic(0, b, ids=3 * n),  # sort: ids in, ids and their order out
        traffic(0, b, ids=n + 2 * n_edges, syncs=1),  # where each cluster begins
        # Targets as entries of the head: the cluster, the word in the short list, their sum.
        traffic(0, b, ids=2 * n + n_tails),
        traffic(0, b, ids=2 * n + 3 * n, launches=2),
    ]


def _band(n: Any, d: Any, band: Band, b: Any) -> list[Cost]:
    """Forward: the exponentials stand in place of the scores."""
    projection = [matmul(n, d, band.width, b)] * band.projects
    products = [matmul(n, band.width, entries, b) for entries in band.matrices]
    return [*projection, *products, softmax_passes(n, band.n_entries, b)]


def softmax_passes(n: Any, n_entries: Any, b: Any) -> Cost:
    """Largest of each row, difference, the target's score, exponential, sum."""
    values = n * n_entries
    moved = (values + n) + (2 * values + n) + 2 * n + 2 * values + (values + n)
    return traffic(moved, b, ids=n, kind="fused_softmax", launches=5)


def _likelihoods(n: Any, n_tails: Any, b: Any) -> list[Cost]:
    """From scores and sums to the likelihood of each token, and what the gradient is there."""
    both = n + n_tails  # a tail token has a row in the head as well
    return [
        traffic(5 * both, b, launches=2),  # logarithm of the sums, taken off
        traffic(2 * n, b),  # negated
        traffic(2 * n + n_tails, b, ids=n_tails),  # tails added
        traffic(5 * both, b, launches=2),  # probability less one, times the sum; then scattered
    ]


def _scales(n: Any, n_tails: Any, b: Any) -> list[Cost]:
    """Backward of the mean, and what arrives for each row over the sum of its exponentials."""
    return [
        traffic(2, b),
        traffic(2 * n_tails, b, ids=n_tails),
        traffic(5 * (n + n_tails), b, launches=2),
    ]


def _band_backward(n: Any, d: Any, band: Band, b: Any) -> list[Cost]:
    """The narrow factor of each product is scaled, never the scores."""
    narrow = n * band.width
    scaled = traffic(2 * narrow + n, b)
    costs = [scaled, *(matmul(entries, n, band.width, b) for entries in band.matrices)]
    first, *later = (matmul(n, entries, band.width, b) for entries in band.matrices)
    costs += [first, *(adding(product, narrow, b) for product in later), scaled]
    return costs + (matmul_backward(n, d, band.width, b) if band.projects else [])
