"""Laws of fronts: duplicates, NaN, infinities, directions, limits; brute force for any points."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from lmtime.errors import UsageError
from lmtime.pareto.dominance import (
    FAILED,
    Limit,
    constrained_front,
    non_dominated,
    ranks,
    unique_front,
)

INF, NAN = np.inf, np.nan

# id: directions, points, rows of the front
FRONTS = {
    "duplicates": (["min", "min"], [[1, 2], [1, 2], [2, 1], [3, 3]], [0, 1, 2]),
    "nan": (["min", "min"], [[1, 2], [NAN, 0], [2, 1], [3, 3]], [0, 2]),
    "inf": (["min", "min"], [[1, 2], [INF, 0], [2, 1], [INF, 5]], [0, 1, 2]),
    "mixed": (
        ["min", "max"],
        [[10, 0.9], [12, 0.9], [8, 0.85], [9, 0.84], [20, 0.95]],
        [0, 2, 4],
    ),
    "single": (["min", "min"], [[5, 5]], [0]),
    "empty": (["min", "min"], [], []),
    "one objective": (["min"], [[3], [1], [1], [2]], [1, 2]),
    "three objectives": (
        ["max", "min", "min"],
        [[0.9, 10, 4], [0.9, 12, 3], [0.9, 12, 4], [0.8, 10, 4], [0.7, 1, 9]],
        [0, 1, 4],
    ),
    "minus inf": (["min", "max"], [[-INF, 0], [-INF, -1], [0, INF], [0, 1]], [0, 2]),
    "all failed": (["min", "min"], [[NAN, 0], [0, NAN]], []),
}


@pytest.mark.parametrize("case", FRONTS)
def test_the_front_of_a_case(case):
    directions, points, expected = FRONTS[case]
    front = non_dominated(points, directions)
    assert front.dtype == bool
    assert np.flatnonzero(front).tolist() == expected
    assert np.flatnonzero(ranks(points, directions) == 0).tolist() == expected


def test_equal_points_are_all_on_the_front_and_once_on_the_unique_one():
    front = unique_front([[2, 1], [1, 2], [1, 2], [2, 1], [3, 3]], ["min", "min"])
    assert front.tolist() == [[2, 1], [1, 2]]
    assert unique_front([], ["min", "min"]).size == 0


def test_ranks_peel_fronts_off_and_name_failed_points():
    points = [[1, 1], [2, 2], [1, 3], [3, 3], [NAN, 0], [2, 2]]
    assert ranks(points, ["min", "min"]).tolist() == [0, 1, 1, 2, FAILED, 1]


# Limits


def test_when_no_point_keeps_the_limit_the_closest_is_named():
    front = constrained_front([[30, 0.9], [25, 0.8]], ["min", "max"], [Limit(0, max=20)])
    assert not front.feasible
    assert not front.on_front.any()
    assert front.least_violation == (1,)


def test_points_beyond_a_limit_neither_stand_on_the_front_nor_beat_others():
    points = [[10, 0.7], [12, 0.7], [30, 0.9], [NAN, 0.9], [8, 0.3]]
    front = constrained_front(points, ["min", "max"], [Limit(0, max=20), Limit(1, min=0.5)])
    assert front.on_front.tolist() == [True, False, False, False, False]
    assert front.failed.tolist() == [False, False, False, True, False]
    assert front.feasible
    assert front.least_violation == ()


def test_excesses_are_relative_and_equal_ones_are_all_named():
    points = [[30, 0.5], [20, 0.25], [10, 0.25], [NAN, 0.5], [INF, 0.5]]
    front = constrained_front(points, ["min", "max"], [Limit(0, max=10), Limit(1, min=1)])
    assert front.least_violation == (2,)
    tied = constrained_front([[2, 0], [0, 2], [3, 3]], ["min"] * 2, [Limit(0, 1), Limit(1, 1)])
    assert tied.least_violation == (0, 1)
    assert constrained_front([[NAN]], ["min"], [Limit(0, 1)]).least_violation == ()
    assert not constrained_front([], ["min"], [Limit(0, 1)]).feasible


def test_an_infinite_value_keeps_an_absent_limit():
    assert constrained_front([[INF, 1]], ["min", "min"], [Limit(0)]).on_front.tolist() == [True]


@pytest.mark.parametrize(
    "call, wanted",
    [
        (lambda: non_dominated([[1, 2]], ["min", "down"]), "unknown direction 'down'"),
        (lambda: non_dominated([[1, 2]], ["min"]), "do not fit 1 directions"),
        (lambda: non_dominated([1, 2], ["min", "min"]), "give one row a point"),
        (lambda: constrained_front([[1]], ["min"], [Limit(1)]), "no objective 1 to limit"),
        (lambda: Limit(0, max=1, min=2), "from 2 to 1 leaves nothing"),
    ],
)
def test_a_mistake_is_told(call, wanted):
    with pytest.raises(UsageError, match=wanted):
        call()


# Any points: few values, so that ties and duplicates are common


@st.composite
def clouds(draw):
    n_objectives = draw(st.integers(1, 4))
    shape = draw(st.tuples(st.integers(0, 12), st.just(n_objectives)))
    values = st.sampled_from([0.0, 1.0, 2.0, 3.0, INF, -INF, NAN])
    directions = draw(st.lists(st.sampled_from(["min", "max"]), min_size=n_objectives,
                               max_size=n_objectives))  # fmt: skip
    return draw(hnp.arrays(float, shape, elements=values)), directions


def dominates(a, b, directions):
    better = [x < y if d == "min" else x > y for x, y, d in zip(a, b, directions, strict=True)]
    equal = [x == y for x, y in zip(a, b, strict=True)]
    return any(better) and all(p or q for p, q in zip(better, equal, strict=True))


@given(clouds())
@settings(max_examples=200, deadline=None)
def test_the_front_is_what_nobody_dominates(cloud):
    points, directions = cloud
    ok = [p for p in points if not np.isnan(p).any()]
    expected = [
        not np.isnan(p).any() and not any(dominates(q, p, directions) for q in ok) for p in points
    ]
    assert non_dominated(points, directions).tolist() == expected


@given(clouds(), st.randoms(use_true_random=False))
@settings(max_examples=100, deadline=None)
def test_neither_order_nor_copies_nor_monotone_scales_change_the_front(cloud, random):
    points, directions = cloud
    front = non_dominated(points, directions)
    order = list(range(len(points)))
    random.shuffle(order)
    assert (non_dominated(points[order], directions) == front[order]).all()
    twice = np.concatenate([points, points])
    assert (non_dominated(twice, directions) == np.concatenate([front, front])).all()
    scaled = np.arctan(points) * 3 + np.arange(points.shape[1])
    assert (non_dominated(scaled, directions) == front).all()
    turned = [{"min": "max", "max": "min"}[d] for d in directions]
    assert (non_dominated(-points, turned) == front).all()


@given(clouds())
@settings(max_examples=100, deadline=None)
def test_a_rank_is_the_front_of_what_better_ranks_leave(cloud):
    points, directions = cloud
    found = ranks(points, directions)
    for rank in range(found.max(initial=-1) + 1):
        left = found >= rank
        front = np.flatnonzero(left)[non_dominated(points[left], directions)]
        assert front.tolist() == np.flatnonzero(found == rank).tolist()
    assert (np.isnan(points).any(axis=1) == (found == FAILED)).all()
