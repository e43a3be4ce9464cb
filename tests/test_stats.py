"""Laws of the statistics: what an interval must cover, what must add up, what is refused."""

import subprocess
import sys
import time

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from lmtime import stats

# Magnitudes of latencies in ms, and powers of two so that scaling is exact.
latencies = st.floats(min_value=1e-3, max_value=1e4)
samples = st.lists(latencies, min_size=1, max_size=40).map(np.array)
scales = st.integers(-8, 8).map(lambda exponent: 2.0**exponent)


def rng(seed=0):
    return np.random.default_rng(seed)


def autoregressive(n, rho, generator, n_series=1):
    """(n_series, n) series with correlation `rho` between neighbours and median 10."""
    noise = generator.normal(size=(n_series, n))
    series = np.empty_like(noise)
    series[:, 0] = noise[:, 0] / np.sqrt(1 - rho**2)
    for i in range(1, n):
        series[:, i] = rho * series[:, i - 1] + noise[:, i]
    return 10 + series


def test_quantiles_are_those_of_the_samples():
    summary = stats.summarise(np.arange(1.0, 102.0), rng())
    quantiles = (summary.p05, summary.p25, summary.median, summary.p75, summary.p95)
    assert quantiles == (6, 26, 51, 76, 96)
    assert summary.n == 101
    assert summary.spread == 50 / 51
    assert summary.low < summary.median < summary.high


# Seeded, and were it not: 300 runs of a true coverage of 0.93 fall below 0.87 by four sigma.
@pytest.mark.parametrize(
    "draw, median",
    [
        (lambda g: g.normal(10, 1, size=25), 10),
        (lambda g: g.lognormal(size=60), 1),
        (lambda g: 5 + g.exponential(size=40), 5 + np.log(2)),
    ],
    ids=["normal", "lognormal", "exponential"],
)
def test_the_interval_covers_the_true_median_as_often_as_it_says(draw, median):
    generator = rng(1)
    summaries = [stats.summarise(draw(generator), generator, n_resamples=400) for _ in range(300)]
    coverage = np.mean([s.low <= median <= s.high for s in summaries])
    assert 0.87 <= coverage <= 0.99


def test_the_interval_widens_where_neighbours_resemble_each_other():
    generator = rng(2)
    covered, naive_covered, ratio = [], [], []
    for series in autoregressive(200, 0.8, generator, n_series=120):
        summary = stats.summarise(series, generator, n_resamples=400)
        naive = stats.bootstrap_medians(series[:, None], 1, 400, generator)
        low, high = np.quantile(naive, (0.025, 0.975))
        covered.append(summary.low <= 10 <= summary.high)
        naive_covered.append(low <= 10 <= high)
        ratio.append((summary.high - summary.low) / (high - low))
    assert np.median(ratio) > 1.5
    assert np.mean(covered) > 0.7 > np.mean(naive_covered)


def test_blocks_are_used_only_where_neighbours_resemble_each_other():
    assert stats.block_length(rng(3).normal(size=200)) == 1
    series = autoregressive(200, 0.8, rng(3))[0]
    assert 10 <= stats.block_length(series) <= 66
    assert stats.block_length(np.arange(300.0)) == 100
    assert stats.block_length(rng(3).permutation(series)) == 1


def test_outliers_do_not_hide_a_drift():
    drift = np.linspace(10, 11, 100)
    drift[[10, 40, 80]] = 500
    assert stats.autocorrelation(drift) > 0.8
    assert stats.autocorrelation(np.full(20, 3.0)) == 0
    assert stats.autocorrelation(np.array([7.0])) == 0
    assert stats.autocorrelation(np.tile([1.0, 2.0], 50)) < -0.9


def test_resampled_blocks_are_neighbours():
    rows = stats.resampled_rows(17, 5, 200, rng())
    assert rows.shape == (200, 17)
    assert set(np.unique(rows)) == set(range(17))
    steps = np.diff(rows, axis=1)
    inside = [i for i in range(16) if (i + 1) % 5]
    assert (steps[:, inside] == 1).all()


