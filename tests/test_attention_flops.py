"""Laws of attention: the pairs that are computed, those that are seen, and what is done again.

Numbers in the words of cases are those of the public mistakes they come from.
"""

import pytest
import torch
import torch.nn.functional as F
from counting import counted, flops
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.nn.attention.bias import causal_lower_right
from torch.nn.attention.flex_attention import flex_attention
from torch.utils.flop_counter import FlopCounterMode

from lmtime.timing.flops import Work, arguments, formula_of, visible_pairs

aten = torch.ops.aten


def heads(n_positions, n_heads=4, width=32, **settings):
    return torch.zeros(2, n_heads, n_positions, width, **settings)


def test_fused_attention_counts_all_pairs_and_those_that_are_seen():
    """Cases 2 and 4."""
    q = heads(64)
    full = counted(lambda: F.scaled_dot_product_attention(q, q, q)).total
    causal = counted(lambda: F.scaled_dot_product_attention(q, q, q, is_causal=True)).total
    assert full.flops == full.useful_flops == causal.flops == 4_194_304
    assert causal.useful_flops == 2_129_920 == 4 * 8 * 32 * 64 * 65 // 2


def test_attention_counts_the_same_fused_or_written_out():
    """But of the latter the mask is an operator of its own, which the count cannot see."""
    q = heads(64)
    attend = lambda: F.scaled_dot_product_attention(q, q, q, is_causal=True)  # noqa: E731
    with sdpa_kernel(SDPBackend.MATH):
        with FlopCounterMode(display=False) as torchs:
            attend()
        assert flops(attend) == torchs.get_total_flops() == 4_194_304


@pytest.mark.parametrize("causal", [False, True])
def test_backward_attention_makes_its_scores_again(causal):
    """5 products are executed against 2 forward; 4 are the model's, twice the forward."""
    q, k, v = (heads(64, requires_grad=True) for _ in "qkv")
    attend = lambda: F.scaled_dot_product_attention(q, k, v, is_causal=causal)  # noqa: E731
    forward = counted(attend).total
    both = counted(lambda: attend().sum().backward()).total
    assert both.flops == 3.5 * forward.flops
    assert both.useful_flops == 3.5 * forward.useful_flops
    assert both.model_flops == 3 * forward.flops
    assert both.recomputed_flops == forward.flops / 2


def seen(n_queries, n_keys, *, bottom_right):
    mask = torch.ones(n_queries, n_keys).tril(n_keys - n_queries if bottom_right else 0)
    return int(mask.sum())


@pytest.mark.parametrize("bottom_right", [False, True])
@pytest.mark.parametrize("n_queries, n_keys", [(5, 5), (5, 9), (9, 5), (1, 7), (7, 1), (0, 3)])
def test_a_causal_diagonal_ends_top_left_or_bottom_right(n_queries, n_keys, bottom_right):
    """Case 5: with lengths that differ the two see different pairs."""
    wanted = seen(n_queries, n_keys, bottom_right=bottom_right)
    assert visible_pairs(n_queries, n_keys, bottom_right=bottom_right) == wanted


@pytest.mark.parametrize("n_queries, n_keys", [(5, 9), (9, 5), (1, 7)])
def test_lengths_that_differ_are_counted_by_where_the_diagonal_ends(n_queries, n_keys):
    """Case 5: `is_causal` of torch is top left; a bias or a mask may say bottom right."""
    q, k = heads(n_queries), heads(n_keys)
    pair = 4 * 2 * 4 * 32
    attend = F.scaled_dot_product_attention
    top_left = counted(lambda: attend(q, k, k, is_causal=True)).total
    mask = torch.ones(n_queries, n_keys, dtype=torch.bool).tril(n_keys - n_queries)
    given = counted(lambda: attend(q, k, k, attn_mask=mask)).total
    assert top_left.flops == given.flops == pair * n_queries * n_keys
    assert top_left.useful_flops == pair * seen(n_queries, n_keys, bottom_right=False)
    assert given.useful_flops == pair * seen(n_queries, n_keys, bottom_right=True)


def test_a_bias_that_says_bottom_right_is_believed():
    q, k, bias = heads(5), heads(9), causal_lower_right(5, 9)
    found = counted(lambda: F.scaled_dot_product_attention(q, k, k, attn_mask=bias)).total
    assert found.useful_flops * 45 == found.flops * seen(5, 9, bottom_right=True)


def test_a_mask_of_padding_leaves_out_what_it_hides():
    q, mask = heads(6), torch.ones(2, 1, 1, 6, dtype=torch.bool)
    mask[0, ..., 4:] = False  # two of six keys of the first sequence
    found = counted(lambda: F.scaled_dot_product_attention(q, q, q, attn_mask=mask)).total
    assert found.useful_flops * 12 == found.flops * 10


def test_fewer_heads_of_keys_do_not_make_fewer_products():
    q, k = heads(8), heads(8, n_heads=2)
    fewer = flops(lambda: F.scaled_dot_product_attention(q, k, k, enable_gqa=True))
    assert fewer == flops(lambda: F.scaled_dot_product_attention(q, q, q)) == 4 * 8 * 64 * 32


@pytest.mark.parametrize("kind", ["flash", "efficient", "cudnn"])
def test_the_kernels_of_gpus_count_alike(kind):
    """By shapes alone, on no device."""
    q, k, v = torch.zeros(2, 4, 6, 16), torch.zeros(2, 4, 8, 16), torch.zeros(2, 4, 8, 32)
    q, k, v = (x.to("meta") for x in (q, k, v))
    kernel = getattr(aten, f"_scaled_dot_product_{kind}_attention")
    more = {"flash": ()}.get(kind, (None, False))
    found = counted(lambda: kernel(q, k, v[..., :16], *more, 0.0, True))
    assert found.total.flops == 2 * 8 * 6 * 8 * 32
    assert found.total.useful_flops == 2 * 8 * seen(6, 8, bottom_right=False) * 32


@pytest.mark.parametrize("code, aligned", [(0, None), (1, False), (2, True)])
def test_a_kernel_that_says_where_its_diagonal_ends_is_believed(code, aligned):
    q, k = torch.zeros(2, 5, 4, 16, device="meta"), torch.zeros(2, 9, 4, 16, device="meta")
    kernel = aten._efficient_attention_forward
    found = counted(lambda: kernel(q, k, k, None, None, None, None, None, 0.0, code)).total
    pairs = 45 if aligned is None else seen(5, 9, bottom_right=aligned)
    assert (found.flops, found.useful_flops) == (8 * 45 * 64, 8 * pairs * 64)


def test_sequences_laid_end_to_end_do_not_see_each_other():
    """Lengths 2 and 3, as flash attention takes them; its diagonal ends at the bottom right."""
    q, starts = torch.zeros(5, 4, 16), torch.tensor([0, 2, 5], dtype=torch.int32)
    kernel = aten._flash_attention_forward.default
    call = arguments(kernel, (q, q, q, starts, starts, 3, 3, 0.0, True, False), {})
    pair = 4 * 4 * 16
    wanted = Work(flops=pair * (4 + 9), useful_flops=pair * (3 + 6))
    assert formula_of(kernel)(call, None) == wanted
    assert formula_of(kernel)(call | {"window_size_left": 1}, None) is None  # not known


def test_attention_by_a_function_counts_all_pairs():
    q = heads(16, width=16)
    assert counted(lambda: flex_attention(q, q, q)).total.flops == 4 * 8 * 16 * 16 * 16
