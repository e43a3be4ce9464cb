"""Laws of bytes: each operand read once, each result written once, rows and not tables."""

import pytest
import torch
from counting import counted
from torch import nn

from lmtime.timing.flops import Work

FP32, ID = 4, 8


def test_an_embedding_moves_its_rows_and_not_the_table():
    """Case 22: 2 x 16,384 values, where the table holds a quarter of a million."""
    embedding, ids = nn.Embedding(2_050, 128), torch.arange(128)
    moved = counted(lambda: embedding(ids)).total.bytes
    assert moved == 2 * 16_384 * FP32 + 128 * ID


@pytest.mark.parametrize("mode", ["sum", "mean", "max"])
def test_a_bag_of_embeddings_moves_its_rows_and_not_the_table(mode):
    """Case 22, of the whole kind."""
    bag, ids = nn.EmbeddingBag(2_050, 128, mode=mode), torch.arange(128).view(32, 4)
    rows, bags = (128 + 32) * 128 * FP32, 32 * 128 * ID  # of the greatest, whose rows they are
    assert rows < counted(lambda: bag(ids)).total.bytes < rows + bags * (mode == "max") + 1_000 * ID


def test_a_product_reads_both_and_writes_one():
    a, b = torch.zeros(3, 5), torch.zeros(5, 7)
    assert counted(lambda: a @ b).total.bytes == (15 + 35 + 21) * FP32


def test_what_is_only_written_is_not_read():
    """The argument `out`; where it is an operand too, it is."""
    a, b, out = torch.zeros(3, 5), torch.zeros(5, 7), torch.zeros(3, 7)
    assert counted(lambda: torch.mm(a, b, out=out)).total.bytes == (15 + 35 + 21) * FP32
    assert counted(lambda: torch.log_softmax(out, 1, out=out)).total.bytes == 2 * 21 * FP32


def test_a_scatter_moves_its_values_and_not_the_matrix():
    """Read and written, each into its place; a number is only written."""
    matrix, ids, values = torch.zeros(4, 1_000), torch.zeros(4, 2).long(), torch.ones(4, 2)
    moved = counted(lambda: matrix.scatter_(1, ids, values)).total.bytes
    assert moved == 2 * 8 * FP32 + 8 * ID
    assert counted(lambda: matrix.scatter_(1, ids, 1.0)).total.bytes == 8 * FP32 + 8 * ID


def test_16_bit_values_are_half_the_bytes():
    a, b = torch.zeros(3, 5), torch.zeros(3, 5)
    c, d = a.half(), b.half()
    wide, narrow = counted(lambda: a + b), counted(lambda: c + d)
    assert wide.total.bytes == 2 * narrow.total.bytes == 3 * 15 * FP32


VIEWS = {
    "new shape in place": lambda x: x[None].squeeze_(0),
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
    assert found.total == Work(bytes=0)
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
    "two rows put": (lambda x, y: x.index_put_((TWO,), y[:2]), 2 * (ID + 2 * 8 * FP32)),
    "two rows added": (
        lambda x, y: x.index_put_((TWO,), y[:2], accumulate=True),
        2 * (ID + 3 * 8 * FP32),
    ),
    "two rows selected": (lambda x, y: x.index_select(0, TWO), 2 * (ID + 2 * 8 * FP32)),
}


@pytest.mark.parametrize("name", MOVES)
def test_what_moves_is_read_once_and_written_once(name):
    call, wanted = MOVES[name]
    x, y = torch.zeros(6, 8), torch.ones(6, 8)
    assert counted(lambda: call(x, y)).total == Work(bytes=wanted)


def test_what_is_given_twice_is_read_once():
    """As the gradient that Adam squares; another part of the same tensor is another operand."""
    x, y = torch.zeros(6, 8), torch.ones(6, 8)
    assert counted(lambda: x.addcmul(y, y)).total == Work(bytes=3 * X)
    assert counted(lambda: y[:3] + y[3:]).total == Work(bytes=3 * X // 2)


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
    assert counted(lambda: call(x, y)).total == Work(bytes=passes * 22 * FP32)


@pytest.mark.parametrize("foreach", [True, False])
def test_an_update_moves_the_same_whether_in_one_call_or_many(foreach):
    weights = [nn.Parameter(torch.zeros(3, 5)), nn.Parameter(torch.zeros(7))]
    optimizer = torch.optim.SGD(weights, lr=0.1, momentum=0.9, foreach=foreach)
    for weight in weights:
        weight.grad = torch.ones_like(weight)
    optimizer.step()  # the first one makes the buffers
    # Buffer scaled (2 passes), gradient added to it (3), weights moved (3).
    assert counted(optimizer.step).total == Work(bytes=8 * 22 * FP32)
