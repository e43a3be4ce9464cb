"""What the fused adaptive softmax does and keeps: operators, waits, products, memory."""

import copy
import math

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode

from lmtime.config import AdaptiveSoftmaxConfig
from lmtime.cost import folding
from lmtime.errors import UsageError
from lmtime.softmax import AdaptiveSoftmax, TorchAdaptiveSoftmax
from lmtime.timing.kinds import SYNCS, does_work

pytestmark = pytest.mark.usefixtures("one_thread")

CONFIG = AdaptiveSoftmaxConfig(32, 300, (20, 60), 2.0)
TARGETS = torch.tensor([3, 250, 30, 19, 20, 299, 60, 59, 0, 0])  # 4, 3 and 3 of a band


class Operators(TorchDispatchMode):
    """Names of the operators that do work, and (rows, inner, columns) of matrix products."""

    def __init__(self):
        super().__init__()
        self.names, self.products = [], []

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        name = func._schema.name
        if does_work(name):
            self.names.append(name)
        if name == "aten::mm":
            self.products.append((*args[0].shape, args[1].shape[1]))
        if name == "mkldnn::_linear_pointwise":
            self.products.append((*args[0].shape, args[1].shape[0]))
        return func(*args, **(kwargs or {}))


def step(layer, targets=TARGETS, *, learns=True, **options):
    """Operators of the forward and of the backward pass; `learns`: of the hidden states."""
    hidden = torch.randn(len(targets), 32, requires_grad=learns)
    with Operators() as forward:
        loss = layer(hidden, targets, **options).loss
    with Operators() as backward:
        loss.backward()
    return forward, backward


def waits(operators):
    return sum(name in SYNCS for name in operators.names)


@pytest.mark.parametrize("ignore_index", [-100, 0, 299])
def test_a_step_waits_once_and_with_a_plan_never(ignore_index):
    layer = AdaptiveSoftmax(CONFIG, ignore_index=ignore_index, weight=torch.ones(300))
    assert [waits(ops) for ops in step(layer, plan=layer.plan(TARGETS))] == [0, 0]
    with Operators() as planning:
        layer.plan(TARGETS)
    reads = [name for name in planning.names if name in SYNCS or name == "aten::searchsorted"]
    assert reads == ["aten::searchsorted"], "its result is read once, as a list"
    assert sum(map(waits, step(TorchAdaptiveSoftmax(CONFIG)))) >= 3


def test_a_step_is_few_operators():
    """Views aside."""
    layer = AdaptiveSoftmax(CONFIG)
    assert [len(ops.names) for ops in step(layer, plan=layer.plan(TARGETS))] == [28, 20]
    with Operators() as planning:
        layer.plan(TARGETS)
    assert len(planning.names) == 5
    found = sum(len(ops.names) for ops in step(TorchAdaptiveSoftmax(CONFIG)))
    assert found > 5 + 28 + 20


def test_only_tokens_of_a_cluster_meet_it_and_ignored_ones_do_not():
    forward, backward = step(AdaptiveSoftmax(CONFIG, ignore_index=299))
    head = [(10, 32, 22)]
    assert forward.products == [*head, (3, 32, 16), (3, 16, 40), (2, 32, 8), (2, 8, 240)]
    assert len(backward.products) == 2 * len(forward.products)


def test_what_needs_no_gradient_is_not_computed():
    layer = AdaptiveSoftmax(CONFIG)
    _, backward = step(layer, learns=False)
    assert len(backward.products) == 2 * 5 - 3, "neither the head's nor the tails' input"
    layer.requires_grad_(False)
    _, backward = step(layer)
    assert len(backward.products) == 5
    layer.requires_grad_(True)
    with torch.no_grad(), Operators() as forward:
        layer(torch.randn(10, 32), TARGETS)
    assert not any(name.startswith(("aten::scatter", "aten::expm1")) for name in forward.names)


def test_a_cluster_that_nothing_hits_has_a_gradient_of_zeros():
    """Case 4: and no product."""
    layer = AdaptiveSoftmax(CONFIG, tail_bias=True)
    forward, backward = step(layer, torch.tensor([0, 5, 30]))
    assert len(forward.products) == 3 and len(backward.products) == 6
    missed, hit = layer.tails[1], layer.tails[0]
    assert all(torch.equal(p.grad, torch.zeros_like(p)) for p in missed.parameters())
    assert all(p.grad.any() for p in hit.parameters())


def kept_bytes(layer, hidden, targets):
    """What the graph keeps for the backward pass beside the weights and the hidden states."""
    found, own = {}, {p.untyped_storage().data_ptr() for p in (hidden, *layer.parameters())}

    def keep(tensor):
        storage = tensor.untyped_storage()
        found[storage.data_ptr()] = storage.nbytes()
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(keep, lambda tensor: tensor):
        loss = layer(hidden, targets).loss
    del loss
    return sum(n for pointer, n in found.items() if pointer not in own)


