"""Every law of an output layer for every layer, against its probabilities in float64.

Each test is a kind of mistake that public implementations made; the numbers are those of the cases
it began with. A layer enters by a row of `LAYERS`.
"""

import copy
import itertools
import math
from unittest import mock

import pytest
import torch
import torch.nn.functional as F
from probabilities import log_prob_of
from torch import nn

from lmtime.config import AdaptiveSoftmaxConfig
from lmtime.errors import UsageError
from lmtime.softmax import (
    AdaptiveSoftmax,
    ChunkedSoftmax,
    ClassSoftmax,
    FullSoftmax,
    SampledSoftmax,
    TorchAdaptiveSoftmax,
    fused,
)

pytestmark = pytest.mark.usefixtures("one_thread")

WIDTH, N_WORDS = 8, 17
CONFIG = AdaptiveSoftmaxConfig(WIDTH, N_WORDS, (5, 9), 2.0)


class FixedShapes(AdaptiveSoftmax):
    """As it is compiled: with room for all tokens in each tail."""

    def forward(self, hidden, targets):
        return super().forward(hidden, targets, capacity=(hidden.numel(),) * 2)


class Folded(AdaptiveSoftmax):
    """As where the scores are many: they are dropped in the forward pass."""

    def forward(self, hidden, targets):
        with mock.patch.object(fused, "FOLD_ABOVE", -1):
            return super().forward(hidden, targets)


LAYERS = {
    "torch's adaptive": lambda **o: TorchAdaptiveSoftmax(CONFIG, **o),
    "adaptive": lambda **o: AdaptiveSoftmax(CONFIG, head_bias=True, tail_bias=True, **o),
    "folded": lambda **o: Folded(CONFIG, head_bias=True, tail_bias=True, **o),
    "fixed shapes": lambda **o: FixedShapes(CONFIG, head_bias=True, tail_bias=True, **o),
    "full": lambda **o: FullSoftmax(WIDTH, N_WORDS, bias=True, **o),
    "chunked": lambda **o: ChunkedSoftmax(
        WIDTH, N_WORDS, bias=True, memory_bytes=1, min_rows=3, **o
    ),
    "classes": lambda **o: ClassSoftmax(WIDTH, N_WORDS, bias=True, **o),
    "sampled": lambda **o: SampledSoftmax(WIDTH, N_WORDS, bias=True, n_samples=3, **o).eval(),
}
every_layer = pytest.mark.parametrize("name", LAYERS)
every_reduction = pytest.mark.parametrize("reduction", ["mean", "sum", "none"])

WORDS = torch.tensor([0, 4, 5, 8, 9, 16, 14, 2, 13, 0, 7])  # the ends of all bands
WEIGHT = torch.arange(N_WORDS) % 4 / 2.0  # some are 0, those of words 0 and 4 too


def make(name, *, dtype=torch.float64, **options):
    torch.manual_seed(7)
    return LAYERS[name](**options).to(dtype)


def draws(*shape, dtype=torch.float64):
    generator = torch.Generator().manual_seed(3)
    hidden = torch.randn(*shape, WIDTH, generator=generator, dtype=torch.float64)
    return hidden.to(dtype).requires_grad_()


def twin(layer, hidden, targets, **options):
    """Cross-entropy of the probabilities, written out; options may differ from the layer's."""
    own = dict(reduction=layer.loss.reduction, ignore_index=layer.loss.ignore_index)
    own |= dict(weight=layer.weight, label_smoothing=layer.loss.label_smoothing)
    log_prob = log_prob_of(layer, hidden.reshape(-1, WIDTH))
    return F.cross_entropy(log_prob, targets.reshape(-1), **own | options)


def gradients(loss, hidden, layer):
    inputs = [x for x in (hidden, *layer.parameters()) if x.requires_grad]
    return torch.autograd.grad(loss, inputs, retain_graph=True, materialize_grads=True)


def assert_same(found, wanted):
    torch.testing.assert_close(found, wanted, rtol=1e-9, atol=1e-11, equal_nan=True)


# What a token counts


