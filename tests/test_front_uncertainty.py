"""Laws of front membership: certain where samples are, in doubt where noise decides."""

import numpy as np
import pytest

from lmtime.errors import UsageError
from lmtime.pareto.dominance import Limit, non_dominated
from lmtime.pareto.uncertainty import Objective, front_membership, indifferent

N = 300


def rng():
    return np.random.default_rng(7)


def known(direction, *values):
    return Objective(direction, [[v] for v in values])


def test_what_is_known_exactly_is_certain():
    objectives = [known("min", 10, 12, 8, 9), known("max", 0.9, 0.9, 0.85, 0.84)]
    found = front_membership(objectives, rng(), n_resamples=20)
    assert found.on_front.tolist() == [True, False, True, False]
    assert found.probability.tolist() == [1, 0, 1, 0]
    assert found.sentence(0) == "on the front in 100% of resamples"


def test_samples_that_do_not_meet_are_as_good_as_known():
    noise = rng().normal(0, 0.1, (3, 30))
    latency = Objective("min", list(np.array([[1], [2], [3]]) + noise))
    found = front_membership([latency, known("max", 0.8, 0.7, 0.9)], rng(), n_resamples=N)
    assert found.probability.tolist() == [1, 0, 1]


def test_the_probability_is_that_of_the_resamples_counted_by_hand():
    """Two points with one objective: the second is on the front if its draw is not above 3."""
    objectives = [Objective("min", [[3.0], [2.0, 4.0]], statistic="mean")]
    found = front_membership(objectives, rng(), n_resamples=4000)
    assert found.probability[1] == pytest.approx(3 / 4, abs=0.03)  # (2, 2), (2, 4) and (4, 2)
    assert found.probability[0] == pytest.approx(3 / 4, abs=0.03)  # mean 3 is a tie, 4 is above


def test_paired_examples_are_drawn_together():
    """A model that is right wherever the other is, and once more, is never behind it."""
    right = (rng().random(40) < 0.6).astype(float)
    better = right.copy()
    better[np.flatnonzero(right == 0)[:4]] = 1
    together = Objective("max", [right, better], statistic="mean", paired=True)
    alone = Objective("max", [right, better], statistic="mean")
    assert front_membership([together], rng(), n_resamples=N).probability[1] == 1
    assert 0.5 < front_membership([alone], rng(), n_resamples=N).probability[1] < 0.99


def test_the_front_of_all_samples_is_that_of_their_statistics():
    draws = rng()
    samples = [draws.random((9, 5)) for _ in range(3)]
    objectives = [
        Objective("min", list(samples[0])),
        Objective("max", list(samples[1]), statistic="mean"),
        Objective("min", list(samples[2]), paired=True),
    ]
    points = np.stack(
        [np.median(samples[0], 1), np.mean(samples[1], 1), np.median(samples[2], 1)], axis=1
    )
    found = front_membership(objectives, rng(), n_resamples=50)
    assert (found.on_front == non_dominated(points, ["min", "max", "min"])).all()
    assert ((found.probability >= 0) & (found.probability <= 1)).all()


def test_the_order_of_points_does_not_matter_beyond_the_draw():
    samples = [np.array([1.0, 2.0]), np.array([1.5, 1.6]), np.array([1.4, 3.0])]
    one = front_membership([Objective("min", samples)], rng(), n_resamples=3000)
    other = front_membership([Objective("min", samples[::-1])], rng(), n_resamples=3000)
    assert one.probability == pytest.approx(other.probability[::-1], abs=0.04)


def test_a_failed_point_is_never_on_the_front_and_beats_nobody():
    objectives = [Objective("min", [[1.0, np.nan, 1.0], [2.0, 2.0, 2.0]])]
    found = front_membership(objectives, rng(), n_resamples=N)
    assert found.on_front.tolist() == [False, True]
    assert found.probability.tolist() == [0, 1]


def test_the_same_seed_gives_the_same_probabilities():
    objective = Objective("min", [rng().random(8), rng().random(8) + 0.05])
    one, two = (front_membership([objective], rng(), n_resamples=N) for _ in range(2))
    assert (one.probability == two.probability).all()


def test_latencies_that_noise_alone_tells_apart_are_indifferent():  # case latency-ties
    assert indifferent([10.1, 10.0, 10.2], [10.0, 10.1, 10.2], rng())
    assert not indifferent(np.linspace(10, 10.2, 20), np.linspace(11, 11.2, 20), rng())
    assert indifferent(np.linspace(10, 10.2, 20), np.linspace(11, 11.2, 20), rng(), tolerance=1)


def test_limits_are_kept_by_every_resample():
    latency = Objective("min", [[9.0], [10.0, 10.0, 30.0], [40.0]])
    score = known("max", 0.5, 0.7, 0.9)
    limits = [Limit(0, max=20)]
    found = front_membership([latency, score], rng(), limits=limits, n_resamples=4000)
    assert found.on_front.tolist() == [True, True, False]
    assert found.probability[[0, 2]].tolist() == [1, 0]
    assert found.probability[1] == pytest.approx(20 / 27, abs=0.03)  # two draws of 10 at least


def test_intervals_are_those_of_the_resamples():
    latency = Objective("min", [np.linspace(9, 11, 41), [5.0]], statistic="mean")
    found = front_membership([latency], rng(), n_resamples=4000)
    error = np.std(latency.samples[0]) / np.sqrt(41)
    assert found.low[:, 0] == pytest.approx([10 - 1.96 * error, 5], abs=0.02)
    assert found.high[:, 0] == pytest.approx([10 + 1.96 * error, 5], abs=0.02)


def test_an_infinite_sample_is_the_worst_only_where_it_is_drawn():
    latency = Objective("min", [[1.0, np.inf], [3.0]], statistic="mean")
    found = front_membership([latency], rng(), n_resamples=4000)
    assert found.probability == pytest.approx([1 / 4, 3 / 4], abs=0.03)


def test_no_points_are_no_front():
    found = front_membership([Objective("min", []), Objective("max", [])], rng(), n_resamples=3)
    assert found.probability.size == 0


@pytest.mark.parametrize(
    "call, wanted",
    [
        (lambda: Objective("least", [[1]]), "unknown direction 'least'"),
        (lambda: Objective("min", [[1]], statistic="mode"), "unknown statistic 'mode'"),
        (lambda: Objective("min", [[]]), "a list of one number at least"),
        (lambda: Objective("min", [[1], [1, 2]], paired=True), "as many for every point, not 1, 2"),
        (
            lambda: front_membership([known("min", 1, 2), known("max", 1)], rng()),
            "the samples of the same points",
        ),
        (lambda: front_membership([], rng()), "the samples of the same points"),
    ],
)
def test_a_mistake_is_told(call, wanted):
    with pytest.raises(UsageError, match=wanted):
        call()