def line(n_entries):
    """fp32 values of a row of scores that ends on a cache line."""
    return 16 * math.ceil(n_entries / 16)


def test_the_scores_are_kept_once():
    hidden = torch.randn(500, 32, requires_grad=True)
    targets = torch.randint(300, (500,), generator=torch.Generator().manual_seed(1))
    layer = AdaptiveSoftmax(CONFIG)
    counts = layer.plan(targets).counts
    tails = zip(counts, CONFIG.tail_sizes, CONFIG.tail_dims, strict=True)
    values = 500 * line(22) + 500
    values += sum(n * (32 + width + line(size) + 1) for n, size, width in tails)
    assert kept_bytes(layer, hidden, targets) <= 4 * values + 8 * 500 * 3


@pytest.mark.parametrize(("dtype", "allowed"), [(torch.float32, 1e-5), (torch.bfloat16, 4e-2)])
def test_rows_taken_at_once_change_nothing(dtype, allowed, monkeypatch):
    """Case 9: 101 rows, a prime, in many pieces and all at once."""
    layer, found = AdaptiveSoftmax(CONFIG, reduction="sum").to(dtype), []
    hidden = torch.randn(101, 32).to(dtype).requires_grad_()
    targets = torch.randint(300, (101,))
    monkeypatch.setattr(folding, "KEPT_AT_MOST", -1)
    monkeypatch.setattr(folding, "WEIGHTS_PER_SCORE", 2**60)
    n_operators = []
    for n_scores in (1, 2**30):
        monkeypatch.setitem(folding.SCORES_AT_ONCE, "cpu", (n_scores, n_scores))
        with Operators() as operators:
            loss = layer(hidden, targets).loss
        n_operators.append(len(operators.names))
        found.append([loss, *torch.autograd.grad(loss, [hidden, *layer.parameters()])])
    assert n_operators[0] > n_operators[1], "pieces are many, and one a band"
    torch.testing.assert_close(*found, rtol=allowed, atol=allowed)


def test_a_plan_is_of_these_targets():
    layer = AdaptiveSoftmax(CONFIG)
    with pytest.raises(UsageError, match="a plan of 9 tokens and 2 tails is not one of 10 and 2"):
        layer(torch.randn(10, 32), TARGETS, plan=layer.plan(TARGETS[:9]))
    with pytest.raises(UsageError, match=r"targets are torch\.int32"):
        layer.plan(TARGETS.int())
    plan = layer.plan(TARGETS.reshape(2, 5))
    assert (plan.counts, plan.n_tokens, plan.n_kept) == ((3, 3), 10, 10)
    assert plan.fits((3, 3)) and not plan.fits((3, 2))
    assert plan.rows.tolist() == [4, 2, 7, 6, 1, 5], "by cluster"
    entries, words = plan.targets[:, 0].split([10, 6])
    assert words.tolist() == [0, 10, 39, 0, 190, 239]
    assert entries.tolist() == [3, 21, 20, 19, 20, 21, 21, 20, 0, 0]


@pytest.mark.parametrize("bad", [300, -1, -5, 10**12])
def test_a_plan_refuses_what_is_no_word(bad):
    """Case 23: while it is made, on whatever device."""
    layer = AdaptiveSoftmax(CONFIG, ignore_index=-2)
    with pytest.raises(IndexError, match=r"they must lie between 0 and 299 or be ignored \(-2\)"):
        layer.plan(torch.tensor([1, -2, bad]))


def test_a_compiled_layer_gives_what_the_eager_one_gives():
    """Also where the counts of the clusters change from batch to batch."""
    torch.manual_seed(0)
    layer = AdaptiveSoftmax(CONFIG)
    compiled = torch.compile(layer, backend="eager")
    for targets in (TARGETS, TARGETS.flip(0)[:7], torch.arange(10)):
        hidden = torch.randn(len(targets), 32, requires_grad=True)
        losses = [f(hidden, targets).loss for f in (layer, compiled)]
        eager, found = [torch.autograd.grad(loss, hidden)[0] for loss in losses]
        assert torch.equal(*losses) and torch.equal(eager, found)


def test_a_copy_looks_words_up_on_its_own_device(tmp_path):
    layer = AdaptiveSoftmax(CONFIG)
    layer.plan(TARGETS)
    torch.save(layer, path := tmp_path / "layer.pt")
    for copied in (torch.load(path, map_location="meta", weights_only=False), copy.deepcopy(layer)):
        assert copied._lookups == {} and layer._lookups
        assert torch.equal(copied.plan(TARGETS).targets, layer.plan(TARGETS).targets)