@every_reduction
@every_layer
def test_any_options_together_are_those_of_cross_entropy(name, reduction):
    """Cases 1, 2, 8, 12, 19: an ignored id may be a word of any band or none."""
    ids, smoothings = (-100, -7, 0, 5, 13, N_WORDS, 10**9), (0.0, 0.1, 1.0)
    for ignored, smoothing, weight in itertools.product(ids, smoothings, (None, WEIGHT)):
        options = dict(ignore_index=ignored, label_smoothing=smoothing, weight=weight)
        layer, hidden = make(name, reduction=reduction, **options), draws(len(WORDS))
        targets = WORDS.clone()
        targets[3] = ignored
        found, wanted = layer(hidden, targets), twin(layer, hidden, targets)
        assert_same(found.loss, wanted)
        plain = dict(weight=None, label_smoothing=0.0, reduction="none")
        assert_same(found.nll, twin(layer, hidden, targets, **plain))
        upstream = torch.arange(wanted.numel()).reshape(wanted.shape) if wanted.dim() else -3.0
        grads = gradients((upstream * found.loss).sum(), hidden, layer)
        assert_same(grads, gradients((upstream * wanted).sum(), hidden, layer))
        assert not grads[0][targets == ignored].any(), "exactly 0"


NOTHING = {"ignored": torch.full((4,), -100), "no token": torch.zeros(0, dtype=torch.int64)}
NOTHING["no weight"] = torch.tensor([0, 16, 8, 0])


@pytest.mark.parametrize("smoothing", [0.0, 0.1])
@pytest.mark.parametrize("case", NOTHING)
@every_reduction
@every_layer
def test_where_nothing_counts_no_gradient_is_nan(name, reduction, case, smoothing):
    """Cases 3 and 4: the mean may be; a smoothed token without weight counts in sums alone."""
    targets = NOTHING[case]
    layer = make(name, reduction=reduction, label_smoothing=smoothing, weight=WEIGHT)
    hidden = draws(len(targets))
    loss = layer(hidden, targets).loss
    assert_same(loss, twin(layer, hidden, targets))
    grads = gradients(loss.sum(), hidden, layer)
    if case == "no weight" and smoothing and reduction != "mean":
        assert_same(grads, gradients(twin(layer, hidden, targets).sum(), hidden, layer))
    else:
        assert not any(grad.any() for grad in grads)


@pytest.mark.parametrize("only", [(0, 4), (5, 8), (9, 16)])
@pytest.mark.parametrize("name", [name for name in LAYERS if name != "torch's adaptive"])
def test_what_no_target_meets_has_a_gradient_of_zeros_not_none(name, only):
    """Case 4: all in one band; DistributedDataParallel waits for every parameter."""
    layer, targets = make(name), torch.tensor(only)
    layer(draws(2), targets).loss.backward()
    wanted = copy.deepcopy(layer)
    twin(wanted, draws(2), targets).backward()
    for found, right in zip(layer.parameters(), wanted.parameters(), strict=True):
        right = torch.zeros_like(found) if right.grad is None else right.grad
        assert_same(found.grad - right, torch.zeros_like(right))


@pytest.fixture
def one_process(tmp_path):
    store = torch.distributed.FileStore(str(tmp_path / "store"), 1)
    torch.distributed.init_process_group("gloo", store=store, rank=0, world_size=1)
    yield
    torch.distributed.destroy_process_group()


def test_data_parallel_steps_go_on_where_bands_are_empty(one_process):
    """Case 4: DistributedDataParallel refuses a second step while a gradient is missing."""
    for name in ("adaptive", "folded", "full", "chunked", "classes"):
        layer, alone = make(name), make(name)
        parallel = nn.parallel.DistributedDataParallel(layer)
        for targets in (torch.tensor([0, 4]), torch.tensor([16, 9]), torch.tensor([-100] * 2)):
            for model in (parallel, alone):
                model(draws(2), targets).loss.backward()
        for found, wanted in zip(layer.parameters(), alone.parameters(), strict=True):
            assert_same(found.grad, wanted.grad)


@pytest.mark.parametrize("smoothing", [0.0, 0.1])
@pytest.mark.parametrize("bad", [-100, -1, -6, N_WORDS, N_WORDS + 3, 2**40, -(2**62)])
@every_layer
def test_what_is_neither_word_nor_ignored_is_an_error(name, bad, smoothing):
    """Case 23: -100 too, where another id is ignored."""
    layer = make(name, ignore_index=-7, label_smoothing=smoothing)
    for targets in ([bad], [3, bad, -7], [bad, 16, 9]):
        with pytest.raises((IndexError, RuntimeError)):
            layer(draws(len(targets)), torch.tensor(targets))


