"""Laws of search spaces: exact sizes, each sub-network once, suggestions that are canonical."""

from fractions import Fraction

import numpy as np
import pytest

from lmtime.config.encoder import (
    DEPTHS,
    ENCODERS,
    WIDTHS,
    EncoderConfig,
    SubNetwork,
    sub_network,
    whole_network,
)
from lmtime.errors import UsageError
from lmtime.pareto.space import GridSpace, LayerSpace, from_key

BERT, MINILM = ENCODERS["bert-base"], ENCODERS["minilm-l6"]
SMALL = EncoderConfig(hidden_size=32, head_size=8, heads=(4,) * 3, ffn_sizes=(64,) * 3)


def layer_space(**options):
    given = dict(heads=(2, 4), ffn_sizes=(32, 64), depths=(1, Fraction(2, 3)))
    return LayerSpace(SMALL, **given | options)


def rng():
    return np.random.default_rng(5)


class Fixed:
    """A trial that suggests what it was told to, and remembers what it was asked."""

    def __init__(self, answers):
        self.answers, self.asked = answers, []

    def suggest_categorical(self, name, choices):
        assert len(choices) == len(set(choices))
        self.asked.append(name)
        assert self.answers[name] in choices
        return self.answers[name]


def answers(space, sub):
    """What a trial answers so that it suggests a sub-network."""
    depths = sorted({other.layers for other in space.sub_networks()}, key=len, reverse=True)
    found = {"depth": depths.index(sub.layers)}
    for i, heads, ffn_size in zip(sub.layers, sub.heads, sub.ffn_sizes, strict=True):
        found |= {f"heads {i}": heads, f"FFN {i}": ffn_size}
    return found


@pytest.mark.parametrize("network, size", [("bert-base", 12), ("minilm-l6", 16)])
def test_a_grid_holds_each_width_with_each_depth(network, size):
    full = ENCODERS[network]
    space = GridSpace(full, WIDTHS, DEPTHS[network])
    keys = [sub.key for sub in space.sub_networks()]
    assert space.size == len(keys) == len(set(keys)) == size
    assert whole_network(full).key in keys
    assert all(
        sub_network(full, width, depth).key in keys for width in WIDTHS for depth in DEPTHS[network]
    )


def test_multipliers_that_leave_the_same_layers_and_widths_are_one_point():
    """Of six layers, 3/4 and 2/3 keep four, but not the same four."""
    space = GridSpace(SMALL, (1, 1.0, Fraction(1, 2)), (1, 1.0, 0.99))
    assert space.size == len(list(space.sub_networks())) == 2
    assert layer_space(depths=(1, 1.0, 0.99)).size == layer_space(depths=(1,)).size
    assert GridSpace(MINILM, (1,), (Fraction(3, 4), Fraction(2, 3))).size == 2


def test_the_size_of_a_space_by_layers_is_exact():
    space = layer_space()
    assert space.size == 4**3 + 4**2
    keys = [sub.key for sub in space.sub_networks()]
    assert len(keys) == len(set(keys)) == space.size
    assert all(map(space.contains, space.sub_networks()))


def test_bert_base_by_layers_has_more_than_ten_to_the_fourteen():
    space = LayerSpace(BERT, (3, 6, 9, 12), (768, 1536, 2304, 3072), DEPTHS["bert-base"])
    assert space.size == 16**12 + 16**9 + 16**6 == 281_543_712_964_608
    assert next(space.sub_networks()).layers == tuple(range(12))  # lazily


def test_the_order_and_repeats_of_choices_do_not_matter():
    one, other = layer_space(), layer_space(heads=[4, 2, 4], ffn_sizes=np.array([64, 32]))
    assert [s.key for s in one.sub_networks()] == [s.key for s in other.sub_networks()]
    assert {type(width) for s in other.sub_networks() for width in s.ffn_sizes} == {int}


@pytest.mark.parametrize(
    "space", [layer_space(), GridSpace(SMALL, WIDTHS, (1, Fraction(2, 3)))], ids=["layers", "grid"]
)
def test_random_sub_networks_are_of_the_space_and_reach_all_of_it(space):
    draws = rng()
    met = {sub.key for sub in (space.random(draws) for _ in range(1500))}
    assert met == {sub.key for sub in space.sub_networks()}


def test_what_is_alike_in_all_layers_runs_from_the_smallest_to_the_largest():
    alike = list(layer_space().uniform())
    assert len(alike) == 2 * 4
    assert all(len(set(s.heads)) == len(set(s.ffn_sizes)) == 1 for s in alike)
    assert SubNetwork((0, 1, 2), (4,) * 3, (64,) * 3) in alike
    assert SubNetwork((0, 1), (2, 2), (32, 32)) in alike


