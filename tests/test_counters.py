"""Laws of the counter: FLOPs and bytes of what is executed, to the last digit.

Numbers in names of cases are those of the public mistakes they come from.
"""

import pytest
import torch
import torch.nn.functional as F
from torch import nn
from torch.utils._python_dispatch import _get_current_dispatch_mode
from torch.utils.checkpoint import checkpoint
from torch.utils.flop_counter import FlopCounterMode

from lmtime.cost import Cost
from lmtime.timing import OUTSIDE, Ownership, region
from lmtime.timing.counters import count

FP32, ID = 4, 8  # bytes


def counted(step, model=None, owners=None):
    return count(step, Ownership(model or nn.Module(), owners or {}))


# FLOPs


def test_a_convolution_over_time_first_counts_every_position_and_tap():
    """Case 1: 2 x 2 x 67 x 128 x 256 x 4; the gradients are products over the 64 positions."""
    x = torch.zeros(64, 2, 128, requires_grad=True)
    weight, bias = torch.zeros(4, 128, 256, requires_grad=True), torch.zeros(256)
    forward = counted(lambda: torch.conv_tbc(x, weight, bias, pad=3))
    assert forward.total.flops == 35_127_296
    both = counted(lambda: torch.conv_tbc(x, weight, bias, pad=3).sum().backward())
    assert both.total.flops == 35_127_296 + 2 * (2 * 2 * 64 * 128 * 256 * 4)


def test_a_product_added_in_place_counts():
    out, a, b = torch.zeros(3, 7), torch.zeros(3, 5), torch.zeros(5, 7)
    assert counted(lambda: out.addmm_(a, b, beta=0.5, alpha=2)).total.flops == 2 * 3 * 5 * 7
    assert counted(lambda: out[None].baddbmm_(a[None], b[None])).total.flops == 2 * 3 * 5 * 7


def test_a_module_is_counted_each_time_it_is_called():
    """Case 8: on input with three dimensions."""
    layer, x = nn.Linear(128, 128, bias=False), torch.zeros(2, 64, 128)
    found = counted(lambda: layer(layer(layer(x))), layer, {"": "linear"})
    assert found.by_owner["linear", "forward"].flops == found.total.flops == 12_582_912


def test_a_multiply_add_is_two_flops():
    """Case 9."""
    model = nn.Sequential(nn.Linear(784, 512), nn.Linear(512, 512), nn.Linear(512, 10))
    products = 784 * 512 + 512 * 512 + 512 * 10
    assert counted(lambda: model(torch.zeros(1, 784))).total.flops == 2 * products


def test_a_tied_weight_is_work_in_the_head_and_none_in_the_embedding():
    """Case 11."""
    embedding = nn.Embedding(1_000, 128)

    def step():
        rows = embedding(torch.arange(128))
        with region("head"):
            F.linear(rows, embedding.weight)

    found = counted(step, embedding, {"": "embedding"}).by_owner
    assert found["head", "forward"].flops == 32_768_000
    assert found["embedding", "forward"].flops == 0
    assert found["embedding", "forward"].bytes > 0


@pytest.mark.parametrize("needs_gradient, times", [(False, 2), (True, 3)])
def test_a_first_layer_has_no_input_gradient_to_compute(needs_gradient, times):
    """Case 13: forward and the weight's gradient alone; every other layer trains at thrice."""
    first, second = nn.Linear(16, 32, bias=False), nn.Linear(32, 8, bias=False)
    model = nn.Sequential(first, second)
    x = torch.zeros(64, 16, requires_grad=needs_gradient)
    found = counted(lambda: model(x).sum().backward(), model, {"0": "first", "1": "second"})
    flops = {part: cost.flops for part, cost in found.by_owner.items() if cost.flops}
    forward = {"first": 2 * 64 * 16 * 32, "second": 2 * 64 * 32 * 8}
    assert flops == {
        ("first", "forward"): forward["first"],
        ("second", "forward"): forward["second"],
        ("first", "backward"): (times - 1) * forward["first"],
        ("second", "backward"): 2 * forward["second"],
    }


@pytest.mark.parametrize("mode", [torch.no_grad, torch.inference_mode, torch.enable_grad])
def test_flops_do_not_depend_on_whether_gradients_are_recorded(mode):
    """Case 19: in inference mode operators arrive composed."""
    model = nn.Sequential(nn.Linear(8, 16), nn.Conv1d(3, 5, 2))
    x = torch.zeros(2, 3, 8)

    def step():
        with mode():
            torch.matmul(model(x), torch.zeros(15, 4))

    linear, conv, product = 2 * 6 * 8 * 16, 2 * 2 * 15 * 3 * 5 * 2, 2 * 10 * 15 * 4
    assert counted(step).total.flops == linear + conv + product