# What backward passes find


@pytest.mark.parametrize("smoothing", [0.0, 0.1])
@every_reduction
@every_layer
def test_gradients_come_again_add_up_and_mix(name, reduction, smoothing):
    """Cases 8 and 21: twice through a graph, two batches, `nll` beside `loss`, hidden twice."""
    layer, hidden = (
        make(name, reduction=reduction, weight=WEIGHT, label_smoothing=smoothing),
        draws(11),
    )
    plain = dict(weight=None, label_smoothing=0.0, reduction="none")
    other, turned = torch.tensor([9] * 11), hidden.flip(0)

    def total(run, run_nll):
        loss = run(hidden, WORDS).sum() + 0.3 * run(turned, other).sum()
        return loss - (torch.arange(11) * run_nll(hidden, WORDS)).sum()

    found = total(lambda h, t: layer(h, t).loss, lambda h, t: layer(h, t).nll)
    wanted = total(lambda h, t: twin(layer, h, t), lambda h, t: twin(layer, h, t, **plain))
    out = layer(hidden, WORDS)
    together = found - found.detach() + 0 * out.loss.sum() + 2 * out.nll.sum()
    also = wanted + 2 * twin(layer, hidden, WORDS, **plain).sum()
    loss, right = (3 * x.sum() for x in (out.loss, twin(layer, hidden, WORDS)))
    pairs = ((loss, right), (found, wanted), (loss, right), (together, also), (found, wanted))
    for a, b in pairs:
        assert_same(gradients(a, hidden, layer), gradients(b, hidden, layer))
    found.backward()
    assert_same(hidden.grad, gradients(wanted, hidden, layer)[0])
    with pytest.raises(RuntimeError, match="second time"):
        found.backward()


@every_layer
def test_gradients_are_differences_of_the_loss_and_differ_once_or_not_at_all(name):
    """Undefined gradients too. A second derivative is right or an error, never a constant."""
    layer, hidden = make(name, label_smoothing=0.1), draws(4)
    inputs = (hidden, *layer.parameters())
    run = lambda hidden, *_: layer(hidden, WORDS[3:7]).loss  # noqa: E731
    assert torch.autograd.gradcheck(run, inputs, fast_mode=True)
    layer = make(name)
    try:
        loss = layer(hidden, WORDS[3:7]).loss
        grad = torch.autograd.grad(loss, hidden, create_graph=True)[0]
        found = torch.autograd.grad(loss + grad.square().sum(), hidden)[0]
    except (RuntimeError, UsageError):
        return
    loss = twin(layer, hidden, WORDS[3:7])
    grad = torch.autograd.grad(loss, hidden, create_graph=True)[0]
    assert_same(found, torch.autograd.grad(loss + grad.square().sum(), hidden)[0])


@every_layer
def test_what_is_frozen_has_no_gradient_and_changes_no_other(name):
    layer, hidden = make(name, label_smoothing=0.1), draws(11)
    learn = [hidden, *layer.parameters()]
    wanted = gradients(layer(hidden, WORDS).loss, hidden, layer)
    for i in range(-1, len(learn)):  # all but one, and one alone
        for alone in (False, True):
            for k, tensor in enumerate(learn):
                tensor.requires_grad_((k == i) == alone)
            if any(tensor.requires_grad for tensor in learn):
                found = gradients(layer(hidden, WORDS).loss, hidden, layer)
                kept = [w for w, t in zip(wanted, learn, strict=True) if t.requires_grad]
                assert_same(list(found), kept)


@every_reduction
@every_layer
def test_without_gradients_the_numbers_are_the_same(name, reduction):
    layer, hidden = make(name, reduction=reduction, weight=WEIGHT, label_smoothing=0.1), draws(11)
    wanted = layer(hidden, WORDS)
    for context in (torch.no_grad, torch.inference_mode):
        with context():
            found, log_prob = layer(hidden, WORDS), layer.log_prob(hidden)
        assert not found.loss.requires_grad and not found.nll.requires_grad
        assert_same(found, wanted)
        assert_same(log_prob, log_prob_of(layer, hidden))
    assert_same(layer(hidden.detach(), WORDS), wanted)


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