@pytest.mark.parametrize("n", [1, 2, 7, 50])
def test_equal_samples_give_an_interval_without_width(n):
    summary = stats.summarise(np.full(n, 3.7), rng())
    assert (summary.low, summary.median, summary.high) == (3.7, 3.7, 3.7)
    assert summary.spread == 0


def test_one_sample_is_its_own_interval():
    summary = stats.summarise(np.array([4.2]), rng())
    assert (summary.p05, summary.low, summary.median, summary.high, summary.n) == (4.2,) * 4 + (1,)
    shares = stats.share_intervals(np.array([[3.0, 1.0]]), rng())
    assert shares.shares.tolist() == shares.low.tolist() == shares.high.tolist() == [0.75, 0.25]
    assert not stats.outliers(np.array([4.2])).any()


def test_the_spread_of_samples_around_zero_is_not_a_number_that_misleads():
    assert stats.summarise(np.zeros(5), rng()).spread == 0
    assert stats.summarise(np.array([0.0, 0.0, 0.0, 1.0, 1.0]), rng()).spread == np.inf


@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
def test_a_sample_that_is_not_finite_is_refused(bad):
    broken, whole = np.array([1.0, bad, 2.0]), np.ones(3)
    for call in (
        lambda: stats.summarise(broken, rng()),
        lambda: stats.share_intervals(np.stack([whole, broken], axis=1), rng()),
        lambda: stats.paired_difference(broken, whole, rng()),
        lambda: stats.paired_ratio(whole, broken, rng()),
        lambda: stats.outliers(broken),
        lambda: stats.n_warmup(broken),
        lambda: stats.is_stable(np.tile(broken, 4)),
    ):
        with pytest.raises(ValueError, match="not finite"):
            call()


@pytest.mark.parametrize("empty", [np.array([]), np.ones((2, 2))])
def test_samples_of_the_wrong_shape_are_refused(empty):
    with pytest.raises(ValueError, match="shape"):
        stats.summarise(empty, rng())


def test_the_interval_does_not_depend_on_the_size_of_a_chunk(monkeypatch):
    parts = rng(4).lognormal(size=(30, 4))
    whole = stats.share_intervals(parts, rng(5))
    monkeypatch.setattr(stats, "_CHUNK_VALUES", 1000)
    pieces = stats.share_intervals(parts, rng(5))
    assert np.array_equal(whole.low, pieces.low) and np.array_equal(whole.high, pieces.high)


def test_a_share_is_the_parts_median_over_the_sum_of_medians():
    parts = np.array([[1.0, 5.0, 2.0], [2.0, 6.0, 2.0], [9.0, 7.0, 2.0]])
    shares = stats.share_intervals(parts, rng())
    assert shares.shares.tolist() == [0.2, 0.6, 0.2]
    assert shares.total == 10
    assert shares.total_low <= 10 <= shares.total_high


def test_what_varies_together_leaves_the_shares_sure():
    """A machine that slows every part alike moves the step and not the shares."""
    speed = rng(6).uniform(1, 2, size=(200, 1))
    shares = stats.share_intervals(speed * np.array([[6.0, 3.0, 1.0]]), rng())
    assert shares.shares == pytest.approx([0.6, 0.3, 0.1])
    assert (shares.high - shares.low).max() < 1e-12
    assert shares.total_high - shares.total_low > 0.5