def test_gradients_asked_for_by_name_are_counted():
    """Case 19."""
    weight = torch.zeros(8, 4, requires_grad=True)
    step = lambda: torch.autograd.grad(F.linear(torch.zeros(3, 4), weight).sum(), weight)  # noqa: E731
    assert counted(step).total.flops == 2 * (2 * 3 * 4 * 8)


@pytest.mark.parametrize("use_reentrant, n_again", [(False, 1), (True, 2)])
def test_what_is_computed_again_is_counted_again_in_the_backward_phase(use_reentrant, n_again):
    """Case 19: the newer way stops where nothing further is needed, before the second layer."""
    layers = nn.Sequential(nn.Linear(4, 4, bias=False), nn.Linear(4, 4, bias=False))
    model = nn.ModuleDict({"layers": layers})
    x = torch.zeros(3, 4, requires_grad=True)

    def step():
        checkpoint(layers, x, use_reentrant=use_reentrant).sum().backward()

    found = counted(step, model, {"layers": "layers"}).by_owner
    once = 2 * 3 * 4 * 4
    assert found["layers", "forward"].flops == 2 * once
    assert found["layers", "backward"].flops == (4 + n_again) * once


def test_flops_are_those_of_torchs_counter_where_that_is_right():
    model = nn.Sequential(nn.Conv1d(5, 7, 3), nn.ReLU(), nn.Conv1d(7, 2, 2, bias=False))
    x = torch.zeros(3, 5, 13, requires_grad=True)
    with FlopCounterMode(display=False) as torchs:
        model(x).sum().backward()
    assert counted(lambda: model(x).sum().backward()).total.flops == torchs.get_total_flops() > 0


# Bytes


def test_an_embedding_moves_its_rows_and_not_the_table():
    """Case 22: 2 x 16,384 values, where the table holds a quarter of a million."""
    embedding, ids = nn.Embedding(2_050, 128), torch.arange(128)
    moved = counted(lambda: embedding(ids)).total.bytes
    assert moved == 2 * 16_384 * FP32 + 128 * ID


def test_a_product_reads_both_and_writes_one():
    a, b = torch.zeros(3, 5), torch.zeros(5, 7)
    assert counted(lambda: a @ b).total == Cost(2 * 3 * 5 * 7, (15 + 35 + 21) * FP32)


def test_16_bit_values_are_half_the_bytes():
    a, b = torch.zeros(3, 5), torch.zeros(3, 5)
    c, d = a.half(), b.half()
    wide, narrow = counted(lambda: a + b), counted(lambda: c + d)
    assert wide.total.bytes == 2 * narrow.total.bytes == 3 * 15 * FP32


VIEWS = {
    "view": lambda x: x.view(-1),
    "transpose": lambda x: x.t(),
    "permute": lambda x: x.permute(1, 0),
    "expand": lambda x: x.expand(9, 6, 8),
    "select": lambda x: x[1],
    "slice": lambda x: x[1:3, ::2],
    "unsqueeze": lambda x: x[None],
    "split": lambda x: x.split(2),
    "chunk": lambda x: x.chunk(3, dim=1),
    "unbind": lambda x: x.unbind(),
    "unfold": lambda x: x.unfold(0, 2, 1),
    "diagonal": lambda x: x.diagonal(),
    "as_strided": lambda x: x.as_strided((2, 2), (1, 1)),
    "detach": lambda x: x.detach(),
    "contiguous, when it is": lambda x: x.contiguous(),
    "empty": lambda x: (x.new_empty(9), torch.empty_like(x), torch.empty(9)),
}


@pytest.mark.parametrize("name", VIEWS)
def test_a_view_costs_nothing(name):
    x = torch.zeros(6, 8)
    found = counted(lambda: VIEWS[name](x))
    assert found.total == Cost(0, 0)
    assert not found.by_operator


