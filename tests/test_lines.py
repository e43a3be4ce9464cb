"""Laws of fitted lines: exact through exact points, intervals that cover, the same as NumPy's."""

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from lmtime.errors import UsageError
from lmtime.lines import fit_line, fit_sum, student_t


def rng():
    return np.random.default_rng(17)


@pytest.mark.parametrize(
    "n_free, quantile",
    [(1, 12.7062), (2, 4.30265), (3, 3.18245), (4, 2.77645), (10, 2.22814), (30, 2.04227),
     (120, 1.97993), (1000, 1.96234), (100_000, 1.95996)],
)  # fmt: skip
def test_students_t_has_its_tabulated_quantiles(n_free, quantile):
    assert student_t(n_free) == pytest.approx(quantile, rel=2e-5)


def test_points_on_a_line_give_it_back():
    line = fit_line([1, 2, 4, 12], [5, 7, 11, 27])
    for value in (line.slope, line.slope_low, line.slope_high):
        assert value == pytest.approx(2)
    for value in (line.intercept, line.intercept_low, line.intercept_high):
        assert value == pytest.approx(3)
    assert line.r2 == pytest.approx(1)
    assert line.residuals == pytest.approx(np.zeros(4), abs=1e-12)
    assert line.at([0, 100]) == pytest.approx([3, 203])


def test_a_line_through_three_points_worked_by_hand():
    """y = 1/6 + 3/2 x, the squares left are 1/6, of a total of 14/3."""
    line = fit_line([0, 1, 2], [0, 2, 3])
    assert (line.slope, line.intercept) == pytest.approx((1.5, 1 / 6))
    assert line.r2 == pytest.approx(1 - (1 / 6) / (14 / 3))
    assert line.slope_high - line.slope == pytest.approx(student_t(1) * math.sqrt(1 / 6 / 2))
    at_0 = student_t(1) * math.sqrt(1 / 6 * (1 / 3 + 1 / 2))
    assert line.intercept - line.intercept_low == pytest.approx(at_0)


def test_a_constant_has_no_slope_and_explains_nothing():
    line = fit_line([1, 2, 3, 4], [5, 5, 5, 5])
    assert (line.slope, line.intercept, line.r2) == (0, 5, 0)


points = st.lists(
    st.tuples(st.integers(-9, 9), st.integers(-99, 99), st.integers(1, 5)), min_size=3, max_size=9
).filter(lambda rows: len({x for x, _, _ in rows}) > 1)


@settings(deadline=None)
@given(points)
def test_a_weight_of_k_is_the_same_point_k_times(rows):
    x, y, k = np.array(rows).T
    weighted, repeated = fit_line(x, y, k), fit_line(np.repeat(x, k), np.repeat(y, k))
    assert weighted.slope == pytest.approx(repeated.slope, abs=1e-9)
    assert weighted.intercept == pytest.approx(repeated.intercept, abs=1e-9)
    assert weighted.r2 == pytest.approx(repeated.r2, abs=1e-9)
    expected = np.polyfit(x, y, 1, w=np.sqrt(k))
    assert (weighted.slope, weighted.intercept) == pytest.approx(tuple(expected), abs=1e-9)


def test_intervals_cover_what_they_should():
    """Six points, one a depth: 95 of 100 intervals hold the slope, and as many the intercept."""
    draws, x = rng(), np.arange(1, 7)
    lines = [fit_line(x, 10 + 4 * x + draws.normal(0, 2, 6)) for _ in range(2000)]
    slopes = np.mean([line.slope_low <= 4 <= line.slope_high for line in lines])
    intercepts = np.mean([line.intercept_low <= 10 <= line.intercept_high for line in lines])
    assert 0.935 < slopes < 0.965
    assert 0.935 < intercepts < 0.965


def test_intervals_cover_where_noise_grows_and_the_weights_say_so():
    draws, x = rng(), np.arange(1, 13)
    lines = [fit_line(x, 4 * x + draws.normal(0, 0.1 * x), 1 / x**2) for _ in range(1000)]
    assert 0.93 < np.mean([line.slope_low <= 4 <= line.slope_high for line in lines]) < 0.97


def test_the_scale_of_the_weights_does_not_matter():
    x, y, w = rng().random((3, 8))
    one, other = fit_line(x, y, w), fit_line(x, y, 1000 * w)
    assert one.slope_low == pytest.approx(other.slope_low)
    assert one.intercept_high == pytest.approx(other.intercept_high)
    assert one.r2 == pytest.approx(other.r2)


def test_a_sum_of_effects_is_found_whatever_the_scales():
    features = rng().random((40, 3)) * [1, 1e6, 1e-3]
    y = 7 + features @ [2, 3e-6, -5e3]
    found = fit_sum(features, y)
    assert found.intercept == pytest.approx(7)
    assert found.coefficients == pytest.approx([2, 3e-6, -5e3])
    assert found.r2 == pytest.approx(1)
    assert found.at(features) == pytest.approx(y)


def test_a_sum_of_one_feature_is_the_line():
    x, y = rng().random((2, 20))
    line, found = fit_line(x, y), fit_sum(x[:, None], y)
    assert found.intercept == pytest.approx(line.intercept)
    assert found.coefficients == pytest.approx([line.slope])
    assert found.r2 == pytest.approx(line.r2)


@pytest.mark.parametrize(
    "call, wanted",
    [
        (lambda: fit_line([1, 2], [1, 2]), "2 points at 2 different x make no line"),
        (lambda: fit_line([3, 3, 3], [1, 2, 3]), "3 points at 1 different x"),
        (lambda: fit_line([1, 2, 3], [1, 2]), "give one each a point"),
        (lambda: fit_line([1, 2, 3], [1, np.nan, 3]), "must be finite"),
        (lambda: fit_line([1, 2, 3], [1, 2, 3], [1, 0, 1]), "weights above 0"),
        (lambda: fit_sum([1, 2, 3], [1, 2, 3]), "one row a point"),
        (lambda: fit_sum(np.ones((3, 2)), [1, 2, 3]), "3 points are too few for 2 features"),
        (lambda: fit_sum(np.ones((9, 2)), np.arange(9)), "every feature must be finite and vary"),
    ],
)
def test_a_mistake_is_told(call, wanted):
    with pytest.raises(UsageError, match=wanted):
        call()
