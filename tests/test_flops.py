"""Laws of FLOPs: products and convolutions, executed and useful, to the last digit.

Numbers in the words of cases are those of the public mistakes they come from.
"""

import pytest
import torch
import torch.nn.functional as F
from counting import counted, flops
from torch import nn

# Products

A, B, C, SQUARE = torch.zeros(3, 5), torch.zeros(5, 7), torch.zeros(3, 7), torch.zeros(5, 5)
MANY_A, MANY_B, X, Y = torch.zeros(4, 3, 5), torch.zeros(4, 5, 7), torch.zeros(5), torch.zeros(5)
PRODUCTS = {
    "mm": (lambda: A @ B, 2 * 3 * 5 * 7),
    "mm, into": (lambda: torch.mm(A, B, out=torch.empty(3, 7)), 2 * 3 * 5 * 7),
    "addmm": (lambda: torch.addmm(C, A, B), 2 * 3 * 5 * 7),
    "addmm_": (lambda: C.clone().addmm_(A, B, beta=0.5, alpha=2), 2 * 3 * 5 * 7),
    "bmm": (lambda: MANY_A @ MANY_B, 4 * 2 * 3 * 5 * 7),
    "broadcast": (lambda: MANY_A @ B, 4 * 2 * 3 * 5 * 7),
    "baddbmm": (lambda: torch.baddbmm(C, MANY_A, MANY_B), 4 * 2 * 3 * 5 * 7),
    "baddbmm_": (lambda: torch.zeros(4, 3, 7).baddbmm_(MANY_A, MANY_B), 4 * 2 * 3 * 5 * 7),
    "addbmm": (lambda: torch.addbmm(C, MANY_A, MANY_B), 4 * 2 * 3 * 5 * 7),
    "mv": (lambda: A @ X, 2 * 3 * 5),
    "vm": (lambda: X @ B, 2 * 5 * 7),
    "addmv": (lambda: torch.addmv(Y, SQUARE, X), 2 * 5 * 5),
    "addmv_": (lambda: torch.zeros(5).addmv_(SQUARE, X), 2 * 5 * 5),
    "dot": (lambda: X @ Y, 2 * 5),
    "vdot": (lambda: torch.vdot(X, Y), 2 * 5),
    "inner": (lambda: torch.inner(A, B.T), 2 * 3 * 5 * 7),
    "tensordot": (lambda: torch.tensordot(A, A, 2), 2 * 15),
    "einsum": (lambda: torch.einsum("bik,bkj->ij", MANY_A, MANY_B), 4 * 2 * 3 * 5 * 7),
    "whole numbers": (lambda: A.long() @ B.long(), 2 * 3 * 5 * 7),
    "8 bits": (lambda: torch._int_mm(torch.ones(32, 16).char(), torch.ones(16, 8).char()), 8192),
    "16 bits": (lambda: A.bfloat16() @ B.bfloat16(), 2 * 3 * 5 * 7),
    "outer: sums nothing": (lambda: torch.outer(X, Y), 0),
    "addr: sums nothing": (lambda: torch.addr(SQUARE, X, Y), 0),
}


@pytest.mark.parametrize("name", PRODUCTS)
def test_a_product_is_two_flops_for_each_multiply_add(name):
    call, wanted = PRODUCTS[name]
    assert flops(call) == wanted


WIDE, TALL = torch.zeros(8, 16).bfloat16(), torch.zeros(16, 24).bfloat16()
ENDS = torch.tensor([3, 8], dtype=torch.int32)
GROUPED = {  # 8 rows, or 8 columns, of two experts
    "rows": (WIDE, torch.zeros(2, 16, 24).bfloat16(), 2 * 8 * 16 * 24),
    "columns": (torch.zeros(2, 24, 16).bfloat16(), WIDE.T, 2 * 24 * 16 * 8),
    "inner": (TALL.T[:, :8], WIDE, 2 * 24 * 8 * 16),
}


@pytest.mark.parametrize("name", GROUPED)
def test_a_product_of_groups_counts_each_row_with_its_own_group(name):
    left, right, wanted = GROUPED[name]
    assert flops(lambda: torch._grouped_mm(left, right, offs=ENDS)) == wanted


@pytest.mark.parametrize("leading", [(), (1,), (6,), (2, 3), (2, 3, 4), (0,)])
def test_a_linear_layer_counts_each_of_its_rows(leading):
    """Case 8: whatever the dimensions before the last."""
    layer, x = nn.Linear(5, 7), torch.zeros(*leading, 5)
    assert flops(lambda: layer(x)) == 2 * 5 * 7 * torch.Size(leading).numel()


def test_a_module_is_counted_each_time_it_is_called():
    """Case 8: on input with three dimensions."""
    layer, x = nn.Linear(128, 128, bias=False), torch.zeros(2, 64, 128)
    found = counted(lambda: layer(layer(layer(x))), layer, {"": "linear"})
    assert found.by_owner["linear", "forward"].flops == found.total.flops == 12_582_912


def test_a_multiply_add_is_two_flops():
    """Case 9."""
    model = nn.Sequential(nn.Linear(784, 512), nn.Linear(512, 512), nn.Linear(512, 10))
    products = 784 * 512 + 512 * 512 + 512 * 10
    assert flops(lambda: model(torch.zeros(1, 784))) == 2 * products


# Convolutions


