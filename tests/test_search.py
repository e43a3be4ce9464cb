"""Laws of the search: each sub-network once, small spaces whole, large ones nearly."""

import subprocess
import sys
import zlib
from fractions import Fraction
from pathlib import Path

import numpy as np
import pytest

from lmtime.config.encoder import DEPTHS, ENCODERS, WIDTHS, EncoderConfig
from lmtime.errors import UsageError
from lmtime.pareto.claims import Claims
from lmtime.pareto.dominance import non_dominated, unique_front
from lmtime.pareto.hypervolume import hypervolume
from lmtime.pareto.search import Objectives, search
from lmtime.pareto.space import GridSpace, LayerSpace

NAMED = {"score": "max", "latency_ms": "min"}
DIRECTIONS = list(NAMED.values())
GRID = GridSpace(ENCODERS["bert-base"], WIDTHS, DEPTHS["bert-base"])
SIX = EncoderConfig(hidden_size=384, head_size=32, heads=(12,) * 6, ffn_sizes=(1536,) * 6)
LAYERS = LayerSpace(SIX, (6, 12), (768, 1536), DEPTHS["minilm-l6"])


def landscape(seed, noise=0.1):
    """Score in points and latency: layers unlike, returns that fall, noise of each network."""
    draws = np.random.default_rng(seed)
    worth = draws.lognormal(0, 0.6, (3, 12))
    powers = draws.uniform(0.25, 0.7, (2, 12))
    a, b, c = draws.uniform((0.5, 1, 0.1), (1.5, 3, 0.5))

    def values(sub):
        x = np.array(sub.heads) / 12, np.array(sub.ffn_sizes) / 1536
        at = list(sub.layers)
        n = max(at) + 1
        gained = worth[0, at] + worth[1, at] * x[0] ** powers[0, at]
        part = (gained + worth[2, at] * x[1] ** powers[1, at]).sum() / worth[:, :n].sum()
        luck = np.random.default_rng([seed, zlib.crc32(sub.key.encode())]).normal(0, noise)
        score = 50 + 43 * (1 - np.exp(-4 * part)) / (1 - np.exp(-4)) + luck
        return score, 2 + len(at) * c + a * x[0].sum() + b * x[1].sum()

    return values


class Counted:
    """Objectives that remember what they were asked for."""

    def __init__(self, values):
        self.values, self.keys = values, []

    def __call__(self, sub):
        self.keys.append(sub.key)
        return self.values(sub)


def covered(points, true):
    """Part of the hypervolume of a front that points cover; the reference is the true worst."""
    reference = (true[:, 0].min() - 1e-9, true[:, 1].max() + 1e-9)
    return np.divide(*(hypervolume(unique_front(p, DIRECTIONS), reference, DIRECTIONS)
                       for p in (points, true)))  # fmt: skip


def test_a_small_space_is_evaluated_whole_and_once():  # case small-space-duplicates
    evaluate = Counted(landscape(0))
    found = search(GRID, Objectives(NAMED, evaluate), n_evaluations=40)
    assert len(evaluate.keys) == len(set(evaluate.keys)) == found.n_evaluations == 12
    assert found.exact
    keys = [sub.key for sub, _ in found.front()]
    assert len(keys) == len(set(keys)) == found.on_front.sum()
    values = np.array([landscape(0)(sub) for sub in GRID.sub_networks()])
    assert found.values == pytest.approx(values)
    assert (found.on_front == non_dominated(values, DIRECTIONS)).all()


def test_the_front_comes_with_names_and_in_order():
    found = search(GRID, Objectives(NAMED, landscape(0)), n_evaluations=12)
    latencies = [values["latency_ms"] for _, values in found.front()]
    assert latencies == sorted(latencies)
    assert [values["score"] for _, values in found.front()] == sorted(
        values["score"] for _, values in found.front()
    )


def test_three_objectives():  # case two-objectives-only
    def three(sub):
        score, latency = landscape(0)(sub)
        return score, latency, len(sub.layers) * 3.0

    named = {"score": "max", "cpu_ms": "min", "gpu_ms": "min"}
    found = search(GRID, Objectives(named, three), n_evaluations=40)
    assert (found.on_front == non_dominated(found.values, ["max", "min", "min"])).all()
    assert set(found.front()[0][1]) == set(named)
    larger = search(LAYERS, Objectives(named, three), n_evaluations=200)
    assert larger.values.shape == (200, 3)
    assert (larger.on_front == non_dominated(larger.values, ["max", "min", "min"])).all()


@pytest.mark.parametrize("seed", range(3))
def test_99_percent_of_the_front_for_15_percent_of_the_evaluations(seed):
    values = landscape(seed)
    n = int(0.15 * LAYERS.size)
    evaluate = Counted(values)
    found = search(LAYERS, Objectives(NAMED, evaluate), n_evaluations=n, seed=seed)
    assert len(evaluate.keys) == len(set(evaluate.keys)) == len(found.values) == n
    assert not found.exact
    true = np.array([values(sub) for sub in LAYERS.sub_networks()])
    assert covered(found.values, true) >= 0.99
    drawn = true[np.random.default_rng(seed).choice(len(true), n, replace=False)]
    assert covered(drawn, true) < covered(found.values, true)


