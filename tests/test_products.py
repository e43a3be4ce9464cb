"""Who multiplies, and that it errs no more than torch does, against float64."""

import pytest
import torch
from test_adaptive_work import Operators
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.utils.flop_counter import FlopCounterMode

from lmtime.cost.products import LEAST_ROWS, LONG_SUM, LONGEST_RUN
from lmtime.softmax import runs
from lmtime.softmax.products import (
    blas,
    careful,
    gradient_of_weights,
    in_lines,
    onednn,
    scores_of,
)

pytestmark = pytest.mark.usefixtures("one_thread")
needs_onednn = pytest.mark.skipif(not runs.HAS_ONEDNN, reason="this torch has no oneDNN")
ONEDNN = "mkldnn::_linear_pointwise"
ALIKE = 1.25  # the BLAS treats the last rows of some products apart, and these err less


@pytest.fixture(params=[True, False], ids=["runs pay", "runs do not"])
def runs_pay(request, monkeypatch):
    """Whether this CPU is one of those that oneDNN is much faster on."""
    monkeypatch.setattr(runs, "pay", lambda: request.param and runs.HAS_ONEDNN)
    return request.param


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
    (1, 192, 8000), (4, 192, 2002), (6, 192, 2002), (7, 64, 8000), (64, 16, 2002), (64, 128, 2002),
    (11, 192, 8000), (64, 193, 2002), (64, 2002, 1024), (100, 1111, 700), (300, 2002, 256),
    (257, 385, 512),
]  # fmt: skip


@pytest.mark.parametrize("shape", SHAPES)
def test_careful_products_err_as_much_as_torchs(shape, runs_pay):
    rows, weight = operands(*shape)
    exact = rows.double() @ weight.double().t()
    allowed = max(
        error(torch.mm(rows, right), exact) for right in (weight.t(), weight.t().contiguous())
    )
    for right in (weight.t(), weight.t().contiguous()):
        assert error(careful(rows, right.t()), exact) <= ALIKE * allowed
    found = in_lines(rows, [weight], None)[:, : shape[2]]
    assert error(found, exact) <= ALIKE * allowed


@needs_onednn
@pytest.mark.parametrize("n_rows", range(1, LEAST_ROWS))
@pytest.mark.parametrize("inner", [LONG_SUM, 8_000, 23_278])
def test_few_rows_err_no_more_than_torchs(n_rows, inner, monkeypatch):
    """Sums of many small numbers and a large one, as the scores of a softmax are."""
    monkeypatch.setattr(runs, "pay", lambda: True)
    of_scores, words = operands(n_rows, inner, 256)
    of_scores = (2 * of_scores).softmax(1)
    of_scores[:, n_rows] -= 1
    right = words.t().contiguous()
    exact = of_scores.double() @ right.double()
    allowed = ALIKE * error(of_scores @ right, exact)
    assert error(careful(of_scores, right.t()), exact) <= allowed
    assert operators(careful, of_scores, right.t()) == [ONEDNN]


@needs_onednn
def test_fast_products_do_not():
    """So that the bound above is one that can be missed."""
    rows, weight = operands(64, 2048, 512)
    exact = rows.double() @ weight.double().t()
    assert error(onednn(rows, weight), exact) > ALIKE * error(rows @ weight.t(), exact)


@needs_onednn
@pytest.mark.parametrize(
    ("shape", "turned", "taken"),
    [
        ((64, 192, 2002), True, ONEDNN),
        ((64, 193, 2002), True, "aten::mm"),
        ((64, 1024, 1024), True, "aten::mm"),  # `in_lines` has runs for these
        ((64, 1024, 1024), False, "lmtime::in_runs"),
        ((63, 1024, 1024), False, "aten::mm"),
        ((1, 192, 8000), True, ONEDNN),
        ((3, 192, 8000), True, "aten::mm"),
        ((3, 6000, 64), False, ONEDNN),
        ((4, 6000, 64), False, "aten::mm"),
        ((3, 5999, 64), False, "aten::mm"),
        ((64, 15, 8000), True, "aten::mm"),
        ((8, 8, 16), True, "aten::mm"),
    ],
)
def test_who_multiplies(shape, turned, taken, runs_pay):
    rows, weight = operands(*shape)
    right = weight.t() if turned else weight.t().contiguous()
    wanted = taken if runs_pay else "aten::mm"
    assert operators(careful, rows, right.t())[:1] == [wanted]


@needs_onednn
@pytest.mark.parametrize("multiply", [careful, onednn])
def test_only_fp32_without_gaps_is_not_left_to_torch(multiply, monkeypatch):
    monkeypatch.setattr(runs, "pay", lambda: True)
    rows, weight = operands(64, 128, 2002)
    assert operators(multiply, rows, weight) == [ONEDNN]
    for dtype in (torch.float64, torch.bfloat16):
        assert operators(multiply, rows.to(dtype), weight.to(dtype)) == ["aten::mm"]
    with torch.backends.mkldnn.flags(enabled=False):
        assert operators(multiply, rows, weight) == ["aten::mm"]
    gaps = operands(64, 256, 2002)[1][:, :128]
    assert operators(multiply, rows, gaps) == ["aten::mm"]


