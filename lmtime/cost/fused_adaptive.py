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
    n, d, b = n_tokens, shape.final_hidden_size, value_bytes
    shared, n_tails = shared_rank(shape), sum(tail_tokens)
    width = input_size(shape)
    rows = [n, *tail_tokens]
    forward = copied_rows(n, d, b, in_rows)
    backward = _scales(n, n_tails, b)
    if shared is not None:
        forward.append(matmul(n, d, width, b))
    forward += [*_partition(n, tail_tokens, b), traffic(2 * n_tails * width, b, ids=n_tails)]
    for n_rows, band in zip(rows, fused_bands(shape), strict=True):
        forward += _band(n_rows, width, band, b)
        backward += _band_backward(n_rows, width, band, b)
    forward += [*_likelihoods(n, n_tails, b), *(traffic(2 * r, b, ids=r) for r in rows)]
    forward.append(traffic(n + 1 + 2, b, launches=2))  # the mean
    backward.append(traffic(2 * n * width + n_tails * width, b, ids=n_tails))  # tails to the head's
    if shared is not None:
        backward += matmul_backward(n, d, width, b)
    return {(OUTPUT_LAYER, "forward"): forward, (OUTPUT_LAYER, "backward"): backward}


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
    is_tied, rank = getattr(shape, "ties_words", False), getattr(shape, "head_rank", None)
    tails = getattr(shape, "tail_widths", None)
    projects = [True] * n_tails if tails is None else [tail != width for tail in tails]
    if tails is None:
        tails = [floor_divide(width, shape.div_value**i) for i in range(1, n_tails + 1)]
    sizes = tail_sizes(shape.cutoffs, shape.vocab_size)
    head = Band(shape.cutoffs[0], width if rank is None else rank, rank is not None, n_tails)
    found = [head, *map(Band, sizes, tails, projects)]
    return [band._replace(is_tied=is_tied) for band in found]


def input_size(shape: Any) -> Any:
    """Width of what head and tails see: the hidden state itself, or its shared projection."""
    shared = shared_rank(shape)
    return shape.final_hidden_size if shared is None else shared


def shared_rank(shape: Any) -> Any:
    """Of the one projection for head and tails; None without it."""
    return getattr(shape, "shared_rank", None)


def _partition(n: Any, tail_tokens: Sequence[Any], b: Any) -> list[Cost]:
    """The tokens by cluster; the host waits for their numbers."""
    n_edges = len(tail_tokens) + 4  # both ends of the vocabulary and of the ignored id too
    return [
        traffic(0, b, ids=3 * n),  # sort: ids in, ids and their order out
        traffic(0, b, ids=n + 2 * n_edges, syncs=1),  # where each cluster begins
        *(traffic(0, b, ids=2 * hits) for hits in tail_tokens),  # counted from its start
        # Targets as entries of the head: the cluster, the word in the short list, their sum.
        traffic(0, b, ids=2 * n + len(tail_tokens)),
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