def test_the_share_of_a_group_is_the_sum_of_its_parts_shares():
    parts = rng(7).lognormal(size=(80, 5))
    single = stats.share_intervals(parts, rng(8))
    grouped = stats.share_intervals(parts, rng(8), groups=[[3, 4], [0], [0, 1, 2, 3, 4], []])
    assert grouped.shares[0] == pytest.approx(single.shares[3] + single.shares[4])
    assert grouped.shares[1:].tolist() == pytest.approx([single.shares[0], 1, 0])
    assert (grouped.low[1], grouped.high[1]) == (single.low[0], single.high[0])
    # Parts of one whole offset each other: the group is surer than its parts added.
    width = single.high - single.low
    assert grouped.high[0] - grouped.low[0] < width[3] + width[4]
    assert grouped.high[2] - grouped.low[2] < 1e-12


def test_shares_that_cannot_be_are_refused():
    for parts in (np.zeros((3, 2)), np.array([[1.0, -0.1]])):
        with pytest.raises(ValueError, match="negative"):
            stats.share_intervals(parts, rng())
    with pytest.raises(ValueError, match=r"group \[2\]"):
        stats.share_intervals(np.ones((3, 2)), rng(), groups=[[2]])


def test_the_interval_of_a_share_covers_the_true_share():
    generator = rng(9)
    covered = []
    for _ in range(200):
        parts = generator.lognormal(np.log([8.0, 2.0]), 0.2, size=(40, 2))
        shares = stats.share_intervals(parts, generator, n_resamples=400)
        covered.append(shares.low[1] <= 0.2 <= shares.high[1])
    assert 0.87 <= np.mean(covered) <= 0.995


def test_equal_series_show_no_difference():
    series = rng(10).lognormal(size=50)
    same = stats.paired_difference(series, series, rng())
    assert (same.difference, same.low, same.high, same.shown) == (0, 0, 0, False)
    ratio = stats.paired_ratio(series, series, rng())
    assert (ratio.ratio, ratio.low, ratio.high) == (1, 1, 1)


def test_pairing_shows_a_difference_that_the_machines_drift_would_hide():
    generator = rng(11)
    drift = np.linspace(10, 20, 100)
    a = drift * 1.02 + generator.normal(0, 0.05, size=100)
    b = drift + generator.normal(0, 0.05, size=100)
    difference = stats.paired_difference(a, b, rng())
    assert difference.shown and 0.1 < difference.low < difference.high < 0.5
    ratio = stats.paired_ratio(a, b, rng())
    assert 1 < ratio.low < 1.02 < ratio.high < 1.03
    alone = stats.summarise(a, rng())
    assert alone.low < np.median(b) < alone.high


def test_noise_is_seldom_shown_as_a_difference():
    generator = rng(12)
    shown = []
    for _ in range(200):
        a, b = generator.lognormal(size=(2, 30))
        shown.append(stats.paired_difference(a, b, generator, n_resamples=400).shown)
    assert np.mean(shown) < 0.13


@pytest.mark.parametrize("n, shown", [(1, False), (5, False), (6, True)])
def test_too_few_pairs_show_nothing(n, shown):
    assert stats.paired_difference(np.full(n, 2.0), np.ones(n), rng()).shown is shown


def test_pairs_must_match_and_denominators_be_positive():
    with pytest.raises(ValueError, match="3 and 2 samples"):
        stats.paired_difference(np.ones(3), np.ones(2), rng())
    with pytest.raises(ValueError, match="above 0"):
        stats.paired_ratio(np.ones(2), np.array([1.0, 0.0]), rng())


def test_outliers_are_flagged_above_the_median_only():
    mask = stats.outliers(np.array([10.0, 10.1, 9.9, 10.2, 9.8, 60.0, 0.1]))
    assert mask.tolist() == [False] * 5 + [True, False]
    assert not stats.outliers(np.full(9, 2.0)).any()


def test_a_series_is_stable_once_two_windows_agree():
    cooling = 10 + 40 * 0.7 ** np.arange(40)
    assert not stats.is_stable(cooling[:9])
    assert not stats.is_stable(cooling[:10])
    assert stats.is_stable(cooling)
    assert not stats.is_stable(cooling[:20], tolerance=0.001)
    assert stats.is_stable([1.0, 1.0], window=1)