@pytest.mark.parametrize("method", ["evolution", "nsga2"])
def test_a_search_repeats_with_its_seed_and_evaluates_nothing_twice(method):
    runs = []
    for seed in (1, 1, 2):
        evaluate = Counted(landscape(0))
        search(LAYERS, Objectives(NAMED, evaluate), n_evaluations=90, seed=seed, method=method)
        assert len(evaluate.keys) == len(set(evaluate.keys)) == 90
        runs.append(evaluate.keys)
    assert runs[0] == runs[1] != runs[2]


def test_what_is_known_is_not_evaluated_again():
    first = search(LAYERS, Objectives(NAMED, landscape(0)), n_evaluations=100)
    known = {s.key: tuple(v) for s, v in zip(first.sub_networks, first.values, strict=True)}
    evaluate = Counted(landscape(0))
    foreign = {"0|1|1": (99.0, 0.0)}
    again = search(LAYERS, Objectives(NAMED, evaluate, known | foreign), n_evaluations=50, seed=4)
    assert again.n_evaluations == len(evaluate.keys) == 50
    assert len(again.values) == 150
    assert not set(evaluate.keys) & set(known)
    whole = {sub.key: landscape(0)(sub) for sub in GRID.sub_networks()}
    assert search(GRID, Objectives(NAMED, Counted(None), whole), n_evaluations=1).n_evaluations == 0


@pytest.mark.parametrize("method", ["evolution", "nsga2"])
def test_a_nan_has_failed_and_misleads_nobody(method):
    def failing(sub):
        score, latency = landscape(0)(sub)
        return (np.nan, 0.0) if sub.heads[0] == 12 else (score, latency)

    found = search(LAYERS, Objectives(NAMED, failing), n_evaluations=120, method=method)
    assert len(found.values) == 120
    assert np.isnan(found.values[:, 0]).any()
    assert all(sub.heads[0] == 6 for sub, _ in found.front())
    nothing = search(
        LAYERS, Objectives(NAMED, lambda s: (np.nan, 1)), n_evaluations=99, method=method
    )
    assert nothing.front() == []


def test_a_space_that_is_used_up_ends_the_search():
    """65 are not enumerated when 64 are asked for; all that is left is found or given up."""
    space = LayerSpace(SIX, (12,), (768, 1536), (1, Fraction(1, 6)))
    assert space.size == 66
    found = search(space, Objectives(NAMED, landscape(0)), n_evaluations=65)
    assert len(found.values) <= 65


def test_workers_of_one_storage_share_a_search(tmp_path):
    path = tmp_path / "journal"
    one, two = (Counted(landscape(0)) for _ in range(2))
    for evaluate, n, seed in ((one, 70, 1), (two, 110, 2)):
        claims = Claims(path, "search", NAMED)
        objectives = Objectives(NAMED, evaluate, claims=claims)
        found = search(LAYERS, objectives, n_evaluations=n, seed=seed)
    assert len(one.keys) == 70
    assert len(two.keys) == found.n_evaluations == 40
    assert not set(one.keys) & set(two.keys)
    assert len(found.values) == 110


def test_without_optuna_only_what_needs_it_is_refused():
    program = (
        "import sys; sys.modules['optuna'] = None\n"
        "from tests.test_search import *\n"
        "assert search(LAYERS, Objectives(NAMED, landscape(0)), n_evaluations=70).values.size\n"
        "for call in (lambda: Claims('j', 's', NAMED), lambda: search(LAYERS,"
        " Objectives(NAMED, landscape(0)), n_evaluations=70, method='nsga2')):\n"
        "    with pytest.raises(UsageError, match=r\"pip install 'lmtime\\[search\\]'\"): call()\n"
    )
    root = Path(__file__).parents[1]
    done = subprocess.run([sys.executable, "-c", program], cwd=root, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize(
    "call, wanted",
    [
        (lambda: Objectives({"score": "up"}, None), "unknown direction 'up'"),
        (
            lambda: search(GRID, Objectives(NAMED, lambda s: (1,)), n_evaluations=1),
            r"1 values for 2 objectives \(score, latency_ms\)",
        ),
        (lambda: search(GRID, Objectives(NAMED, None), n_evaluations=0), "evaluate 1 sub-network"),
        (
            lambda: search(GRID, Objectives(NAMED, None), n_evaluations=1, method="luck"),
            "unknown method 'luck': choose one of evolution, nsga2",
        ),
    ],
)
def test_a_mistake_is_told(call, wanted):
    with pytest.raises(UsageError, match=wanted):
        call()
