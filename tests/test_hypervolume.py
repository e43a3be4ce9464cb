"""Laws of the hypervolume: exact in any dimension, and fair between two searches."""

import math
import warnings
from itertools import combinations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from lmtime.errors import UsageError
from lmtime.pareto.hypervolume import hypervolume

BOTH = ["min", "min"]


def test_a_point_beyond_the_reference_adds_nothing():
    assert hypervolume([[1, 3], [2, 2], [3, 1], [5, 5]], [4, 4], BOTH) == 6
    assert hypervolume([[1, 3], [2, 2], [3, 1], [0, 5], [4, 0]], [4, 4], BOTH) == 6


def test_only_points_beyond_the_reference_make_0_with_a_warning():
    with pytest.warns(UserWarning, match="no point is better than the reference"):
        assert hypervolume([[5, 5]], [4, 4], BOTH) == 0
    with pytest.warns(UserWarning):
        assert hypervolume([[4, 0], [math.nan, 0]], [4, 4], BOTH) == 0


def test_no_points_make_0_without_one():
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert hypervolume([], [4, 4], BOTH) == 0


def test_a_minimised_and_a_maximised_objective():
    assert hypervolume([[10, 0.9], [5, 0.8]], [20, 0.5], ["min", "max"]) == pytest.approx(5.5)


def test_equal_points_count_once():
    assert hypervolume([[1, 3], [1, 3], [3, 1]], [4, 4], BOTH) == 5


@pytest.mark.parametrize("reference", [(20, 0.5), (100, 0.2), (1000, 0.0)])
def test_a_search_gains_nothing_by_having_met_a_bad_point(reference):
    directions = ["min", "max"]
    with_bad = hypervolume([[10, 0.9], [100, 0.2]], reference, directions)
    assert with_bad == hypervolume([[10, 0.9]], reference, directions) > 0


def test_a_failed_point_adds_nothing_and_an_infinitely_good_one_everything():
    assert hypervolume([[1, 3], [math.nan, 0]], [4, 4], BOTH) == 3
    assert hypervolume([[1, 3], [math.inf, 0]], [4, 4], BOTH) == 3
    assert hypervolume([[1, 3], [-math.inf, 0]], [4, 4], BOTH) == math.inf


def test_the_reference_must_be_finite_and_fit():
    with pytest.raises(UsageError, match="must be finite in every objective"):
        hypervolume([[1, 1]], [4, math.inf], BOTH)
    with pytest.raises(UsageError, match="do not fit 2 directions"):
        hypervolume([[1, 1]], [4, 4, 4], BOTH)


@pytest.mark.parametrize("n", [1, 2, 3, 4, 5, 6])
def test_closed_forms(n):
    directions = ["min"] * n
    assert hypervolume(np.zeros((1, n)), [2] * n, directions) == 2**n
    # Each point is 0 in one objective and 9 in the others: n beams of volume 10 that share 1.
    points = np.full((n, n), 9.0) - 9 * np.eye(n)
    assert hypervolume(points, [10] * n, directions) == n * 9 + 1


def by_inclusion_and_exclusion(points, reference):
    volume = 0.0
    for size in range(1, len(points) + 1):
        for chosen in combinations(points, size):
            sides = np.maximum(reference - np.max(chosen, axis=0), 0)
            volume -= (-1) ** size * np.prod(sides)
    return volume


clouds = st.tuples(st.integers(1, 7), st.integers(1, 5)).flatmap(
    lambda shape: hnp.arrays(float, shape, elements=st.integers(0, 6).map(float))
)


@given(clouds)
@settings(max_examples=120, deadline=None)
@pytest.mark.filterwarnings("ignore:no point is better")
def test_it_is_the_volume_of_the_union(points):
    n = points.shape[1]
    expected = by_inclusion_and_exclusion(points, np.full(n, 5.0))
    assert hypervolume(points, [5] * n, ["min"] * n) == pytest.approx(expected, abs=1e-9)


@given(clouds, st.randoms(use_true_random=False))
@settings(max_examples=80, deadline=None)
@pytest.mark.filterwarnings("ignore:no point is better")
def test_order_copies_and_directions_do_not_change_it_and_a_point_never_lowers_it(points, random):
    n = points.shape[1]
    whole = hypervolume(points, [5] * n, ["min"] * n)
    order = list(range(len(points)))
    random.shuffle(order)
    again = np.concatenate([points[order], points[:1]])
    assert hypervolume(again, [5] * n, ["min"] * n) == pytest.approx(whole)
    assert hypervolume(-points, [-5] * n, ["max"] * n) == pytest.approx(whole)
    columns = np.array(sorted(range(n), key=lambda _: random.random()))
    assert hypervolume(points[:, columns], [5] * n, ["min"] * n) == pytest.approx(whole)
    assert hypervolume(points[:-1], [5] * n, ["min"] * n) <= whole + 1e-9


def test_random_shots_hit_as_often():
    rng = np.random.default_rng(0)
    points, shots = rng.random((20, 3)), rng.random((20_000, 3))
    hit = (points[None] <= shots[:, None]).all(axis=2).any(axis=1).mean()
    deviation = math.sqrt(hit * (1 - hit) / len(shots))
    assert abs(hypervolume(points, [1] * 3, ["min"] * 3) - hit) < 4 * deviation