def test_first_calls_that_were_slow_are_warmup():
    """A one-time first pass was once published as "ten times slower" (whittle issue 293)."""
    latencies_ms = np.array([80.0, 60.0] + [10.0] * 18)
    assert stats.n_warmup(latencies_ms) == 2
    assert np.median(latencies_ms[stats.n_warmup(latencies_ms) :]) == 10


@pytest.mark.parametrize(
    "latencies_ms, expected",
    [
        ([10.0] * 20, 0),
        ([80.0, 10.0, 60.0, 55.0, 50.0] + [10.0] * 20, 5),  # a fast call amid the slow ones
        ([10.0] * 10 + [300.0] + [10.0] * 10, 0),  # an outlier is no warm-up
        ([7.0] * 6 + [10.0] * 20, 6),  # a clock that was higher at first
        ([5.0], 0),
        ([80.0, 10.0], 1),
    ],
)
def test_warmup_ends_at_the_first_steady_sample(latencies_ms, expected):
    assert stats.n_warmup(np.array(latencies_ms)) == expected


def test_noise_alone_is_not_taken_for_warmup():
    generator = rng(13)
    found = [stats.n_warmup(generator.normal(10, 0.3, size=40)) for _ in range(100)]
    assert np.mean(np.array(found) == 0) > 0.9


@settings(deadline=None)
@given(samples, scales)
def test_a_unit_changes_the_numbers_and_nothing_else(values, scale):
    one = stats.summarise(values, rng(), n_resamples=50)
    other = stats.summarise(values * scale, rng(), n_resamples=50)
    for name in ("p05", "median", "p95", "low", "high"):
        assert getattr(other, name) == getattr(one, name) * scale
    assert other.spread == one.spread
    assert np.array_equal(stats.outliers(values), stats.outliers(values * scale))
    assert stats.n_warmup(values) == stats.n_warmup(values * scale)


@settings(deadline=None)
@given(samples, st.randoms(use_true_random=False))
def test_order_does_not_move_the_quantiles(values, random):
    shuffled = values.copy()
    random.shuffle(shuffled)
    one = stats.summarise(values, rng(), n_resamples=20)
    other = stats.summarise(shuffled, rng(), n_resamples=20)
    assert (one.p05, one.median, one.p95) == (other.p05, other.median, other.p95)


@settings(deadline=None)
@given(samples)
def test_an_interval_lies_within_the_samples_and_in_order(values):
    summary = stats.summarise(values, rng(), n_resamples=50)
    assert values.min() <= summary.low <= summary.high <= values.max()
    assert summary.p05 <= summary.p25 <= summary.median <= summary.p75 <= summary.p95


@settings(deadline=None)
@given(st.integers(1, 20), st.integers(1, 8), st.integers(0, 10**6), scales)
def test_shares_sum_to_one_and_do_not_change_with_the_unit(n_steps, n_parts, seed, scale):
    parts = np.random.default_rng(seed).lognormal(sigma=2, size=(n_steps, n_parts))
    shares = stats.share_intervals(parts, rng(), n_resamples=50)
    assert shares.shares.sum() == pytest.approx(1, abs=1e-15 * n_parts)
    assert (shares.low <= shares.high).all() and (shares.low >= 0).all()
    scaled = stats.share_intervals(parts * scale, rng(), n_resamples=50)
    assert np.array_equal(shares.shares, scaled.shares)
    assert np.array_equal(shares.low, scaled.low)
    assert scaled.total == shares.total * scale


def test_the_largest_case_takes_seconds_at_most():
    parts = rng(14).lognormal(size=(500, 30))
    start = time.monotonic()
    stats.share_intervals(parts, rng())
    assert time.monotonic() - start < 10  # about one second on an idle core


def test_the_statistics_need_no_torch():
    code = "import sys; sys.modules['torch'] = None; import lmtime.stats"
    subprocess.run([sys.executable, "-c", code], check=True)
