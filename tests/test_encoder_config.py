"""Sub-networks of encoders: which layers, heads and neurons stay, and what is left of the work."""

import dataclasses
from fractions import Fraction

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lmtime.config import (
    DEPTHS,
    ENCODERS,
    WIDTHS,
    EncoderConfig,
    SubNetwork,
    find_encoder,
    kept_layers,
    name_of,
    sub_network,
    whole_network,
)
from lmtime.config.encoder import as_part
from lmtime.errors import UsageError

BERT = ENCODERS["bert-base"]


@pytest.mark.parametrize(
    ("n_layers", "depth", "kept"),
    [
        (12, 0.75, (0, 1, 2, 4, 5, 6, 8, 9, 10)),
        (12, 0.5, (0, 2, 4, 6, 8, 10)),
        (6, 0.75, (0, 1, 2, 4)),
        (6, 0.5, (0, 2, 4)),
    ],
)
def test_layers_that_dynaberts_code_keeps(n_layers, depth, kept):
    assert kept_layers(n_layers, depth) == kept


def test_the_papers_rule_parts_from_the_code_where_layers_do_not_divide():
    assert kept_layers(6, 0.75, "paper") == (0, 1, 2, 4, 5)
    for depth in DEPTHS["bert-base"]:
        assert kept_layers(12, depth, "paper") == kept_layers(12, depth)


def test_half_a_head_is_rounded_to_the_even_number_and_one_stays():
    for n_heads, kept in ((5, 2), (7, 4), (1, 1), (12, 6)):
        config = EncoderConfig(heads=(n_heads,), ffn_sizes=(8,))
        assert sub_network(config, 0.5, 1).heads == (kept,)


def test_parts_are_exact():
    assert as_part("width", Fraction(1, 32)) == Fraction(1, 32)
    assert as_part("width", 0.98) == Fraction(49, 50)
    assert as_part("depth", 1 / 3) == Fraction(1, 3)


def test_six_layers_are_cut_one_by_one():
    assert [len(kept_layers(6, depth)) for depth in DEPTHS["minilm-l6"]] == [6, 5, 4, 3]
    assert kept_layers(6, 0.8333) == kept_layers(6, Fraction(5, 6)) == (0, 1, 2, 3, 4)


@given(n_layers=st.integers(1, 48), depth=st.fractions(Fraction(1, 24), 1, max_denominator=24))
def test_kept_layers_ascend_within_the_network(n_layers, depth):
    kept = kept_layers(n_layers, depth)
    assert list(kept) == sorted(set(kept))
    assert 0 <= kept[0] <= kept[-1] < n_layers


def test_parameters_of_dynaberts_sub_networks():
    """DynaBERT's four corners, and the 109,485,316 with four classes of its fork's table."""
    expected = {
        (1, 1): 85_054_464,
        (0.5, 1): 42_554_880,
        (1, 0.5): 42_527_232,
        (0.25, 0.5): 10_652_544,
    }
    for (width, depth), parameters in expected.items():
        assert sub_network(BERT, width, depth).config(BERT).encoder_parameters == parameters
    assert BERT.parameters == 109_482_240
    assert BERT.parameters + 4 * (BERT.hidden_size + 1) == 109_485_316


def test_distilbert_has_its_published_size():
    """66,362,880 is the sum over the tensors of distilbert-base-uncased without its head."""
    assert ENCODERS["distilbert"].parameters == 66_362_880


def test_flops_tie_where_width_times_depth_is_equal():
    """22.35 GFLOP for 128 tokens: 85 million weights and the attention, twice."""
    flops = BERT.flops(1, 128)
    assert flops == 12 * 2 * 128 * (4 * 768 * 768 + 2 * 768 * 3072 + 2 * 128 * 768)
    for a, b in (((1, 0.75), (0.75, 1)), ((0.75, 0.5), (0.5, 0.75)), ((0.5, 0.5), (0.25, 1))):
        left, right = (sub_network(BERT, *pair).config(BERT).flops(1, 128) for pair in (a, b))
        assert left == right == flops * a[0] * a[1]


def test_names_and_keys():
    sub = sub_network(ENCODERS["minilm-l6"], 0.5, 0.5)
    assert name_of(0.75, 5 / 6) == "w3/4 d5/6"
    assert sub.key == "0,2,4|6,6,6|768,768,768"
    assert whole_network(BERT) == sub_network(BERT, 1, 1)


@given(st.sampled_from(WIDTHS), st.sampled_from(DEPTHS["minilm-l6"]))
def test_a_name_tells_the_parts(width, depth):
    w, d = name_of(width, depth).split(" ")
    assert (as_part("width", Fraction(w[1:])), as_part("depth", Fraction(d[1:]))) == (width, depth)


@pytest.mark.parametrize(
    ("make", "says"),
    [
        (lambda: EncoderConfig(heads=(12,) * 3), "one entry for each layer"),
        (lambda: EncoderConfig(heads=(0,) * 12), "drop it whole"),
        (lambda: EncoderConfig(hidden_size=0), "hidden_size=0"),
        (lambda: SubNetwork((0, 0), (1, 1), (1, 1)), "must ascend"),
        (lambda: SubNetwork((0,), (1, 1), (1,)), "one entry for each layer"),
        (lambda: SubNetwork((0,), (0,), (1,)), "keeps nothing"),
        (lambda: SubNetwork((12,), (1,), (1,)).config(BERT), "no layer 12"),
        (lambda: SubNetwork((0,), (13,), (1,)).config(BERT), "more than can be kept"),
        (lambda: sub_network(BERT, 0, 1), "width=0"),
        (lambda: sub_network(BERT, float("nan"), 1), "width=nan"),
        (lambda: sub_network(BERT, 1, 1.5), "depth=1.5"),
        (lambda: kept_layers(6, 1, "mine"), "dynabert, paper"),
        (lambda: kept_layers(12, 0.25, "paper"), "one layer of two at most"),
        (lambda: as_part("width", float("inf")), "width=inf"),
        (lambda: EncoderConfig(n_token_types=-1), "n_token_types=-1"),
        (lambda: find_encoder("bert-huge"), "bert-base, distilbert, minilm-l6"),
    ],
)
def test_what_no_encoder_can_be_is_refused(make, says):
    with pytest.raises(UsageError, match=says):
        make()


def test_a_cut_network_keeps_all_but_its_layers():
    small = sub_network(BERT, 0.25, 0.5).config(BERT)
    assert (small.heads, small.ffn_sizes) == ((3,) * 6, (768,) * 6)
    assert dataclasses.replace(small, heads=BERT.heads, ffn_sizes=BERT.ffn_sizes) == BERT
