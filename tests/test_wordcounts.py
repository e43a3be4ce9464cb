"""Laws of the counts that stand for a large vocabulary: real ones as they are, a law beyond."""

import numpy as np
import pytest

from lmtime import corpora, wordcounts
from lmtime.wordcounts import FITTED_RANKS, N_WORDS, counted, draw, extended, fitted_law


@pytest.fixture(scope="module")
def counts():
    return counted()[1]


def test_the_counts_are_those_of_the_package():
    words, counts = counted()
    assert words[:4] == ["the", "of", "and", "to"]
    assert (len(words), counts[0], counts[-1]) == (333_213, 23_135_851_162, 12_711)
    assert (np.diff(counts) <= 0).all()


def test_the_law_follows_the_counts_where_it_was_fitted(counts):
    scale, exponent = fitted_law(counts)
    ranks = np.arange(FITTED_RANKS[0], FITTED_RANKS[1] + 1)
    error = scale / ranks**exponent / counts[ranks - 1] - 1
    assert np.abs(error).max() < 0.05


def test_the_law_is_recovered_from_counts_that_follow_one():
    ranks = np.arange(1.0, 400_001)
    assert fitted_law(7e12 / ranks**1.3) == pytest.approx((7e12, 1.3))


def test_real_counts_stay_as_they_are_and_the_law_goes_on_from_them(counts):
    words, whole = extended()
    assert len(words) == len(set(words)) == len(whole) == N_WORDS == 793_471
    assert (whole[: len(counts)] == counts).all()
    assert (np.diff(whole) <= 0).all()
    assert whole[-1] > 0


def test_words_are_drawn_as_often_as_their_counts_say():
    _, streams = draw()
    _, counts = extended()
    share = np.cumsum(counts) / counts.sum()
    for split, stream in streams.items():
        assert stream.dtype == np.int32
        for rank in (1, 2_000, 60_000, 160_000):
            found, n = (stream < rank).mean(), len(stream)
            spread = np.sqrt(share[rank - 1] * (1 - share[rank - 1]) / n)
            assert abs(found - share[rank - 1]) < 5 * spread, (split, rank)
    again = draw()[1]
    assert all((again[split] == streams[split]).all() for split in streams)


def test_it_is_a_corpus_that_says_what_it_is():
    corpus = corpora.load("word-counts", vocab_size=20_000)
    assert corpus.vocab_size == 20_000
    assert "Not text" in corpus.note
    assert "extrapolation" in corpus.note
    tokens, targets = next(corpus.batches(2, 5))
    assert tokens.shape == targets.shape == (2, 5)
    assert corpora.describe("word-counts")["n_types"] == N_WORDS
    assert corpora.fetch("word-counts").name == "unigrams.txt"
    assert corpus.note == wordcounts.NOTE