@pytest.mark.parametrize("multiply", [blas, careful, onednn])
def test_a_bias_is_added_to_each_row(multiply, runs_pay):
    rows, weight = operands(64, 128, 300)
    bias = torch.arange(300.0)
    wanted = rows.double() @ weight.double().t() + bias
    found = multiply(rows, weight, bias).double()
    torch.testing.assert_close(found, wanted, rtol=1e-4, atol=1e-4)


@needs_onednn
@pytest.mark.parametrize("n_rows", [1, 255, 257, 1100])
@pytest.mark.parametrize("inner", [1, LONGEST_RUN, LONGEST_RUN + 1, 401, 2002])
def test_runs_add_up_to_the_whole(n_rows, inner, monkeypatch):
    monkeypatch.setattr(runs, "AT_ONCE", 2**14)  # several blocks
    left, weight = operands(n_rows, inner, 333)
    lines = torch.zeros(n_rows, inner + 7)[:, :inner].copy_(left)  # as scores have room
    exact = left.double() @ weight.double().t()
    close = dict(rtol=1e-4, atol=1e-3)
    found = runs.in_runs(lines, weight.t().contiguous())
    torch.testing.assert_close(found.double(), exact, **close)
    scores = runs.scores_in_runs(lines, weight, 3)
    torch.testing.assert_close(scores[:, :333].double(), exact, **close)
    assert (scores[:, 333:] == -torch.inf).all()
    of_words = exact.t() @ left.double() / n_rows
    of_scores = exact.float() / n_rows
    found = runs.gradient_in_runs(of_scores, left, None)
    torch.testing.assert_close(found.double(), of_words, rtol=1e-3, atol=1e-2)
    total = torch.ones(333, inner)
    assert runs.gradient_in_runs(of_scores, left, total) is total
    torch.testing.assert_close(total.double(), of_words + 1, rtol=1e-3, atol=1e-2)


@needs_onednn
def test_runs_are_one_operator_with_the_flops_of_a_product():
    rows, weight = operands(64, 500, 40)
    right, of_scores, total = weight.t().contiguous(), torch.ones(64, 40), torch.ones(40, 500)
    named = torch.ops.lmtime
    for operator, arguments in {
        named.in_runs: (rows, right),
        named.scores_in_runs: (rows, weight, 8),
        named.gradient_in_runs: (of_scores, rows),
        named.add_gradient_in_runs: (total, of_scores, rows),
    }.items():
        torch.library.opcheck(operator.default, arguments)
        with FlopCounterMode(display=False) as counted:
            operator(*arguments)
        assert counted.get_total_flops() == 2 * 64 * 500 * 40


@needs_onednn
def test_the_question_whether_runs_pay_is_asked_once_and_counted_by_nobody():
    runs.pay.cache_clear()
    with FakeTensorMode(), Operators() as ran:
        first = runs.pay()
    assert (first, ran.names) == (runs.pay(), [])
    assert runs.pay.cache_info().misses == 1


SHORT, RUNS = ONEDNN, "lmtime::gradient_in_runs"


@pytest.mark.parametrize(
    ("n_tokens", "n_words", "width", "taken"),
    [
        (64, 2002, 256, SHORT),
        (4, 8000, 256, SHORT),
        (127, 1300, 300, SHORT),
        (3, 8000, 256, "aten::mm"),
        (64, 2002, 255, "aten::mm"),
        (127, 2100, 256, "aten::mm"),  # a copy of more than 2^18 scores
        (128, 2100, 256, RUNS),
        (500, 700, 256, RUNS),
        (500, 700, 255, "aten::mm"),
    ],
)
def test_gradients_of_weights_err_as_much_as_torchs(n_tokens, n_words, width, taken, runs_pay):
    of_scores, rows = (t.t().contiguous() for t in operands(n_words, n_tokens, width))
    exact = of_scores.double().t() @ rows.double()
    allowed = ALIKE * error(of_scores.t() @ rows, exact)
    found = gradient_of_weights(of_scores, rows)
    assert error(found, exact) <= allowed
    assert found.is_contiguous(), "so that autograd takes it as it is"
    added = gradient_of_weights(of_scores, rows, torch.zeros_like(found))
    assert error(added, exact) <= allowed
    if runs.HAS_ONEDNN:
        names = operators(gradient_of_weights, of_scores, rows)
        assert (taken if runs_pay else "aten::mm") in names


@needs_onednn
@pytest.mark.parametrize(
    ("n_rows", "width", "room", "taken"),
    [(64, 192, 0, ONEDNN), (64, 193, 14, "lmtime::scores_in_runs"), (32, 193, 14, "aten::mm")],
)
def test_scores_have_room_unless_onednn_takes_them_at_once(n_rows, width, room, taken, runs_pay):
    rows, weight = operands(n_rows, width, 2002)
    bias = torch.arange(2002.0)
    if not runs_pay:
        room, taken = 14, "aten::mm"
    found = scores_of(careful, rows, [weight], bias)
    assert found.shape == (n_rows, 2002 + room)
    assert (found[:, 2002:] == -torch.inf).all()
    torch.testing.assert_close(found[:, :2002], rows @ weight.t() + bias, rtol=1e-4, atol=1e-3)
    assert taken in operators(scores_of, careful, rows, [weight], bias)
