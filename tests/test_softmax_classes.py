"""Laws of the class-based softmax, against its two levels written out in float64."""

import pytest
import torch
import torch.nn.functional as F
from hypothesis import given, settings
from hypothesis import strategies as st
from probabilities import log_prob_of

from lmtime.errors import UsageError
from lmtime.softmax import ClassSoftmax

WIDTH = 5
REDUCTIONS = ("mean", "sum", "none")

pytestmark = pytest.mark.usefixtures("one_thread")


def make(n_words, *, dtype=torch.float64, **options):
    torch.manual_seed(7)
    return ClassSoftmax(WIDTH, n_words, **options).to(dtype)


def some_hidden(*shape, dtype=torch.float64):
    generator = torch.Generator().manual_seed(3)
    hidden = torch.randn(*shape, WIDTH, generator=generator, dtype=torch.float64)
    return hidden.to(dtype).requires_grad_()


def gradients(loss, hidden, layer):
    inputs = (hidden, layer.classes.weight, layer.words)
    return torch.autograd.grad(loss, inputs, retain_graph=True)


def assert_same(found, wanted):
    torch.testing.assert_close(found, wanted, rtol=1e-9, atol=1e-12, equal_nan=True)


@st.composite
def cases(draw):
    n_words = draw(st.integers(1, 40))
    n_classes = draw(st.one_of(st.none(), st.integers(1, n_words)))
    target = st.one_of(st.integers(0, n_words - 1), st.just(-1))
    targets = draw(st.lists(target, min_size=1, max_size=12))
    options = dict(
        reduction=draw(st.sampled_from(REDUCTIONS)),
        label_smoothing=draw(st.sampled_from([0.0, 0.1])),
        ignore_index=-1,
    )
    return n_words, n_classes, torch.tensor(targets), options


@settings(deadline=None, max_examples=50)
@given(cases())
def test_loss_and_gradients_are_those_of_the_two_levels(case):
    """Classes that are met by no target or by all, and a last class with fewer words."""
    n_words, n_classes, targets, options = case
    layer, hidden = make(n_words, n_classes=n_classes, **options), some_hidden(len(targets))
    log_prob = log_prob_of(layer, hidden)
    assert log_prob.shape == (len(targets), n_words)
    assert_same(layer.log_prob(hidden), log_prob)
    assert_same(log_prob.logsumexp(-1), torch.zeros(len(targets), dtype=torch.float64))
    assert torch.equal(layer.predict(hidden), log_prob.argmax(-1))
    out, wanted = layer(hidden, targets), F.cross_entropy(log_prob, targets, **options)
    assert_same(out.loss, wanted)
    assert_same(out.nll, F.nll_loss(log_prob, targets, ignore_index=-1, reduction="none"))
    if (targets != -1).any():
        upstream = torch.arange(1.0, 1 + out.loss.numel()).reshape(out.loss.shape)
        assert_same(
            gradients((upstream * out.loss).sum(), hidden, layer),
            gradients((upstream * wanted).sum(), hidden, layer),
        )
    else:
        assert all((grad == 0).all() for grad in gradients(out.loss.sum(), hidden, layer))


def test_classes_that_are_not_met_have_gradient_zero():
    """Case 4: zero, and not None."""
    layer, hidden = make(20, n_classes=5), some_hidden(3)
    _, grad_classes, grad_words = gradients(
        layer(hidden, torch.tensor([4, 5, 19])).loss, hidden, layer
    )
    met = [False, True, False, False, True]
    assert (grad_words != 0).flatten(1).any(1).tolist() == met
    assert (grad_classes != 0).all()


@pytest.mark.parametrize(
    "n_words, n_classes, shape",
    [
        (33_278, None, (182, 183)),
        (100, None, (10, 10)),
        (10, 6, (5, 2)),  # two a class fill five classes
        (7, 7, (7, 1)),
        (7, 1, (1, 7)),
        (1, None, (1, 1)),
    ],
)
def test_classes_hold_as_many_words_each(n_words, n_classes, shape):
    layer = make(n_words, n_classes=n_classes)
    assert tuple(layer.words.shape) == (*shape, WIDTH)
    assert (layer.n_classes, layer.class_size) == shape
    assert list(layer.state_dict()) == ["words", "classes.weight"]


@pytest.mark.parametrize("reduction", REDUCTIONS)
@pytest.mark.parametrize("shape", [(), (2, 3), (0,), (3, 0)])
def test_leading_dimensions_are_kept(shape, reduction):
    layer, hidden = make(11, reduction=reduction), some_hidden(*shape)
    targets = torch.full(shape, 10)
    out = layer(hidden, targets)
    assert out.nll.shape == layer.predict(hidden).shape == shape
    assert layer.log_prob(hidden).shape == (*shape, 11)
    assert out.loss.shape == (shape if reduction == "none" else ())
    assert [grad.shape for grad in gradients(out.loss.sum(), hidden, layer)]


@pytest.mark.parametrize("bad", [10, 11, 12, 10**12, -2, -5])
def test_a_target_that_is_no_word_is_an_error(bad):
    """Case 23: 10 and 11 would be in the last class, among the vectors of no word."""
    layer = make(10, n_classes=3, ignore_index=-1)
    assert layer.words.shape[:2] == (3, 4)
    for targets in ([bad, 3, 9], [3, -1, bad]):
        with pytest.raises((IndexError, RuntimeError)):
            layer(some_hidden(3), torch.tensor(targets))


@pytest.mark.parametrize("input_dtype", [torch.float32, torch.bfloat16])
def test_autocast_runs_and_stays_near_fp32(input_dtype):
    """Case 6."""
    layer, hidden = make(11, dtype=torch.float32), some_hidden(4, dtype=torch.float32)
    targets = torch.tensor([0, 4, 5, 10])
    cast = hidden.detach().to(input_dtype).requires_grad_()
    with torch.autocast("cpu", dtype=torch.bfloat16):
        out, log_prob = layer(cast, targets), layer.log_prob(cast)
    out.loss.backward()
    assert out.nll.dtype == out.loss.dtype == log_prob.dtype == torch.float32
    torch.testing.assert_close(out.nll, layer(hidden, targets).nll, rtol=0, atol=3e-2)
    plain = torch.autograd.grad(layer(hidden, targets).loss, hidden)[0]
    torch.testing.assert_close(cast.grad.float(), plain, rtol=0, atol=1e-2)


def test_two_backward_passes_give_the_same_and_need_the_graph():
    """Case 21."""
    layer, hidden = make(11), some_hidden(4)
    loss = layer(hidden, torch.tensor([0, 4, 5, 10])).loss
    first = gradients(loss, hidden, layer)
    assert all(map(torch.equal, first, gradients(loss, hidden, layer)))
    loss.backward()
    with pytest.raises(RuntimeError, match="backward through the graph a second time"):
        loss.backward()


@pytest.mark.parametrize("n_classes", [0, -1, 12])
def test_no_more_classes_than_words(n_classes):
    with pytest.raises(UsageError, match="must lie between 1 and the 11 words"):
        make(11, n_classes=n_classes)
