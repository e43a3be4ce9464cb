"""Laws of a configuration: what it refuses, what it brings into one form, what follows from it."""

import dataclasses
from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from lmtime.config import (
    PRESETS,
    AdaptiveSoftmaxConfig,
    GCNConfig,
    configure,
    cutoffs_of_bands,
    may_be_band_sizes,
)
from lmtime.errors import UsageError

SIZES = [f.name for f in dataclasses.fields(GCNConfig) if isinstance(f.default, int)]


def adaptive(cutoffs, *, hidden_size=64, vocab_size=56, div_value=4.0):
    return AdaptiveSoftmaxConfig(hidden_size, vocab_size, cutoffs, div_value)


@pytest.mark.parametrize("value", [0, -1, True, 3.0, "8", float("nan"), 1.5])
@pytest.mark.parametrize("field", SIZES)
def test_a_size_is_a_whole_number_of_at_least_one(field, value):
    with pytest.raises(UsageError, match=f"^{field}=.* whole number of at least 1$"):
        GCNConfig(**{field: value})


def test_the_sizes_are_the_shape_options_of_the_design():
    assert {"hidden_size", "n_layers", "vocab_size", "batch_size", "seq_len"} <= set(SIZES)


@pytest.mark.parametrize("field", SIZES)
def test_an_integer_of_numpy_becomes_a_plain_one(field):
    config = GCNConfig(**{field: np.int64(getattr(GCNConfig(), field))})
    assert type(getattr(config, field)) is int
    assert config == GCNConfig()


# Cutoffs


@pytest.mark.parametrize(
    "cutoffs",
    [
        (10, 5),
        (5, 5),
        (0, 5),
        (-3, 5),
        (57,),
        (5, 57),
        (5, 56, 57),
        (5, 56, 56),
        (),
        (56,),  # the vocabulary alone leaves no tail
        (5.5, 10),
        (float("nan"),),
        (float("inf"),),
        ("5", "10"),
        (None,),
        None,
        7,
    ],
)
def test_cutoffs_that_do_not_rise_inside_the_vocabulary_are_refused(cutoffs):
    with pytest.raises(UsageError, match="whole numbers that rise and lie between 1 and 55"):
        adaptive(cutoffs)
    with pytest.raises(UsageError, match="whole numbers that rise and lie between 1 and 55"):
        GCNConfig(vocab_size=56, cutoffs=cutoffs)


@pytest.mark.parametrize(
    "cutoffs, kept",
    [
        ((1, 55), (1, 55)),  # the narrowest there is: one word, and one left over
        ([5, 10], (5, 10)),
        ((5.0, 10.0), (5, 10)),
        (np.array([5, 10]), (5, 10)),
        ((np.int32(5), np.float64(10)), (5, 10)),
        ((5, 10, 56), (5, 10)),  # the vocabulary closes fairseq's list
        ((5, 56.0), (5,)),
    ],
)
def test_cutoffs_become_plain_integers_without_the_vocabulary(cutoffs, kept):
    for config in (adaptive(cutoffs), GCNConfig(vocab_size=56, cutoffs=cutoffs)):
        assert config.cutoffs == kept
        assert all(type(cutoff) is int for cutoff in config.cutoffs)


def test_the_full_softmax_does_not_look_at_cutoffs():
    config = GCNConfig(output_layer="full", vocab_size=50, cutoffs=(10, 5))
    assert config.cutoffs == (10, 5)
    with pytest.raises(UsageError, match="cutoffs 10,5 do not fit a vocabulary of 50 words"):
        GCNConfig(output_layer="adaptive", vocab_size=50, cutoffs=(10, 5))


@st.composite
def partitions(draw):
    vocab_size = draw(st.integers(2, 500))
    inside = st.integers(1, vocab_size - 1)
    cutoffs = draw(st.sets(inside, min_size=1, max_size=6))
    return vocab_size, tuple(sorted(cutoffs))