def test_a_trial_is_not_asked_about_layers_that_are_dropped():
    space = layer_space()
    sub = SubNetwork((0, 1), (2, 4), (64, 32))
    trial = Fixed(answers(space, sub) | {"heads 2": 2, "FFN 2": 32})
    assert space.ask(trial) == sub
    assert sorted(trial.asked) == ["FFN 0", "FFN 1", "depth", "heads 0", "heads 1"]


def test_a_trial_suggests_every_sub_network():
    space = layer_space()
    for sub in space.sub_networks():
        assert space.ask(Fixed(answers(space, sub))) == sub
    grid = GridSpace(SMALL, WIDTHS, (1,))
    for sub in grid.sub_networks():
        assert grid.ask(Fixed({"sub-network": sub.key})) == sub


def test_a_space_knows_what_is_not_in_it():
    space, grid = layer_space(), GridSpace(SMALL, (1, Fraction(1, 2)), (1,))
    assert not space.contains(SubNetwork((0, 2), (2, 2), (32, 32)))  # other layers
    assert not space.contains(SubNetwork((0, 1), (2, 3), (32, 32)))
    assert not space.contains(SubNetwork((0, 1), (2, 2), (32, 48)))
    assert grid.contains(whole_network(SMALL))
    assert not grid.contains(SubNetwork((0, 1, 2), (4, 4, 2), (64, 64, 64)))


def test_a_neighbour_differs_in_one_width_by_one_step_or_in_depth():
    space = layer_space(heads=(1, 2, 3, 4), ffn_sizes=(16, 32, 64))
    draws, seen = rng(), set()
    start = SubNetwork((0, 1, 2), (1, 2, 4), (64, 16, 32))
    for _ in range(400):
        near = space.mutated(start, draws)
        assert space.contains(near)
        seen.add(near.key)
        if near.layers == start.layers:
            steps = [
                abs(choices.index(a) - choices.index(b))
                for name, choices in (("heads", space.heads), ("ffn_sizes", space.ffn_sizes))
                for a, b in zip(getattr(start, name), getattr(near, name), strict=True)
            ]
            assert sum(steps) == 1
        else:
            assert near == SubNetwork((0, 1), (1, 2), (64, 16))
    assert len(seen) == (1 + 2 + 1) + (1 + 1 + 2) + 1  # all neighbours


def test_a_layer_that_comes_back_is_as_wide_as_the_nearest():
    space = layer_space()
    shallow = SubNetwork((0, 1), (2, 4), (64, 32))
    draws = rng()
    deeper = {near for near in (space.mutated(shallow, draws) for _ in range(80))
              if near.layers == (0, 1, 2)}  # fmt: skip
    assert deeper == {SubNetwork((0, 1, 2), (2, 4, 4), (64, 32, 32))}


def test_a_space_of_one_has_itself_for_a_neighbour():
    space = layer_space(heads=(4,), ffn_sizes=(64,), depths=(1,))
    assert space.size == 1
    assert space.mutated(whole_network(SMALL), rng()) == whole_network(SMALL)


def test_a_child_has_the_layers_of_one_and_widths_of_both():
    space, draws = layer_space(), rng()
    one, other = SubNetwork((0, 1, 2), (2, 2, 2), (32,) * 3), SubNetwork((0, 1), (4, 4), (64, 64))
    children = {space.crossed(one, other, draws) for _ in range(200)}
    assert len(children) == 2**4  # of two shared layers
    assert all(c.layers == one.layers and c.heads[2] == 2 for c in children)
    assert {space.crossed(other, one, draws).layers for _ in range(9)} == {other.layers}


def test_a_key_says_which_sub_network_it_is():
    assert all(from_key(sub.key) == sub for sub in layer_space().sub_networks())


@pytest.mark.parametrize(
    "call, wanted",
    [
        (lambda: layer_space(heads=(2, 5)), r"heads \[2, 5\] must be between 1 and 4"),
        (lambda: layer_space(ffn_sizes=(0,)), "must be between 1 and 64"),
        (lambda: layer_space(heads=()), "must be between 1 and 4"),
        (lambda: layer_space(depths=()), "needs one depth at least"),
        (lambda: layer_space(depths=(1.5,)), "at most 1"),
        (lambda: GridSpace(SMALL, (), (1,)), "one width and one depth"),
        (lambda: GridSpace(SMALL, (1,), (1,), rule="first"), "unknown rule 'first'"),
    ],
)
def test_a_mistake_is_told(call, wanted):
    with pytest.raises(UsageError, match=wanted):
        call()
