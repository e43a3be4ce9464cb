"""Laws of the adaptive softmax in fixed shapes: the same numbers, compiled once for all batches."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from probabilities import log_prob_of
from test_adaptive_work import Operators, waits

from lmtime.config import AdaptiveSoftmaxConfig
from lmtime.errors import UsageError
from lmtime.softmax import AdaptiveSoftmax

pytestmark = pytest.mark.usefixtures("one_thread")

CONFIG = AdaptiveSoftmaxConfig(8, 20, (5, 10), 2.0)
TARGETS = torch.tensor([0, 4, 5, 9, 10, 19, -1, 12])  # 2, 2 and 3 of a band, one ignored


def make(**options):
    torch.manual_seed(2)
    layer = AdaptiveSoftmax(CONFIG, ignore_index=-1, head_bias=True, tail_bias=True, **options)
    return layer.double()


def some_hidden(n_tokens=8):
    generator = torch.Generator().manual_seed(3)
    shape = (n_tokens, 8)
    return torch.randn(shape, generator=generator, dtype=torch.float64).requires_grad_()


def gradients(loss, hidden, layer):
    return torch.autograd.grad(loss, [hidden, *layer.parameters()], retain_graph=True)


@settings(deadline=None, max_examples=50)
@given(st.lists(st.integers(-1, 19), min_size=1, max_size=9), st.data())
def test_fixed_shapes_give_the_numbers_of_the_plan(targets, data):
    targets, layer = torch.tensor(targets), make(reduction="sum")
    hidden, counts = some_hidden(len(targets)), layer.plan(targets).counts
    capacity = [data.draw(st.integers(n, n + 3)) for n in counts]
    found, wanted = layer(hidden, targets, capacity=capacity), layer(hidden, targets)
    torch.testing.assert_close(found, wanted, rtol=1e-10, atol=1e-12)
    pairs = (gradients(out.loss, hidden, layer) for out in (found, wanted))
    torch.testing.assert_close(*pairs, rtol=1e-10, atol=1e-12)


def test_what_is_beyond_a_capacity_is_seen():
    """Not left out: the loss is no number, and the tokens beyond have none."""
    layer, hidden = make(), some_hidden()
    out, wanted = layer(hidden, TARGETS, capacity=(2, 2)), layer(hidden, TARGETS)
    assert out.loss.isnan()
    assert out.nll.isnan().tolist() == [False] * 7 + [True]
    torch.testing.assert_close(out.nll[:7], wanted.nll[:7])
    assert not layer.plan(TARGETS).fits((2, 2))


@pytest.mark.parametrize("capacity", [(2,), (1, 2, 3), (), (2, -1)])
def test_capacities_are_one_a_tail(capacity):
    with pytest.raises(UsageError, match=r"must be 2 numbers of rows, one a tail cluster"):
        make()(some_hidden(), TARGETS, capacity=capacity)


@pytest.mark.parametrize("bad", [20, -5, 10**12])
def test_a_target_that_is_no_word_is_an_error(bad):
    """Case 23."""
    for targets in ([bad, 3], [3, bad]):
        with pytest.raises((IndexError, RuntimeError)):
            make()(some_hidden(2), torch.tensor(targets), capacity=(2, 2))


def test_it_compiles_whole_and_once_for_all_counts():
    """Case 22: no guard depends on the targets, so that other counts compile nothing anew."""
    layer, hidden = make(), some_hidden()
    compiled = torch.compile(layer, fullgraph=True, dynamic=False, backend="aot_eager")
    batches = [TARGETS, torch.zeros_like(TARGETS), TARGETS.flip(0), torch.full((8,), 19)]
    for i, targets in enumerate(batches):
        with torch.compiler.set_stance("default" if i == 0 else "fail_on_recompile"):
            loss = compiled(hidden, targets, capacity=(8, 8)).loss
        wanted = -log_prob_of(layer, hidden).gather(1, targets.clamp(0)[:, None])[:, 0]
        torch.testing.assert_close(loss, wanted[targets >= 0].mean(), rtol=1e-10, atol=1e-12)
        exact = layer(hidden, targets).loss
        pairs = (gradients(x, hidden, layer) for x in (loss, exact))
        torch.testing.assert_close(*pairs, rtol=1e-10, atol=1e-12)


def test_nothing_waits_for_the_device():
    with Operators() as forward:
        loss = make()(some_hidden(), TARGETS, capacity=(3, 3)).loss
    with Operators() as backward:
        loss.backward()
    assert waits(forward) == waits(backward) == 0
