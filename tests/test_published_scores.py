"""Published scores: each is one that its development set can give, and their noise is told."""

import math
from fractions import Fraction

import numpy as np
import pytest

from lmtime.encoders.published_scores import ACCEPTABLE, BACKBONES, TASKS, baseline, dynabert
from lmtime.errors import UsageError
from lmtime.metrics import matthews, spearman
from lmtime.pareto.dominance import non_dominated
from lmtime.pareto.uncertainty import Objective, front_membership

each_task = pytest.mark.parametrize("task", TASKS)


def sizes(score):
    return float(score.width), float(score.depth)


def front(task, cost):
    scores = dynabert(task)
    points = [(cost(*sizes(score)), score.score) for score in scores]
    kept = non_dominated(points, ["min", "max"])
    return {sizes(score) for score, on in zip(scores, kept, strict=True) if on}


def work(width, depth):
    """FLOPs of the layers are proportional to it."""
    return width * depth


@each_task
def test_there_are_twelve_of_each_task_and_a_baseline(task):
    found = dynabert(task)
    widths, depths = (Fraction(1), Fraction(3, 4), Fraction(1, 2)), (Fraction(1, 4),)
    expected = [(w, d) for w in widths + depths for d in widths]
    assert [(s.width, s.depth) for s in found] == expected
    assert {s.n_examples for s in found} == {TASKS[task][1]}
    assert found[0].score - 3 < baseline(task).score < found[0].score + 3
    assert (found[-1].n_heads, found[-1].ffn_size, found[-1].n_layers) == (3, 768, 6)
    assert (found[4].n_heads, found[4].ffn_size, found[4].n_layers) == (9, 2304, 9)


@each_task
@pytest.mark.parametrize("backbone", BACKBONES)
def test_an_accuracy_is_one_that_so_many_examples_can_give(task, backbone):
    """Read from a picture: of a few hundred examples, most wrong digits would be no share."""
    for published in [*dynabert(task, backbone=backbone), baseline(task, backbone=backbone)]:
        if published.metric == "accuracy":
            n_right = round(published.score / 100 * published.n_examples)
            given = 100 * n_right / published.n_examples
            assert abs(given - published.score) <= 0.05 + 1e-9


def test_what_was_misprinted_is_left_out():
    assert len(dynabert("cola", backbone="roberta-base")) == 11


def test_scores_that_another_paper_quotes_are_the_same():
    """NAS-BERT's table, "DynaBERT 60M", is our (1/2, 3/4)."""
    quoted = {"mnli": 84.2, "qqp": 91.2, "qnli": 91.5, "cola": 56.8, "sst2": 92.7, "stsb": 89.2}
    quoted |= {"rte": 72.2, "mrpc": 84.1}
    for task, score in quoted.items():
        (same,) = (s for s in dynabert(task) if sizes(s) == (0.5, 0.75))
        assert same.score == score


# Fronts


def test_ties_in_both_objectives_stay_on_the_front():
    assert front("qqp", work) == {
        (1.0, 0.75), (0.75, 1.0), (0.75, 0.5), (0.5, 1.0), (0.5, 0.75), (0.25, 0.75), (0.25, 0.5),
    }  # fmt: skip


def test_another_cost_is_another_front():
    assert front("cola", work) == {
        (0.75, 1.0), (0.75, 0.75), (0.5, 1.0), (0.5, 0.75), (0.25, 0.75), (0.25, 0.5),
    }  # fmt: skip
    depth_only = front("cola", lambda width, depth: depth)
    assert depth_only == {(0.75, 1.0), (0.75, 0.75), (1.0, 0.5)}


@pytest.mark.parametrize("task", ["stsb", "mnli"])
def test_where_only_depth_costs_the_widest_are_best(task):
    assert {width for width, _ in front(task, lambda width, depth: depth)} == {1.0}


def test_with_277_examples_the_front_of_rte_is_in_doubt():
    scores = dynabert("rte")
    costs = Objective("min", [[work(*sizes(s))] for s in scores])
    points = Objective("max", [s.samples() for s in scores], statistic="mean")
    found = front_membership([costs, points], np.random.default_rng(3), n_resamples=300)
    smallest = [sizes(s) for s in scores].index((0.25, 0.5))
    assert found.probability[smallest] == 1, "nothing costs less"
    doubted = found.probability[found.on_front & (np.arange(12) != smallest)]
    assert (doubted < 0.97).all()
    assert doubted.min() < 0.8


# Noise


def test_one_example_of_rte_and_the_standard_error_are_points_apart():
    best = max(dynabert("rte"), key=lambda s: s.score)
    assert best.score == 73.3
    assert best.standard_error == pytest.approx(2.7, abs=0.05)
    assert dynabert("qqp")[0].standard_error == pytest.approx(0.14, abs=0.005)


@each_task
def test_samples_have_the_score_for_a_mean_and_are_as_noisy_as_it(task):
    for published in dynabert(task):
        samples = np.array(published.samples())
        assert len(samples) == published.n_examples
        step = 50 / published.n_examples if published.metric == "accuracy" else 1e-9
        assert abs(samples.mean() - published.score) <= step + 1e-9
        noise = samples.std() / math.sqrt(len(samples))
        assert noise == pytest.approx(published.standard_error, rel=0.005)


def test_the_error_of_a_matthews_correlation_is_that_of_drawn_sets():
    published = dynabert("cola")[3]
    rng = np.random.default_rng(5)
    shape = (4000, published.n_examples)
    labels = rng.random(shape) < ACCEPTABLE
    copied = rng.random(shape) < published.score / 100  # else drawn anew: the same shares
    predicted = np.where(copied, labels, rng.random(shape) < ACCEPTABLE)
    drawn = matthews(labels, predicted)
    assert drawn.mean() == pytest.approx(published.score, abs=0.3)
    assert drawn.std() == pytest.approx(published.standard_error, rel=0.05)


def test_the_error_of_a_spearman_correlation_is_that_of_drawn_sets():
    published = dynabert("stsb")[0]
    rng = np.random.default_rng(5)
    r = 2 * math.sin(math.pi / 6 * published.score / 100)  # of normal values with these ranks
    first, other = rng.standard_normal((2, 2000, published.n_examples))
    drawn = 100 * spearman(first, r * first + math.sqrt(1 - r**2) * other)
    assert drawn.mean() == pytest.approx(published.score, abs=0.1)
    assert drawn.std() == pytest.approx(published.standard_error, rel=0.15)


@pytest.mark.parametrize(
    "call, wanted",
    [
        (lambda: dynabert("wnli"), "unknown task 'wnli': choose one of mnli, mnli-mm"),
        (lambda: baseline("rte", backbone="bert"), "unknown backbone 'bert': choose one of bert-b"),
    ],
)
def test_a_mistake_is_told(call, wanted):
    with pytest.raises(UsageError, match=wanted):
        call()
