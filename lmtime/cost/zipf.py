"""How often words of a rank are met: laws fitted to two counts of words, for predictions.

A corpus's own counts are used wherever it is loaded; a law serves where none is, and on pages
whose cutoffs and vocabulary move. Plain arithmetic: numbers and Altair parameters alike.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any


@dataclass(frozen=True)
class Law:
    """Share of all tokens that the `rank` most frequent words make up: a polynomial.

    Its variable is rank ** exponent. Least squares on the cumulative share, 3,000 ranks spaced
    evenly in log(rank) between those of `ranks`, beyond which it extrapolates. max_error: of the
    share; a test repeats the comparison with the counts.
    """

    exponent: float
    coefficients: tuple[float, ...]
    ranks: tuple[int, int]
    max_error: float

    def cumulative_share(self, rank: Any) -> Any:
        """Share of all tokens that the `rank` most frequent words make up."""
        x, share = rank**self.exponent, 0.0
        for coefficient in self.coefficients:  # Horner
            share = share * x + coefficient
        return share


# The key is the corpus: the training tokens of `movie-reviews`, the counts of `word-counts`.
LAWS = {
    "movie-reviews": Law(
        0.1, (0.051332, -0.591351, 2.74483, -6.65853, 8.95206, -4.61742), (20, 79_771), 0.005
    ),
    "word-counts": Law(
        -0.2, (-2303.56, 2284.92, -795.206, 112.087, -7.35504, 1.18636), (1_000, 793_471), 0.001
    ),
}
REVIEWS = LAWS["movie-reviews"]
# The second counts again, from rarer ranks on and less closely: for a vocabulary that moves from
# a few thousand words to a million, the last fifth of which it extrapolates.
WIDE = Law(
    -0.25,
    (-123_212.0, 162_071.0, -86_539.8, 23_746.0, -3_445.19, 239.202, -8.42394, 1.11813),
    (100, 793_471),
    0.002,
)


def tail_tokens(
    n_tokens: Any, cutoffs: Sequence[Any], vocab_size: Any, law: Law = REVIEWS
) -> list[Any]:
    """Expected targets in each tail cluster; rarer words than the vocabulary holds are `<unk>`.

    `<unk>` is itself a frequent word and counts with the short list.
    """
    shares = [_between_0_and_1(law.cumulative_share(rank)) for rank in (*cutoffs, vocab_size)]
    return [n_tokens * _between_0_and_1(high - low) for low, high in pairwise(shares)]


def _between_0_and_1(share: Any) -> Any:
    """Beyond its ranks a law leaves the shares that there are; a page's sliders stay within."""
    return min(max(share, 0.0), 1.0) if isinstance(share, int | float) else share
