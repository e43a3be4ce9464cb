"""Laws of the fused adaptive softmax: any shape against its plain twin, precision, work, waits."""

import pytest
import torch
import torch.nn.functional as F
from hypothesis import given, settings
from hypothesis import strategies as st
from probabilities import log_prob_of
from torch import nn

from lmtime.config import AdaptiveSoftmaxConfig
from lmtime.errors import UsageError
from lmtime.softmax import AdaptiveSoftmax, TorchAdaptiveSoftmax, band_shapes

pytestmark = pytest.mark.usefixtures("one_thread")


def tables(config):
    return [nn.Parameter(draws(8, *shape)) for shape in band_shapes(config)]


def draws(seed, *shape, dtype=torch.float64):
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(shape, generator=generator, dtype=dtype)


def gradients(loss, hidden, layer):
    """None is an error: every parameter takes part."""
    return torch.autograd.grad(loss, [hidden, *layer.parameters()], retain_graph=True)


def assert_same(found, wanted):
    torch.testing.assert_close(found, wanted, rtol=1e-10, atol=1e-12)


# Any shape and any targets


@st.composite
def configs(draw):
    n_words, width = draw(st.integers(2, 30)), draw(st.integers(3, 9))
    cutoffs = draw(st.sets(st.integers(1, n_words - 1), min_size=1, max_size=4))
    shared = draw(st.none() | st.integers(2, width - 1))
    inside = shared or width
    widths = st.lists(st.integers(1, inside + 2), min_size=len(cutoffs), max_size=len(cutoffs))
    return AdaptiveSoftmaxConfig(
        width,
        n_words,
        tuple(sorted(cutoffs)),
        div_value=1.1,
        tail_widths=draw(widths),
        head_rank=draw(st.none() | st.integers(1, inside - 1)),
        shared_rank=shared,
    )


@st.composite
def cases(draw):
    config = draw(configs())
    n_tokens = draw(st.sampled_from([0, 1, 2, 7, 13]))
    band = draw(st.sampled_from(range(len(config.cutoffs) + 1)) | st.none())
    ends = (0, *config.cutoffs, config.vocab_size)
    low, high = (0, config.vocab_size) if band is None else ends[band : band + 2]
    word = st.integers(low, high - 1)  # of any band, or all of one
    options = dict(
        ignore_index=draw(st.sampled_from([-100, 0, 1, config.vocab_size - 1, 255])),
        reduction=draw(st.sampled_from(["mean", "sum", "none"])),
        label_smoothing=draw(st.sampled_from([0.0, 0.2])),
    )
    if draw(st.booleans()):
        word |= st.just(options["ignore_index"])
    targets = draw(st.lists(word, min_size=n_tokens, max_size=n_tokens))
    own = dict(head_bias=draw(st.booleans()), tail_bias=draw(st.booleans()))
    own["words"] = tables(config) if draw(st.booleans()) else None
    if draw(st.booleans()):
        options["weight"] = 0.1 + draws(1, config.vocab_size).abs()
    return config, torch.tensor(targets, dtype=torch.int64), own, options


@settings(deadline=None, max_examples=60)
@given(cases())
def test_any_shape_and_any_targets_give_the_loss_and_gradients_of_the_plain_twin(case):
    config, targets, own, options = case
    layer = AdaptiveSoftmax(config, **own, **options).double()
    hidden = draws(2, len(targets), config.hidden_size).requires_grad_()
    out, log_prob = layer(hidden, targets), log_prob_of(layer, hidden)
    wanted = F.cross_entropy(log_prob, targets, **options)
    torch.testing.assert_close(out.loss, wanted, rtol=1e-10, atol=1e-12, equal_nan=True)
    ignored = F.nll_loss(log_prob, targets, ignore_index=options["ignore_index"], reduction="none")
    assert_same(out.nll, ignored)
    assert_same(layer.log_prob(hidden), log_prob)
    each = draws(3, *out.loss.shape)  # what arrives differs from token to token
    if wanted.isfinite().all():
        assert_same(
            gradients((each * out.loss).sum(), hidden, layer),
            gradients((each * wanted).sum(), hidden, layer),
        )


