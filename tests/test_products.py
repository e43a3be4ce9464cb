"""Who multiplies, and that it errs no more than torch does, against float64."""

import pytest
import torch
from test_adaptive_work import Operators
from torch.utils.flop_counter import FlopCounterMode

from lmtime.cost.products import LONGEST_RUN
from lmtime.softmax.products import (
    HAS_ONEDNN,
    blas,
    careful,
    gradient_of_weights,
    in_runs,
    onednn,
    scores_of,
)

pytestmark = pytest.mark.usefixtures("one_thread")
needs_onednn = pytest.mark.skipif(not HAS_ONEDNN, reason="this torch has no oneDNN")
ONEDNN = "mkldnn::_linear_pointwise"
ALIKE = 1.25  # the BLAS treats the last rows of some products apart, and these err less


def operands(n_rows, inner, n_columns, dtype=torch.float32):
    generator = torch.Generator().manual_seed(0)
    sizes = (n_rows, inner), (n_columns, inner)
    return [torch.randn(*size, generator=generator, dtype=dtype) for size in sizes]


def error(found, exact):
    return ((found.double() - exact).norm() / exact.norm()).item()


def operators(function, *args):
    with Operators() as ran:
        function(*args)
    return ran.names


# Rows, inner and columns on both sides of what the rules tell apart.
SHAPES = [
    (4, 192, 2002), (6, 192, 2002), (7, 64, 8000), (64, 16, 2002), (64, 128, 2002), (11, 192, 8000),
    (64, 193, 2002), (64, 2002, 1024), (100, 1111, 700), (300, 2002, 256), (257, 385, 512),
]  # fmt: skip


@pytest.mark.parametrize("shape", SHAPES)
def test_careful_products_err_as_much_as_torchs(shape):
    rows, weight = operands(*shape)
    exact = rows.double() @ weight.double().t()
    for right in (weight.t(), weight.t().contiguous()):
        allowed = max(error(torch.mm(rows, right), exact), error(torch.mm(rows, weight.t()), exact))
        assert error(careful(rows, right), exact) <= ALIKE * allowed


@needs_onednn
def test_fast_products_do_not():
    """So that the bound above is one that can be missed."""
    rows, weight = operands(64, 2048, 512)
    exact = rows.double() @ weight.double().t()
    assert error(onednn(rows, weight.t()), exact) > ALIKE * error(rows @ weight.t(), exact)


@needs_onednn
@pytest.mark.parametrize(
    ("shape", "turned", "taken"),
    [
        ((64, 192, 2002), True, [ONEDNN]),
        ((64, 193, 2002), True, ["aten::mm"]),
        ((64, 1024, 1024), True, ["aten::mm"]),  # runs of a matrix with gaps would be slow
        ((64, 1024, 1024), False, ["lmtime::in_runs"]),
        ((63, 1024, 1024), False, ["aten::mm"]),
        ((3, 192, 8000), True, ["aten::mm"]),
        ((64, 15, 8000), True, ["aten::mm"]),
        ((8, 8, 16), True, ["aten::mm"]),
    ],
)
def test_who_multiplies(shape, turned, taken):
    rows, weight = operands(*shape)
    right = weight.t() if turned else weight.t().contiguous()
    assert operators(careful, rows, right) == taken


@pytest.mark.parametrize("multiply", [careful, onednn])
def test_only_fp32_without_gaps_is_not_left_to_torch(multiply):
    rows, weight = operands(64, 128, 2002)
    for dtype in (torch.float64, torch.bfloat16):
        assert operators(multiply, rows.to(dtype), weight.t().to(dtype)) == ["aten::mm"]
    gaps = operands(64, 256, 2002)[1][:, :128]
    assert operators(multiply, rows, gaps.t()) == ["aten::mm"]


@pytest.mark.parametrize("multiply", [blas, careful, onednn])
def test_a_bias_is_added_to_each_row(multiply):
    rows, weight = operands(64, 128, 300)
    bias = torch.arange(300.0)
    wanted = rows.double() @ weight.double().t() + bias
    found = multiply(rows, weight.t(), bias).double()
    torch.testing.assert_close(found, wanted, rtol=1e-4, atol=1e-4)


@needs_onednn
@pytest.mark.parametrize("n_rows", [1, 255, 256, 257, 600])
@pytest.mark.parametrize("inner", [1, LONGEST_RUN, LONGEST_RUN + 1, 401, 2002])
def test_runs_add_up_to_the_whole(n_rows, inner):
    rows, weight = operands(n_rows, inner, 33)
    lines = torch.zeros(n_rows, inner + 7)[:, :inner].copy_(rows)  # as scores have room
    exact = rows.double() @ weight.double().t()
    found = in_runs(lines, weight.t().contiguous())
    torch.testing.assert_close(found.double(), exact, rtol=1e-4, atol=1e-4)
    assert found.is_contiguous()


@needs_onednn
def test_runs_are_one_operator_with_the_flops_of_a_product():
    rows, weight = operands(64, 500, 40)
    right = weight.t().contiguous()
    torch.library.opcheck(in_runs, (rows, right))
    with FlopCounterMode(display=False) as counted:
        in_runs(rows, right)
    assert counted.get_total_flops() == 2 * 64 * 500 * 40


@pytest.mark.parametrize(
    ("n_tokens", "n_words", "width", "taken"),
    [
        (64, 2002, 256, ONEDNN),
        (4, 8000, 256, ONEDNN),
        (192, 1300, 300, ONEDNN),
        (3, 8000, 256, "aten::mm"),
        (64, 2002, 255, "aten::mm"),
        (193, 1300, 256, "aten::mm"),
        (192, 1366, 256, "aten::mm"),  # a copy of more than 2^18 scores
    ],
)
def test_gradients_of_weights_err_as_much_as_torchs(n_tokens, n_words, width, taken):
    of_scores, rows = (t.t() for t in operands(n_words, n_tokens, width))
    of_scores, rows = of_scores.contiguous(), rows.contiguous()
    exact = of_scores.double().t() @ rows.double()
    found = gradient_of_weights(of_scores, rows)
    assert error(found, exact) <= ALIKE * error(of_scores.t() @ rows, exact)
    assert found.is_contiguous(), "so that autograd takes it as it is"
    if HAS_ONEDNN:
        assert taken in operators(gradient_of_weights, of_scores, rows)


@pytest.mark.parametrize(("width", "room"), [(192, 0), (193, 14)])
def test_scores_have_room_where_the_blas_multiplies(width, room):
    rows, weight = operands(64, width, 2002)
    found = scores_of(careful, rows, [weight], None)
    assert found.shape == (64, 2002 + room if HAS_ONEDNN else 2016)
    assert (found[:, 2002:] == -torch.inf).all()
    torch.testing.assert_close(found[:, :2002], rows @ weight.t(), rtol=1e-4, atol=1e-4)
