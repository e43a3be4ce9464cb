"""Laws of predictors: what is additive is found exactly, noise is borne, gaps are told."""

import json

import numpy as np
import pytest

from lmtime.config.encoder import DEPTHS, ENCODERS, SubNetwork
from lmtime.errors import UsageError
from lmtime.pareto.predictor import Errors, LatencyPredictor, ScorePredictor, design
from lmtime.pareto.space import GridSpace, LayerSpace

BERT = LayerSpace(
    ENCODERS["bert-base"], (3, 6, 9, 12), (768, 1536, 2304, 3072), DEPTHS["bert-base"]
)


def rng(seed=3):
    return np.random.default_rng(seed)


def lines(sub):
    """ms: base, layers, heads and neurons, all linear."""
    return 2.0 + 0.5 * len(sub.layers) + 0.7 * sum(sub.heads) + 0.004 * sum(sub.ffn_sizes)


def steps(sub):
    """ms: 9 heads cost as much as 12, and odd widths more than they should."""
    heads = {3: 2.0, 6: 4.5, 9: 8.0, 12: 8.1}
    ffn_sizes = {768: 3.0, 1536: 9.0, 2304: 9.5, 3072: 12.0}
    return 1 + sum(map(heads.get, sub.heads)) + sum(map(ffn_sizes.get, sub.ffn_sizes))


def others(n, seed=99):
    draws = rng(seed)
    return [BERT.random(draws) for _ in range(n)]


@pytest.mark.parametrize("law, is_table", [(lines, False), (steps, True)])
def test_what_is_additive_is_found_exactly(law, is_table):
    chosen = design(BERT, 36, rng())
    found = LatencyPredictor.fit(chosen, [law(sub) for sub in chosen])
    errors = found.errors(others(50), [law(sub) for sub in others(50)])
    assert np.abs(errors.relative).max() < 1e-9
    assert bool(found.form.heads) == is_table or law is lines  # a table holds lines as well
    assert found.left_out < 1e-9


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("law", [lines, steps])
def test_noise_of_two_percent_leaves_an_error_far_below_five(law, seed):
    chosen = design(BERT, 36, rng(seed))
    noisy = [law(sub) * np.exp(rng(i).normal(0, 0.02)) for i, sub in enumerate(chosen)]
    errors = LatencyPredictor.fit(chosen, noisy).errors(others(30), [law(s) for s in others(30)])
    assert errors.median < 0.02
    assert errors.mape < 0.025


def test_lines_are_chosen_where_a_table_would_follow_the_noise():
    n_lines = 0
    for seed in range(6):
        chosen = design(BERT, 16, rng(seed))
        draws = rng(seed + 50)
        noisy = [lines(sub) * np.exp(draws.normal(0, 0.05)) for sub in chosen]
        n_lines += not LatencyPredictor.fit(chosen, noisy).form.heads
    assert n_lines >= 5


def test_the_error_left_out_is_that_of_fits_that_left_one_out():
    chosen = design(BERT, 12, rng())
    draws = rng(8)
    noisy = np.array([lines(sub) * np.exp(draws.normal(0, 0.1)) for sub in chosen])
    found = LatencyPredictor.fit(chosen, noisy)
    assert not found.form.heads
    errors = []
    for i in range(len(chosen)):
        keep = [j for j in range(len(chosen)) if j != i]
        features = np.array([found.form.features(chosen[j]) for j in keep]) / noisy[keep, None]
        fitted = np.linalg.lstsq(features, np.ones(len(keep)), rcond=None)[0]
        errors.append(np.dot(fitted, found.form.features(chosen[i])) / noisy[i] - 1)
    assert found.left_out == pytest.approx(np.sqrt(np.mean(np.square(errors))))


def test_relative_errors_count_so_that_small_networks_are_not_drowned():
    """An error of 20 % in the largest may not cost the smallest more than a few."""
    chosen = design(BERT, 30, rng())
    measured = np.array([lines(sub) for sub in chosen])
    measured[measured.argmax()] *= 1.2
    found = LatencyPredictor.fit(chosen, measured)
    smallest = min(BERT.uniform(), key=lines)
    assert found.predict(smallest) == pytest.approx(lines(smallest), rel=0.1)


def test_relative_error_as_a_mean_of_percentages():  # case predictor-relative
    errors = Errors(np.array([4100.0, 7900.0]), np.array([4000.0, 8000.0]))
    assert errors.mape == pytest.approx(0.01875)
    assert errors.median == pytest.approx(0.01875)
    assert errors.relative == pytest.approx([0.025, -0.0125])