def test_gradients_of_a_tied_layer_reach_the_tables_of_the_other_layer():
    config = AdaptiveSoftmaxConfig(8, 20, (5, 10), 2.0)
    words = tables(config)
    layer = AdaptiveSoftmax(config, words=words).double()
    assert layer.head.words.weight is words[0]
    layer(draws(1, 3, 8), torch.tensor([1, 6, 19])).loss.backward()
    assert all(table.grad.any() for table in words)
    with pytest.raises(UsageError, match=r"must be \[\(5, 8\), \(5, 4\), \(10, 2\)\]"):
        AdaptiveSoftmax(config, words=words[::-1])


def test_weights_are_refused_that_are_not_one_a_word():
    with pytest.raises(UsageError, match=r"weight of shape \(19,\) must be \(20,\)"):
        AdaptiveSoftmax(AdaptiveSoftmaxConfig(8, 20, (5,)), weight=torch.ones(19))


# torch's layer


@pytest.mark.parametrize("head_bias", [False, True])
def test_torchs_layer_becomes_this_one_and_back_with_the_same_numbers(head_bias):
    module = nn.AdaptiveLogSoftmaxWithLoss(16, 40, [5, 12, 30], 2.0, head_bias=head_bias).double()
    layer = AdaptiveSoftmax.from_torch(module, reduction="sum")
    hidden, targets = draws(1, 9, 16), torch.arange(0, 36, 4)
    assert_same(layer(hidden, targets).nll, -module(hidden, targets).output)
    assert_same(layer.log_prob(hidden), module.log_prob(hidden))
    again = layer.to_torch().state_dict()
    assert again.keys() == module.state_dict().keys()
    assert all(torch.equal(again[name], found) for name, found in module.state_dict().items())
    with torch.no_grad():
        layer.head.words.weight.zero_()
    assert module.head.weight.any(), "copies"


def test_tied_words_become_torchs_head():
    config = AdaptiveSoftmaxConfig(8, 20, (5, 10), 2.0)
    layer = AdaptiveSoftmax(config, words=tables(config)).double()
    hidden = draws(1, 4, 8)
    assert_same(layer.to_torch().log_prob(hidden), layer.log_prob(hidden))


@pytest.mark.parametrize("shape", [{"tail_widths": (3,)}, {"head_rank": 2}, {"shared_rank": 4}])
def test_what_torch_cannot_have_does_not_become_torchs(shape):
    config = AdaptiveSoftmaxConfig(8, 20, (5,), **shape)
    for make in (TorchAdaptiveSoftmax, lambda c: AdaptiveSoftmax(c).to_torch()):
        with pytest.raises(UsageError, match="torch's adaptive softmax takes no tail_widths"):
            make(config)
    with pytest.raises(UsageError, match="tail_bias"):
        AdaptiveSoftmax(AdaptiveSoftmaxConfig(8, 20, (5,)), tail_bias=True).to_torch()


def test_weights_are_drawn_as_torch_draws_them():
    config, drawn = AdaptiveSoftmaxConfig(16, 40, (5, 12), 2.0), []
    for kind in (AdaptiveSoftmax, TorchAdaptiveSoftmax):
        torch.manual_seed(4)
        drawn.append(list(kind(config).parameters()))
    assert all(map(torch.equal, *drawn))


# Precision