def test_a_convolution_over_time_first_counts_every_position_and_tap():
    """Case 1: 2 x 2 x 67 x 128 x 256 x 4, of which 3 of 67 positions a tap meet padding.

    Training by the shapes is thrice that, 105,381,888; executed are less, because torch composes
    the two gradients of products over the 64 positions that hold data.
    """
    x = torch.zeros(64, 2, 128, requires_grad=True)
    weight, bias = torch.zeros(4, 128, 256, requires_grad=True), torch.zeros(256)
    forward = counted(lambda: torch.conv_tbc(x, weight, bias, pad=3)).total
    assert (forward.flops, forward.useful_flops) == (35_127_296, 33_554_432)
    assert 3 * forward.flops == 105_381_888
    both = counted(lambda: torch.conv_tbc(x, weight, bias, pad=3).sum().backward()).total
    assert both.flops == 35_127_296 + 2 * 33_554_432
    assert both.useful_flops == 3 * 33_554_432


CONVOLUTIONS = {  # input, weight, settings
    "1-D": ((2, 4, 11), (6, 4, 3), {}),
    "causal": ((2, 4, 11), (6, 4, 3), dict(padding=2)),
    "more padding than taps": ((1, 2, 3), (2, 2, 2), dict(padding=5)),
    "strides that leave a rest": ((2, 4, 12), (6, 4, 3), dict(stride=2, padding=1)),
    "dilated": ((2, 4, 13), (6, 4, 3), dict(dilation=3, padding=3)),
    "groups": ((2, 4, 11), (6, 2, 3), dict(groups=2, padding=1)),
    "depthwise": ((2, 4, 11), (4, 1, 3), dict(groups=4, padding=2)),
    "2-D": ((2, 4, 7, 9), (6, 4, 3, 2), dict(stride=(2, 1), padding=(1, 0), dilation=(1, 2))),
    "2-D, dilated strides": ((2, 3, 8, 8), (3, 3, 2, 3), dict(stride=3, dilation=2, padding=1)),
    "2-D, groups": ((1, 4, 7, 9), (6, 2, 3, 3), dict(groups=2, padding=1, stride=2)),
    "3-D": ((1, 4, 5, 6, 7), (6, 2, 2, 3, 2), dict(groups=2, padding=1, stride=(1, 2, 1))),
}
KINDS = {
    False: {3: F.conv1d, 4: F.conv2d, 5: F.conv3d},
    True: {3: F.conv_transpose1d, 4: F.conv_transpose2d, 5: F.conv_transpose3d},
}


@pytest.mark.parametrize("transposed", [False, True])
@pytest.mark.parametrize("name", CONVOLUTIONS)
def test_a_convolution_counts_each_tap_in_both_directions(name, transposed):
    """Case 7. The oracle: ones convolved with ones sum to the multiply-adds on data."""
    x_shape, weight_shape, settings = CONVOLUTIONS[name]
    if transposed:  # input and result change places
        x_shape = (x_shape[0], weight_shape[0], *x_shape[2:])
        settings = settings | dict(padding=0) if name.startswith("more") else settings
    x, weight = (
        torch.ones(x_shape, requires_grad=True),
        torch.ones(weight_shape, requires_grad=True),
    )
    conv = KINDS[transposed][x.ndim]
    result = conv(x, weight, **settings).detach()
    useful = 2 * int(result.sum())
    taps = weight[0].numel()  # of one group's channels
    executed = 2 * taps * (x.numel() if transposed else result.numel())
    forward = counted(lambda: conv(x, weight, **settings)).total
    assert (forward.flops, forward.useful_flops) == (executed, useful)
    both = counted(lambda: conv(x, weight, **settings).sum().backward()).total
    assert (both.flops, both.useful_flops, both.recomputed_flops) == (3 * executed, 3 * useful, 0)


@pytest.mark.parametrize("transposed", [False, True])
@pytest.mark.parametrize("wants", [(True, False), (False, True)])
def test_a_convolution_counts_the_gradients_that_are_asked_for(wants, transposed):
    x, weight = (torch.zeros(2, 3, 7, requires_grad=w) for w in wants)
    weight = torch.zeros(3, 3, 2, requires_grad=wants[1])
    conv = KINDS[transposed][3]
    once = counted(lambda: conv(x, weight)).total.flops
    assert counted(lambda: conv(x, weight).sum().backward()).total.flops == 2 * once > 0


def test_a_transposed_convolution_counts_its_input_positions_whatever_pads_its_result():
    """Case 7: a longer result is not more work."""
    x, weight = torch.zeros(2, 3, 7), torch.zeros(3, 5, 4)
    for more in (0, 1):
        assert flops(
            lambda more=more: F.conv_transpose1d(x, weight, stride=2, output_padding=more)
        ) == 2 * (2 * 7 * 3 * 5 * 4)


# Recurrent layers


@pytest.mark.parametrize("kind, gates", [(nn.LSTM, 4), (nn.GRU, 3), (nn.RNN, 1)])
@pytest.mark.parametrize("mode", [torch.enable_grad, torch.no_grad, torch.inference_mode])
def test_a_recurrent_layer_is_its_products(kind, gates, mode):
    """Two layers in two directions: 7 positions of 2 sequences, widths 5 and 2 x 3."""
    layer, x = kind(5, 3, num_layers=2, bidirectional=True), torch.zeros(7, 2, 5)
    with mode():
        assert flops(lambda: layer(x)) == 2 * 14 * 2 * gates * 3 * ((5 + 3) + (6 + 3))


def test_a_fused_recurrent_layer_trains_at_three_times_its_forward():
    layer, x = nn.LSTM(5, 3), torch.zeros(7, 2, 5, requires_grad=True)
    forward = flops(lambda: layer(x))
    with torch.backends.mkldnn.flags(enabled=False):
        assert flops(lambda: layer(x)) == forward
    assert flops(lambda: layer(x)[0].sum().backward()) == 3 * forward