X = 48 * FP32  # of (6, 8)
THREE, TWO = torch.tensor([1, 40, 2]), torch.tensor([5, 0])
MOVES = {
    "a copy of what is not contiguous": (lambda x, y: x.t().reshape(-1), 2 * X),
    "an addition": (lambda x, y: x + y, 3 * X),
    "an addition in place": (lambda x, y: x.add_(y), 3 * X),
    "a scaling in place": (lambda x, y: x.mul_(2), 2 * X),
    "a copy into another": (lambda x, y: x.copy_(y), 2 * X),
    "a zeroing in place": (lambda x, y: x.zero_(), X),
    "a filling in place": (lambda x, y: x.fill_(3.0), X),
    "zeros like another": (lambda x, y: torch.zeros_like(x), X),
    "a sum": (lambda x, y: x.sum(), X + FP32),
    "a gather of three": (lambda x, y: x.view(-1).gather(0, THREE), 3 * (ID + 2 * FP32)),
    "two rows": (lambda x, y: x[TWO], 2 * (ID + 2 * 8 * FP32)),
    "two rows selected": (lambda x, y: x.index_select(0, TWO), 2 * (ID + 2 * 8 * FP32)),
}


@pytest.mark.parametrize("name", MOVES)
def test_what_moves_is_read_once_and_written_once(name):
    call, wanted = MOVES[name]
    x, y = torch.zeros(6, 8), torch.ones(6, 8)
    assert counted(lambda: call(x, y)).total == Cost(0, wanted)


FOREACH = {
    "added": (lambda x, y: torch._foreach_add_(x, y), 3),
    "added, scaled": (lambda x, y: torch._foreach_add_(x, y, alpha=-0.1), 3),
    "scaled": (lambda x, y: torch._foreach_mul_(x, 0.9), 2),
    "copied": (lambda x, y: torch._foreach_copy_(x, y), 2),
    "zeroed": (lambda x, y: torch._foreach_zero_(x), 1),
    "added anew": (lambda x, y: torch._foreach_add(x, y), 3),
}


@pytest.mark.parametrize("name", FOREACH)
def test_many_tensors_changed_at_once_count_what_is_written(name):
    call, passes = FOREACH[name]
    x, y = ([torch.zeros(3, 5), torch.zeros(7)] for _ in range(2))
    assert counted(lambda: call(x, y)).total == Cost(0, passes * 22 * FP32)


@pytest.mark.parametrize("foreach", [True, False])
def test_an_update_moves_the_same_whether_in_one_call_or_many(foreach):
    weights = [nn.Parameter(torch.zeros(3, 5)), nn.Parameter(torch.zeros(7))]
    optimizer = torch.optim.SGD(weights, lr=0.1, momentum=0.9, foreach=foreach)
    for weight in weights:
        weight.grad = torch.ones_like(weight)
    optimizer.step()  # the first one makes the buffers
    # Buffer scaled (2 passes), gradient added to it (3), weights moved (3).
    assert counted(optimizer.step).total == Cost(0, 8 * 22 * FP32)


# Who owns it, and what is left behind


def test_work_belongs_to_owner_and_phase_and_sums_to_the_total():
    model = nn.Sequential(nn.Linear(4, 3), nn.Tanh())
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    ownership = Ownership(model, {"0": "linear", "1": "tanh"}, optimizer)

    def step():
        model(torch.zeros(2, 4)).sum().backward()
        optimizer.step()

    found = count(step, ownership)
    phases = ("forward", "backward")
    parts = {(owner, phase) for owner in ("linear", "tanh", OUTSIDE) for phase in phases}
    assert set(found.by_owner) == parts | {("optimizer", "optimizer")}
    assert found.by_owner["tanh", "forward"] == Cost(0, 2 * 6 * FP32)
    assert sum(cost.bytes for cost in found.by_owner.values()) == found.total.bytes


def test_operators_are_listed_with_how_often_they_ran():
    x = torch.zeros(3, 3)
    found = counted(lambda: (x @ x @ x) + x)
    assert dict(found.by_operator) == {"aten.mm": 2, "aten.add": 1}


def test_reading_twice_changes_nothing():
    """Case 21."""
    x = torch.zeros(3, 3)
    found = counted(lambda: x @ x)
    assert (found.total, dict(found.by_owner)) == (found.total, dict(found.by_owner))
    assert counted(lambda: x @ x).total == found.total


def test_counting_leaves_no_mode_behind():
    x = torch.zeros(3, 3)
    counts = counted(lambda: x @ x)
    before = counts.total
    with pytest.raises(ZeroDivisionError):
        counted(lambda: 1 / 0)
    assert _get_current_dispatch_mode() is None
    x @ x
    assert counts.total == before


def test_results_are_those_of_an_uncounted_step():
    torch.manual_seed(0)
    model, x = nn.Sequential(nn.Linear(8, 5), nn.GELU()), torch.randn(3, 8)
    wanted, found = model(x), []
    counted(lambda: found.append(model(x)))
    assert torch.equal(found[0], wanted)
