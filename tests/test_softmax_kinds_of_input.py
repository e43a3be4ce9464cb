"""Laws of input for every output layer: how it lies in memory, its types, sizes and mistakes."""

import copy
import itertools
import math

import pytest
import torch
from layer_rows import (
    LAYERS,
    N_WORDS,
    WEIGHT,
    WIDTH,
    WORDS,
    assert_same,
    draws,
    every_layer,
    every_reduction,
    gradients,
    make,
    twin,
)
from torch import nn

from lmtime.config import AdaptiveSoftmaxConfig
from lmtime.errors import UsageError
from lmtime.softmax import AdaptiveSoftmax, TorchAdaptiveSoftmax

pytestmark = pytest.mark.usefixtures("one_thread")

# How tensors lie


@every_reduction
@every_layer
def test_any_layout_of_the_tokens_is_read_as_it_is(name, reduction):
    """Case 16: one token, many dimensions, strides, and strides of 0."""
    layer, hidden, square = make(name, reduction=reduction), draws(12), torch.arange(12).view(3, 4)
    layouts = {
        "one": (hidden[5], torch.tensor(9)),
        "four dimensions": (hidden.view(2, 1, 3, 2, WIDTH), square.view(2, 1, 3, 2)),
        "transposed": (hidden.view(4, 3, WIDTH).transpose(0, 1), square.T.contiguous().T),
        "every other": (hidden[::2], torch.arange(12)[::2]),
        "wide": (torch.cat([hidden, hidden], 1)[:, 3 : 3 + WIDTH], torch.arange(12)),
        "one hidden state": (hidden[:1].expand(5, WIDTH), torch.arange(9, 14)),
        "one target": (hidden[:6].view(2, 3, WIDTH), torch.tensor([[9], [3]]).expand(2, 3)),
    }
    for rows, targets in layouts.values():
        out, wanted = layer(rows, targets), twin(layer, rows, targets)
        assert out.nll.shape == targets.shape == layer.predict(rows).shape
        assert out.loss.shape == (targets.shape if reduction == "none" else ())
        assert_same(out.loss.flatten(), wanted.flatten())
        pair = (gradients(x.sum(), hidden, layer) for x in (out.loss, wanted))
        assert_same(*pair)
        log_prob = layer.log_prob(rows)
        assert_same(log_prob.gather(-1, targets[..., None])[..., 0], -out.nll)


@pytest.mark.parametrize("n_words, cutoffs", [(2, [1]), (9, [1]), (9, [8]), (9, [1, 2, 8, 9])])
@pytest.mark.parametrize("kind", [AdaptiveSoftmax, TorchAdaptiveSoftmax])
def test_the_smallest_bands_are_bands(n_words, cutoffs, kind):
    """Case 14: cutoffs of any type of whole number."""
    given = (cutoffs, torch.tensor(cutoffs), torch.tensor(cutoffs).numpy(), map(float, cutoffs))
    for some in given:
        layer = kind(AdaptiveSoftmaxConfig(WIDTH, n_words, tuple(some), 1.5)).double()
        hidden, targets = draws(n_words), torch.arange(n_words)
        found, wanted = layer(hidden, targets).loss, twin(layer, hidden, targets)
        assert_same(found, wanted)
        assert_same(gradients(found, hidden, layer), gradients(wanted, hidden, layer))


@every_layer
def test_copies_are_the_same_layer(name):
    layer, hidden = make(name, weight=WEIGHT, ignore_index=5, label_smoothing=0.1), draws(11)
    wanted = layer(hidden, WORDS)
    restored = LAYERS[name](weight=torch.ones(N_WORDS), ignore_index=5, label_smoothing=0.1)
    restored = restored.double()
    restored.load_state_dict(layer.state_dict())
    with torch.device("meta"):
        later = make(name, weight=WEIGHT, ignore_index=5, label_smoothing=0.1)
    later.to_empty(device="cpu").load_state_dict(layer.state_dict())
    for other in (copy.deepcopy(layer), restored, later):
        assert_same(other(hidden, WORDS), wanted)


# Numbers of few bits, and large ones


@pytest.mark.parametrize("scale", [1e4, 1e8])
@every_layer
def test_large_scores_lose_no_target(name, scale):
    """The sum of exponentials and the score of the target must not cancel."""
    layer = make(name, reduction="none", dtype=torch.float32)
    hidden = (scale * draws(11)).float().detach().requires_grad_()
    loss = layer(hidden, WORDS).loss
    exact = copy.deepcopy(layer).double()
    wanted = twin(exact, hidden.double(), WORDS)
    torch.testing.assert_close(loss.double(), wanted, rtol=1e-5, atol=1e-6 * scale)
    assert (loss >= 0).all()
    assert all(grad.isfinite().all() for grad in gradients(loss.sum(), hidden, layer))


@pytest.mark.parametrize("name", ["adaptive", "folded", "fixed shapes", "full", "chunked"])
def test_a_score_of_minus_infinity_is_a_word_that_never_comes(name):
    """Case 12: only its own loss is infinite, and no number is nan."""
    layer, hidden = make(name, reduction="none"), draws(N_WORDS)
    layer.head.bias.data[3] = -math.inf
    targets = torch.arange(N_WORDS)
    out, wanted = layer(hidden, targets), twin(layer, hidden, targets)
    assert_same(out.loss, wanted)
    assert out.loss.isinf().nonzero().tolist() == [[3]]
    pair = (gradients(x[targets != 3].sum(), hidden, layer) for x in (out.loss, wanted))
    assert_same(*pair)
    assert (layer.predict(hidden) != 3).all()


