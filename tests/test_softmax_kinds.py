"""Every law of an output layer for every layer, against its probabilities in float64.

Each test is a kind of mistake that public implementations made; the numbers are those of the cases
it began with. A layer enters by a row of `LAYERS`.
"""

import copy
import itertools

import pytest
import torch
from layer_rows import (
    LAYERS,
    N_WORDS,
    WEIGHT,
    WORDS,
    assert_same,
    draws,
    every_layer,
    every_reduction,
    gradients,
    make,
    twin,
)
from probabilities import log_prob_of
from torch import nn

from lmtime.errors import UsageError

pytestmark = pytest.mark.usefixtures("one_thread")

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
