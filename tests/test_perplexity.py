"""Laws of paired changes of perplexity, and of exponents."""

import dataclasses
import math

import numpy as np
import pytest

from lmtime import perplexity, plans, stats

N = 200


def trial(seed, shift=0.0, noise=0.0, n_seed=0):
    """Documents of unlike difficulty, each `shift` nats a token harder."""
    rng = np.random.default_rng(0)
    tokens = rng.integers(50, 300, size=N)
    hard = rng.uniform(4, 7, size=N)
    own = np.random.default_rng(seed).normal(0, noise, size=N) if noise else 0.0
    nll = (hard + shift + own) * tokens
    return {
        "seed": n_seed, "config": {"cutoffs": [10, 20]}, "document_tokens": tokens.tolist(),
        "document_nll": nll.tolist(), "perplexity": math.exp(nll.sum() / tokens.sum()),
    }  # fmt: skip


def changed(rows, baseline):
    return perplexity.change(rows, baseline, np.random.default_rng(1))


def test_a_change_of_every_document_is_told_exactly():
    found = changed([trial(0, shift=0.02)], [trial(0)])
    assert found.change == pytest.approx(math.expm1(0.02))
    assert found.low == pytest.approx(found.change) == found.high
    assert found.shown


def test_no_change_is_shown_between_equals():
    found = changed([trial(0)], [trial(0)])
    assert (found.change, found.low, found.high, found.shown) == (0, 0, 0, False)


def test_pairing_cancels_what_makes_documents_hard():
    """Documents differ by three nats; a hundredth of one is shown all the same."""
    found = changed([trial(1, shift=0.01, noise=0.02)], [trial(2, noise=0.02)])
    assert found.shown
    assert found.low < math.expm1(0.01) < found.high
    assert found.high - found.low < 0.02


def test_seeds_that_differ_widen_the_interval():
    one = changed([trial(1, shift=0.02)], [trial(1)])
    seeds = [trial(1, shift=s, n_seed=i) for i, s in enumerate((0.0, 0.02, 0.04))]
    several = changed(seeds, [trial(1)])
    assert several.change == pytest.approx(one.change, rel=1e-6)
    assert several.high - several.low > 0.01 > one.high - one.low
    assert several.n_seeds == 1


def test_trials_of_two_corpora_are_kept_apart():
    config = dataclasses.asdict(plans.partitioned(plans.BASELINE))
    config |= {"cutoffs": list(config["cutoffs"])}
    rows = [
        {"config": config, "seed": 0, "corpus": {"name": n}}
        for n in ("movie-reviews", "wikitext-2")
    ]
    assert perplexity.of_partition(rows, plans.BASELINE) == rows[:1]
    assert perplexity.of_partition(rows, plans.BASELINE, "wikitext-2") == rows[1:]


def test_other_documents_cannot_be_paired():
    other = trial(0)
    other["document_tokens"] = other["document_tokens"][::-1]
    with pytest.raises(ValueError, match="different documents"):
        changed([other], [trial(0)])


def test_rows_are_found_by_the_fields_of_their_configuration():
    rows = [trial(0, n_seed=1), trial(0, n_seed=0)]
    assert [r["seed"] for r in perplexity.of_layer(rows, cutoffs=(10, 20))] == [0, 1]
    assert perplexity.of_layer(rows, cutoffs=(10, 30)) == []
    assert perplexity.mean_perplexity(rows) == pytest.approx(rows[0]["perplexity"])


def test_the_exponent_of_a_power_is_that_power():
    sizes = np.array([512.0, 1024, 2048, 4096])
    medians = 3 * sizes**0.7
    ends = np.stack([0.95 * medians, 1.05 * medians], axis=1)
    found = stats.exponent(sizes, medians, ends, np.random.default_rng(0))
    assert found.ratio == pytest.approx(0.7)
    assert 0.6 < found.low < 0.7 < found.high < 0.8
    sharp = stats.exponent(
        sizes, medians, np.stack([medians, medians], axis=1), np.random.default_rng(0)
    )
    assert (sharp.low, sharp.high) == pytest.approx((0.7, 0.7))
    with pytest.raises(ValueError, match="no line"):
        stats.exponent(sizes[:1], medians[:1], ends[:1], np.random.default_rng(0))