@given(partitions())
def test_the_short_list_and_the_tails_are_the_vocabulary(partition):
    vocab_size, cutoffs = partition
    config = adaptive(cutoffs, vocab_size=vocab_size, hidden_size=4**6)
    assert cutoffs[0] + sum(config.tail_sizes) == vocab_size
    assert min(config.tail_sizes) >= 1
    assert config.head_size == cutoffs[0] + len(config.tail_sizes)
    assert config.tail_dims == tuple(4 ** (6 - i) for i in range(1, len(cutoffs) + 1))


# Width of the tails


@pytest.mark.parametrize("div_value", [0, 0.0, -1, -4.0, 1e-3, 1e200, float("nan"), float("inf")])
def test_div_value_is_a_positive_number_of_which_powers_exist(div_value):
    with pytest.raises(UsageError, match=r"div_value=.* must lie between"):
        adaptive((5, 10), div_value=div_value)


def test_a_tail_of_no_width_is_refused():
    with pytest.raises(UsageError, match="leaves tail cluster 2 none of the 8 hidden dimensions"):
        AdaptiveSoftmaxConfig(8, 20, (5, 10), 4.0)
    assert AdaptiveSoftmaxConfig(16, 20, (5, 10), 4.0).tail_dims == (4, 1)


def test_widths_and_ranks_give_the_shape_that_they_say():
    shape = AdaptiveSoftmaxConfig(64, 20, (5, 10))
    assert (shape.input_size, shape.head_dim, shape.tail_dims) == (64, 64, (16, 4))
    assert shape.tail_projects == (True, True) and shape.is_torchs
    assert AdaptiveSoftmaxConfig(64, 20, (5, 10), 1.0).tail_projects == (True, True)
    shape = AdaptiveSoftmaxConfig(64, 20, (5, 10), head_rank=8, tail_widths=[64, 1])
    assert (shape.input_size, shape.head_dim, shape.tail_dims) == (64, 8, (64, 1))
    assert shape.tail_projects == (False, True) and not shape.is_torchs
    shape = AdaptiveSoftmaxConfig(64, 20, (5, 10), shared_rank=16)
    assert (shape.input_size, shape.head_dim, shape.tail_dims) == (16, 16, (4, 1))
    assert hash(AdaptiveSoftmaxConfig(64, 20, (5,), tail_widths=[3])), "frozen, also in its parts"


@pytest.mark.parametrize("widths", [(0, 4), (4,), (4, 2, 1), (4, -1), (4, 2.5), (4, True), ()])
def test_widths_of_tails_are_whole_and_one_a_tail(widths):
    """Case 13: a cluster of no width is uniform for ever."""
    with pytest.raises(UsageError, match=r"tail_widths .* must be 2 whole numbers of at least 1"):
        AdaptiveSoftmaxConfig(8, 20, (5, 10), tail_widths=widths)


@pytest.mark.parametrize("name", ["head_rank", "shared_rank"])
@pytest.mark.parametrize("rank", [0, -1, 8, 9, 2.0])
def test_a_rank_is_below_the_width_that_it_reduces(name, rank):
    with pytest.raises(UsageError, match=f"{name}=.* must be"):
        AdaptiveSoftmaxConfig(8, 20, (5,), **{name: rank})
    with pytest.raises(UsageError, match="head_rank=4 must be below the 4 dimensions"):
        AdaptiveSoftmaxConfig(8, 20, (5,), head_rank=4, shared_rank=4)


def test_a_tail_of_no_width_is_seen_in_the_final_hidden_size():
    with pytest.raises(UsageError, match="none of the 8 hidden dimensions"):
        GCNConfig(hidden_size=64, final_hidden_size=8)


def test_a_div_value_below_one_widens_the_tails():
    assert adaptive((5, 10), hidden_size=8, div_value=0.25).tail_dims == (32, 128)


def test_widths_are_rounded_down_as_torch_does():
    assert adaptive((5, 10), hidden_size=37, div_value=3).tail_dims == (12, 4)


def test_div_value_is_a_float_whatever_was_given():
    assert type(GCNConfig(div_value=2).div_value) is float


# Presets