def test_a_score_adds_what_each_layer_is_worth():
    worth = rng(1).uniform(0, 3, 12)

    def score(sub):
        return 60 + sum(worth[i] * (h / 12) for i, h in zip(sub.layers, sub.heads, strict=True))

    chosen = design(BERT, 80, rng())
    found = ScorePredictor.fit(chosen, [score(sub) for sub in chosen])
    assert found.form.layers == tuple(range(12))
    errors = found.errors(others(60), [score(sub) for sub in others(60)])
    assert np.abs(errors.predicted - errors.measured).max() < 0.3
    flat = LatencyPredictor.fit(chosen, [score(sub) for sub in chosen])
    flat_errors = flat.errors(others(60), [score(sub) for sub in others(60)])
    assert errors.mape < flat_errors.mape / 4


def test_layers_that_are_alike_get_no_worth_of_their_own():
    chosen = design(BERT, 60, rng())
    draws = rng(5)
    noisy = [lines(sub) + draws.normal(0, 0.5) for sub in chosen]
    found = ScorePredictor.fit(chosen, noisy)
    errors = found.errors(others(60), [lines(sub) for sub in others(60)])
    assert np.sqrt(np.mean((errors.predicted - errors.measured) ** 2)) < 0.5
    assert found.left_out == pytest.approx(0.5, rel=0.4)


@pytest.mark.parametrize("kind", [LatencyPredictor, ScorePredictor])
def test_a_predictor_survives_json(kind):
    chosen = design(BERT, 40, rng())
    found = kind.fit(chosen, [steps(sub) for sub in chosen])
    again = kind.from_dict(json.loads(json.dumps(found.to_dict())))
    assert again == found
    assert [again.predict(sub) for sub in others(5)] == [found.predict(sub) for sub in others(5)]


def test_a_design_has_the_extremes_and_nothing_twice():
    for n in (2, 7, 30):
        chosen = design(BERT, n, rng())
        assert len(chosen) == len({sub.key for sub in chosen}) == n
        assert all(map(BERT.contains, chosen))
        assert max(BERT.uniform(), key=lines) in chosen
        assert min(BERT.uniform(), key=lines) in chosen
    for name in ("heads", "ffn_sizes"):
        widths = {width for sub in design(BERT, 30, rng()) for width in getattr(sub, name)}
        assert widths == set(getattr(BERT, name))
    assert {len(sub.layers) for sub in design(BERT, 30, rng())} == {12, 9, 6}


def test_a_small_space_is_measured_whole():
    grid = GridSpace(ENCODERS["minilm-l6"], (1, 0.5), (1, 0.5))
    assert {s.key for s in design(grid, 40, rng())} == {s.key for s in grid.sub_networks()}
    assert len(design(grid, 3, rng())) == 3


CHOSEN = design(BERT, 12, rng())
TIMES = [lines(sub) for sub in CHOSEN]
ALIKE = [SubNetwork(tuple(range(n)), (w,) * n, (256 * w,) * n) for n in (2, 4, 6) for w in (3, 12)]


@pytest.mark.parametrize(
    "call, wanted",
    [
        (
            lambda: LatencyPredictor.fit(CHOSEN[:3], TIMES[:3]),
            "3 measurements are fewer than the 4",
        ),
        (lambda: LatencyPredictor.fit(CHOSEN, TIMES[:5]), "12 sub-networks and 5 values"),
        (lambda: LatencyPredictor.fit(CHOSEN, [0.0, *TIMES[1:]]), "finite and above 0"),
        (lambda: ScorePredictor.fit(CHOSEN, [np.nan, *TIMES[1:]]), "score must be finite"),
        (lambda: LatencyPredictor.fit(ALIKE, [1.0] * 6), "do not tell layers, heads and neurons"),
        (
            lambda: ScorePredictor.from_dict(LatencyPredictor.fit(CHOSEN, TIMES).to_dict()),
            "this predicts latency_ms, not score",
        ),
    ],
)
def test_a_mistake_is_told(call, wanted):
    with pytest.raises(UsageError, match=wanted):
        call()


def test_a_table_predicts_no_width_that_it_never_saw():
    chosen = design(BERT, 36, rng())
    found = LatencyPredictor.fit(chosen, [steps(sub) for sub in chosen])
    with pytest.raises(UsageError, match=r"heads \[5\] were never measured: predict those of"):
        found.predict(SubNetwork((0,), (5,), (768,)))