@pytest.mark.parametrize("hidden_size", [64, 1024])
@pytest.mark.parametrize(
    ("scale", "fast_products", "allowed_times"),
    [(1.0, False, 1.15), (30.0, False, 1.15), (1.0, True, 3.0), (30.0, True, 8.0)],
)
@pytest.mark.parametrize(("n_tokens", "n_words"), [(301, 700), (64, 2_800)])
def test_fp32_errs_no_more_than_torch_does(
    n_tokens, n_words, scale, fast_products, allowed_times, hidden_size
):
    """At 30 many targets are all but certain or impossible; fast products may err more there."""
    torch.manual_seed(1)
    config = AdaptiveSoftmaxConfig(hidden_size, n_words, (n_words // 17, n_words // 3), 2.0)
    fast = AdaptiveSoftmax(config, fast_products=fast_products)
    hidden = scale * draws(1, n_tokens, hidden_size)
    targets = torch.randint(n_words, (n_tokens,))
    truth, plain = AdaptiveSoftmax(config).double(), TorchAdaptiveSoftmax(config)
    truth.load_state_dict(fast.state_dict())
    plain.layer.load_state_dict(fast.to_torch().state_dict())
    found = {}
    for name, layer in (("fast", fast), ("plain", plain), ("truth", truth)):
        own = hidden.to(next(layer.parameters()).dtype).requires_grad_()
        if name == "truth":
            nll = -log_prob_of(layer, own).gather(1, targets[:, None])[:, 0]
        else:
            nll = layer(own, targets).nll
        found[name] = [nll, *torch.autograd.grad(nll.mean(), [own, *layer.parameters()])]
    for fast, plain, truth in zip(*found.values(), strict=True):
        error, allowed = ((x.double() - truth).norm() for x in (fast, plain))
        assert error <= allowed_times * allowed + 1e-9 * truth.norm()


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_weights_of_16_bits_give_losses_of_32(dtype):
    config = AdaptiveSoftmaxConfig(32, 300, (40, 100), 2.0)
    layer = AdaptiveSoftmax(config, head_bias=True).to(dtype)
    hidden = draws(1, 50, 32).to(dtype).requires_grad_()
    targets = torch.arange(0, 300, 6)
    truth = AdaptiveSoftmax(config, head_bias=True).double()
    truth.load_state_dict(layer.state_dict())
    exact = hidden.detach().double().requires_grad_()
    out, wanted = layer(hidden, targets), truth(exact, targets)
    assert out.nll.dtype == out.loss.dtype == torch.float32
    torch.testing.assert_close(out.nll.double(), wanted.nll, rtol=0, atol=2e-2)
    pairs = zip(
        gradients(out.loss, hidden, layer), gradients(wanted.loss, exact, truth), strict=True
    )
    for found, right in pairs:
        assert found.dtype == dtype
        assert (found.double() - right).norm() <= 2e-2 * right.norm()


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_a_backward_pass_inside_an_autocast_is_the_one_outside(dtype):
    layer = AdaptiveSoftmax(AdaptiveSoftmaxConfig(16, 40, (5, 12), 2.0), head_bias=True)
    hidden, targets = draws(1, 9, 16, dtype=torch.float32).requires_grad_(), torch.arange(9) * 4
    plain = layer(hidden, targets).loss
    with torch.autocast("cpu", dtype=dtype):
        cast = layer(hidden, targets).loss
        inside = [gradients(loss, hidden, layer) for loss in (plain, cast)]
    outside = [gradients(loss, hidden, layer) for loss in (plain, cast)]
    for found, wanted in zip(inside, outside, strict=True):
        assert all(map(torch.equal, found, wanted))


# The head's entries


def test_the_clusters_prior_counts_once_and_is_its_own():
    """Case 18: -(log p(cluster) + log p(word | cluster)), with clusters in their order."""
    layer = AdaptiveSoftmax(AdaptiveSoftmaxConfig(8, 20, (5, 10, 14), 1.3)).double()
    hidden, targets = draws(1, 3, 8), torch.tensor([6, 12, 17])
    for i, (word, inside) in enumerate(zip(targets, (1, 2, 3), strict=True)):
        head, tail = layer.head(hidden)[i], layer.tails[i](hidden)[i]
        prior, share = head.softmax(0)[5 + i], tail.softmax(0)[inside]
        assert_same(layer(hidden, targets).nll[i], -(prior * share).log())
        assert word - (5, 10, 14)[i] == inside


def test_biases_move_the_probabilities_and_no_loss_is_negative():
    """Case 19."""
    config = AdaptiveSoftmaxConfig(8, 20, (5, 10), 2.0)
    layer = AdaptiveSoftmax(config, head_bias=True, tail_bias=True, reduction="none").double()
    with torch.no_grad():
        layer.head.bias.zero_()[6] = 30.0  # the second cluster, and its last word
        layer.tails[1].bias.zero_()[9] = 30.0
    hidden, targets = draws(1, 3, 8), torch.tensor([19, 18, 0])
    losses = layer(hidden, targets).loss
    assert (losses >= 0).all() and losses[0] < 1e-3
    assert (losses[1:] > 20).all()
    assert (layer.predict(hidden) == 19).all()