TYPES = (torch.float64, torch.float32, torch.bfloat16, torch.float16)


@pytest.mark.parametrize("autocast", [None, torch.bfloat16, torch.float16])
@every_layer
def test_any_types_of_weights_and_input_come_out_in_fp32_at_least(name, autocast):
    """Case 6: each pair of types, and an autocast leaves fp64 alone."""
    exact = make(name)
    for own, given in itertools.product(TYPES, TYPES):
        layer = copy.deepcopy(exact).to(own)
        hidden = draws(11).detach().to(given).requires_grad_()
        with torch.autocast("cpu", dtype=autocast, enabled=autocast is not None):
            out, log_prob = layer(hidden, WORDS), layer.log_prob(hidden)
        least = torch.promote_types(own, torch.float32)
        assert out.nll.dtype == out.loss.dtype == log_prob.dtype == least
        wanted = twin(copy.deepcopy(layer).double(), hidden.double(), WORDS)
        error = {8: 1e-11, 4: 1e-5, 2: 2e-2}[own.itemsize]
        if given.itemsize < 8 and own.itemsize == 8:
            error = 1e-9
        if autocast is not None and own.itemsize < 8:
            error = 2e-2
        torch.testing.assert_close(out.loss.double(), wanted, rtol=0, atol=error)
        grads = gradients(out.loss, hidden, layer)
        for tensor, grad in zip((hidden, *layer.parameters()), grads, strict=True):
            assert grad.dtype == tensor.dtype and grad.isfinite().all()


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
@every_layer
def test_sums_over_many_tokens_are_beyond_the_range_of_16_bits(name, dtype):
    """Sums and weighted means: 65,504 is the largest fp16, and 257 is no bf16."""
    hidden, targets = torch.zeros(30_011, WIDTH, dtype=dtype), torch.arange(30_011) % N_WORDS
    for reduction in ("sum", "mean"):
        layer = make(name, dtype=dtype, reduction=reduction, weight=WEIGHT + 0.5)
        layer.min_rows = 4096  # of a layer in chunks
        exact = copy.deepcopy(layer).double()
        wanted = twin(exact, hidden.double(), targets)
        found = layer(hidden, targets).loss
        torch.testing.assert_close(found.double(), wanted, rtol=2e-3, atol=0)


@every_layer
def test_weights_of_words_take_the_type_of_the_losses(name):
    for weight in (WEIGHT.double(), WEIGHT.half(), torch.arange(N_WORDS)):
        layer = LAYERS[name](weight=weight)
        out = layer(draws(11).float(), WORDS)
        assert out.loss.dtype == out.nll.dtype == torch.float32


# Mistakes


@every_layer
def test_what_cannot_be_is_said_in_one_sentence(name):
    layer, words = make(name), torch.tensor([1, 2])
    calls = {
        r"weight of shape \(3,\) must be \(17,\), one a word": lambda: make(name, weight=[1, 2, 3]),
        "ignore_index=None must be a whole number": lambda: make(name, ignore_index=None),
        "ignore_index=1.5 must be a whole number": lambda: make(name, ignore_index=1.5),
        "of 64 bits": lambda: make(name, ignore_index=2**63),
        "targets are a list and must be torch.int64": lambda: layer(draws(2), [1, 2]),
        r"of shape \(\) and torch.float64 must be": lambda: layer(draws(1)[0, 0], words[0]),
        "torch.int64 must be .* floating-point": lambda: layer(draws(2).long(), words),
    }
    for message, call in calls.items():
        with pytest.raises(UsageError, match=message):
            call()


def test_plans_and_capacities_exclude_each_other_and_fit_the_layer():
    layer, hidden = make("adaptive"), draws(11)
    plan, other = layer.plan(WORDS), AdaptiveSoftmaxConfig(WIDTH, N_WORDS, (5,), 2.0)
    with pytest.raises(UsageError, match="give one of them"):
        layer(hidden, WORDS, plan=plan, capacity=(11, 11))
    with pytest.raises(UsageError, match="plan of 11 tokens and 1 tails"):
        layer(hidden, WORDS, plan=AdaptiveSoftmax(other).plan(WORDS))
    for capacity in (11, (2.5, 11), torch.tensor([11, 11])):
        with pytest.raises(UsageError, match="must be 2 numbers of rows"):
            layer(hidden, WORDS, capacity=capacity)


@pytest.mark.parametrize("own", [{}, {"head_bias": True}, {"tail_bias": True}])
@pytest.mark.parametrize("bias", [False, True])
def test_biases_that_torch_has_not_start_at_zero(bias, own):
    theirs = nn.AdaptiveLogSoftmaxWithLoss(WIDTH, N_WORDS, [5, 9], 2.0, head_bias=bias).double()
    layer = AdaptiveSoftmax.from_torch(theirs, ignore_index=4, **own)
    assert_same(layer.log_prob(draws(11)), theirs.log_prob(draws(11)))