def test_unknown_names_show_the_choices():
    with pytest.raises(UsageError, match=r"^unknown model 'gnc': choose one of gcn, gcn-1024, tr"):
        configure("gnc")
    with pytest.raises(UsageError, match=r"output layer 'fulll': choose one of adaptive, fused-a"):
        configure("gcn", output_layer="fulll")


@pytest.mark.parametrize("model", PRESETS)
def test_no_option_or_none_is_the_preset(model):
    assert configure(model) == PRESETS[model]
    assert configure(model, hidden_size=None, cutoffs=None, output_layer=None) == PRESETS[model]


def test_a_hidden_size_moves_the_final_one_unless_that_is_given():
    assert configure("gcn", hidden_size=96).final_hidden_size == 96
    both = configure("gcn", hidden_size=96, final_hidden_size=80)
    assert (both.hidden_size, both.final_hidden_size, both.widens) == (96, 80, True)
    alone = configure("gcn", final_hidden_size=80)
    assert (alone.hidden_size, alone.final_hidden_size) == (PRESETS["gcn"].hidden_size, 80)


def test_a_configuration_never_changes():
    with pytest.raises(dataclasses.FrozenInstanceError):
        GCNConfig().hidden_size = 1


def test_tokens_of_a_step():
    assert GCNConfig(batch_size=7, seq_len=13).n_tokens == 91


# Bands and cutoffs


def test_bands_of_the_paper_are_the_cutoffs_of_the_preset():
    """A paper gives sizes, 60K, 100K and the rest; a flag takes what they add up to."""
    config = PRESETS["transformer-gbw-1536"]
    assert cutoffs_of_bands((60_000, 100_000, 633_471)) == (config.cutoffs, config.vocab_size)
    assert config.adaptive.tail_sizes == (100_000, 633_471)
    assert config.adaptive.head_size == 60_002
    assert config.adaptive.tail_dims == (384, 96)


@given(st.lists(st.integers(1, 10**6), min_size=2, max_size=5))
def test_cutoffs_of_bands_give_the_bands_back(sizes):
    cutoffs, vocab_size = cutoffs_of_bands(sizes)
    edges = (0, *cutoffs, vocab_size)
    assert [high - low for low, high in pairwise(edges)] == sizes


@pytest.mark.parametrize("sizes", [(), (5,), (5, 0), (5, -1, 3)])
def test_bands_that_are_none_are_refused(sizes):
    with pytest.raises(UsageError, match="two or more, each at least 1"):
        cutoffs_of_bands(sizes)


def test_cutoffs_that_add_up_to_the_vocabulary_may_be_bands():
    """fairseq #822: 60000,100000,640000 were given as cutoffs, and made another model."""
    assert may_be_band_sizes((60_000, 100_000, 640_000), 793_471)
    for config in PRESETS.values():
        assert not may_be_band_sizes(getattr(config, "cutoffs", ()), config.vocab_size)


# The Transformer


def test_the_small_preset_is_a_quarter_of_the_large_one():
    small, large = (PRESETS[f"transformer-gbw{end}"] for end in ("", "-1536"))
    assert small.n_layers == large.n_layers == 24
    for name in ("hidden_size", "ffn_size", "vocab_size"):
        assert getattr(large, name) == pytest.approx(4 * getattr(small, name), rel=1e-4)
    assert tuple(4 * c for c in small.cutoffs) == large.cutoffs


def test_heads_divide_the_width():
    with pytest.raises(UsageError, match="hidden_size=100 does not divide into n_heads=6"):
        configure("transformer-gbw", hidden_size=100)


def test_only_an_adaptive_output_layer_shares_words_with_the_input():
    assert PRESETS["transformer-gbw"].ties_words
    assert not configure("transformer-gbw", output_layer="full").ties_words


def test_a_field_that_a_model_does_not_have_is_refused():
    with pytest.raises(UsageError, match=r"^transformer-gbw has no kernel_size: choose hidd"):
        configure("transformer-gbw", kernel_size=3)
    with pytest.raises(UsageError, match=r"^gcn has no n_heads"):
        configure("gcn", n_heads=3)
