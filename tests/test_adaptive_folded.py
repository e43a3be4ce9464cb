"""Laws of the fused adaptive softmax whose gradients are made in the forward pass, and its peak."""

from contextlib import contextmanager

import pytest
import torch
import torch.nn.functional as F
from hypothesis import given, settings
from hypothesis import strategies as st
from probabilities import assert_backward_repeats, log_prob_of
from test_adaptive_softmax import draws, gradients

from lmtime.config import AdaptiveSoftmaxConfig
from lmtime.cost import folding as rule
from lmtime.softmax import AdaptiveSoftmax, TorchAdaptiveSoftmax, pieces
from lmtime.timing.memory import peak_bytes

pytestmark = pytest.mark.usefixtures("one_thread")

CONFIG = AdaptiveSoftmaxConfig(32, 300, (20, 60), 2.0)
N_TOKENS = 601  # a prime; scores of each band are more than the weights of those after it


@contextmanager
def folding(folds=True, at_once=1):
    """Whether scores are dropped, and how many a piece may have beside what follows."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(rule, "KEPT_AT_MOST", -1 if folds else 2**60)
        patch.setitem(rule.SCORES_AT_ONCE, "cpu", (at_once, at_once))
        patch.setattr(rule, "MOST_PIECES", 2**60)
        patch.setattr(rule, "WEIGHTS_PER_SCORE", 2**60)
        yield


def make(dtype=torch.float64, **options):
    torch.manual_seed(5)
    layer = AdaptiveSoftmax(CONFIG, head_bias=True, tail_bias=True, **options)
    return layer.to(dtype)


def some_tokens(dtype=torch.float64):
    targets = torch.randint(300, (N_TOKENS,), generator=torch.Generator().manual_seed(2))
    return draws(1, N_TOKENS, 32).to(dtype).requires_grad_(), targets


def both(take, *options, **named):
    """What `take` returns where scores are dropped, and where they are kept."""
    found = []
    for folds in (True, False):
        with folding(folds):
            found.append(take(*options, **named))
    return found


def test_pieces_are_several_of_each_band_and_meet_each_row_once():
    layer, (_, targets) = make(), some_tokens()
    plan = layer.plan(targets)
    bands = [band.weights for band in (layer.head, *layer.tails)]
    n_rows = N_TOKENS + len(plan.rows)
    with folding():
        found = list(pieces.views_of(bands, plan, torch.zeros(3, n_rows, 1), None))
    assert all(sum(i == band for i, *_ in found) > 1 for band in range(3))
    places = [start + k for _, start, _, index, *_ in found for k in range(len(index))]
    assert places == list(range(n_rows))
    tail = [row for i, _, tokens, *_ in found if i for row in tokens.tolist()]
    assert tail == plan.rows.tolist()
    assert torch.equal(torch.cat([index for _, _, _, index, *_ in found]), plan.targets)


@settings(deadline=None, max_examples=15)
@given(
    reduction=st.sampled_from(["mean", "sum"]),
    weighted=st.booleans(),
    ignore_index=st.sampled_from([-100, 7]),
    at_once=st.sampled_from([1, 2000, 2**30]),
    scale=st.sampled_from([1.0, -0.5, 0.0]),
)
def test_loss_nll_and_gradients_are_those_of_the_plain_twin(
    reduction, weighted, ignore_index, at_once, scale
):
    weight = 0.1 + draws(4, 300).abs() if weighted else None
    layer = make(reduction=reduction, ignore_index=ignore_index, weight=weight)
    hidden, targets = some_tokens()
    upstream = draws(3, N_TOKENS)

    def with_gradients(nll, loss):
        through = (loss * scale, (upstream * nll).sum(), (upstream * nll).sum() + 3 * loss)
        return [nll, loss, *(gradients(x, hidden, layer) for x in through)]

    log_prob, options = log_prob_of(layer, hidden), dict(ignore_index=ignore_index)
    plain = with_gradients(
        F.nll_loss(log_prob, targets, reduction="none", **options),
        F.nll_loss(log_prob, targets, weight, reduction=reduction, **options),
    )
    for folds in (True, False):
        with folding(folds, at_once):
            found = with_gradients(*layer(hidden, targets))
        torch.testing.assert_close(found, plain, rtol=1e-10, atol=1e-12)


@pytest.mark.parametrize("scale", [1.0, 0.3])
def test_two_backward_passes_give_the_same_and_need_the_graph(scale):
    layer, (hidden, targets) = make(torch.float32), some_tokens(torch.float32)
    with folding():
        loss = scale * layer(hidden, targets).loss
        assert_backward_repeats(loss, hidden, lambda: gradients(loss, hidden, layer))


def test_what_was_taken_away_is_not_scaled_again():
    layer, (hidden, targets) = make(), some_tokens()
    with folding():
        loss = layer(hidden, targets).loss
        (taken,) = torch.autograd.grad(loss, hidden, retain_graph=True)
        before = taken.clone()
        torch.autograd.grad(2 * loss, hidden)
    assert torch.equal(taken, before)


@pytest.mark.parametrize("frozen", ["hidden", "head.words.weight", "tails.0.projection.weight"])
def test_gradients_are_made_for_what_needs_them(frozen):
    def take():
        layer, (hidden, targets) = make(), some_tokens()
        named = {"hidden": hidden, **dict(layer.named_parameters())}
        named.pop(frozen).requires_grad_(False)
        loss = layer(hidden, targets).loss
        return torch.autograd.grad(loss, list(named.values()))

    torch.testing.assert_close(*both(take), rtol=1e-10, atol=1e-12)


def test_clusters_and_tied_heads():
    """A head of two matrices, and a cluster that nothing hits."""
    words = [torch.nn.Parameter(draws(6, *shape)) for shape in ((20, 32), (40, 16), (240, 8))]

    def take():
        torch.manual_seed(5)
        layer = AdaptiveSoftmax(CONFIG, words=words, head_bias=True, tail_bias=True).double()
        hidden, targets = some_tokens()
        loss = layer(hidden, targets % 60).loss
        return gradients(loss, hidden, layer)

    torch.testing.assert_close(*both(take), rtol=1e-10, atol=1e-12)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_16_bits_in_many_pieces_err_little(dtype):
    """fp16 is not folded: a loss is scaled after it, for gradients within its range."""
    layer, (hidden, targets) = make(dtype), some_tokens(dtype)
    truth, exact = make(), hidden.detach().double().requires_grad_()
    truth.load_state_dict(layer.state_dict())
    with folding():
        out = layer(hidden, targets)
        found = gradients(out.loss, hidden, layer)
    wanted = truth(exact, targets)
    assert out.nll.dtype == out.loss.dtype == torch.float32
    torch.testing.assert_close(out.nll.double(), wanted.nll, rtol=0, atol=2e-2)
    for grad, right in zip(found, gradients(wanted.loss, exact, truth), strict=True):
        assert grad.dtype == dtype
        assert (grad.double() - right).norm() <= 2e-2 * right.norm()


def test_without_gradients_scores_are_dropped_too():
    layer, (hidden, targets) = make(), some_tokens()
    with folding(folds=False):
        kept = layer(hidden, targets)
    with torch.no_grad(), folding():
        dropped = layer(hidden, targets)
    torch.testing.assert_close(dropped, kept, rtol=1e-10, atol=1e-12)


# Memory


def activation_bytes(layer, n_tokens, counts):
    """The peak of a step less the gradients of the weights; counts: tokens of the tails."""
    cutoffs, n_short = (2_000, 10_000), n_tokens - sum(counts)
    parts = [torch.arange(n_short) % 2_000]
    parts += [low + torch.arange(n) for low, n in zip(cutoffs, counts, strict=True)]
    hidden = draws(1, n_tokens, layer.hidden_size).float().requires_grad_()
    targets = torch.cat(parts)

    def step():
        layer.zero_grad()
        hidden.grad = None
        layer(hidden, targets).loss.backward()

    step()
    layer.zero_grad()
    hidden.grad = None
    return peak_bytes(step, "cpu") - sum(4 * weight.numel() for weight in layer.parameters())


@pytest.mark.parametrize(
    ("hidden_size", "n_tokens", "counts"),
    [
        (1024, 4096, (528, 136)),
        (256, 4096, (400, 122)),
        (2048, 1024, (132, 34)),
        (1024, 1024, (132, 34)),
        (128, 1024, (132, 34)),
    ],
)
def test_activations_take_three_fifths_of_torchs_at_most(hidden_size, n_tokens, counts):
    """Where scores are dropped; as many tokens of the tails as text of the default corpus has."""
    config = AdaptiveSoftmaxConfig(hidden_size, 33_278, (2_000, 10_000))
    found, torchs = (
        activation_bytes(kind(config), n_tokens, counts)
        for kind in (AdaptiveSoftmax, TorchAdaptiveSoftmax)
    )
    assert found <= 0.6 * torchs
