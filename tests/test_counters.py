"""Laws of the counter: who owns what work, and what is done again.

Numbers in names of cases are those of the public mistakes they come from.
"""

import pytest
import torch
import torch.nn.functional as F
from counting import counted
from torch import nn
from torch.utils._python_dispatch import _get_current_dispatch_mode
from torch.utils.checkpoint import CheckpointFunction, checkpoint
from torch.utils.flop_counter import FlopCounterMode

from lmtime.timing import OUTSIDE, Ownership, region
from lmtime.timing.counters import count
from lmtime.timing.flops import Work

FP32 = 4  # bytes


# Layers and what they train at


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

    found = counted(step, model, {"layers": "layers"})
    once = 2 * 3 * 4 * 4
    forward, backward = (found.by_owner["layers", phase] for phase in ("forward", "backward"))
    assert (forward.flops, forward.recomputed_flops) == (2 * once, 0)
    assert (backward.flops, backward.recomputed_flops) == ((4 + n_again) * once, n_again * once)
    plain = counted(lambda: layers(x).sum().backward())
    assert found.total.model_flops == plain.total.model_flops == plain.total.flops == 6 * once


@pytest.mark.parametrize("use_reentrant", [False, True])
def test_a_checkpoint_in_a_checkpoint_is_computed_again_twice(use_reentrant):
    """Case 19. The forward pass of an inner one that runs again records no gradients either."""
    layer = nn.Sequential(nn.Linear(4, 4, bias=False), nn.ReLU())
    x = torch.zeros(3, 4, requires_grad=True)
    kind = dict(use_reentrant=use_reentrant)
    inner = lambda x: checkpoint(layer, layer(x), **kind)  # noqa: E731
    found = counted(lambda: checkpoint(inner, x, **kind).sum().backward()).total
    once = 2 * 3 * 4 * 4
    assert found.model_flops == 6 * once
    assert found.recomputed_flops == (2 + use_reentrant) * once


def test_a_gradient_of_a_gradient_is_not_a_recomputation():
    weight = torch.ones(4, 4, requires_grad=True)
    x = torch.ones(3, 4)

    def step():
        (first,) = torch.autograd.grad((x @ weight).pow(2).sum(), weight, create_graph=True)
        first.pow(2).sum().backward()

    found = counted(step).total
    assert found.recomputed_flops == 0
    assert found.flops == 4 * (2 * 3 * 4 * 4)  # x w, x' g, and of the latter's gradient two


@pytest.mark.parametrize("backend", ["eager", "aot_eager", "inductor"])
@pytest.mark.parametrize("fullgraph", [False, True])
def test_a_compiled_function_counts_as_the_plain_one(backend, fullgraph):
    """Case 19. Compiled before or not: what is fused runs as plain operators while counted."""
    model, x = nn.Sequential(nn.Linear(4, 8), nn.GELU(), nn.Linear(8, 4)), torch.zeros(3, 4)
    compiled = torch.compile(model, backend=backend, fullgraph=fullgraph)
    if backend == "eager":
        compiled(x)
    found = counted(lambda: compiled(x).sum().backward())
    model.zero_grad()
    assert found.by_operator == counted(lambda: model(x).sum().backward()).by_operator
    assert found.total.flops == 5 * (2 * 3 * 4 * 8)
    assert not found.uncounted


def test_counts_do_not_nest_but_torchs_counter_may():
    x = torch.zeros(3, 3)
    with FlopCounterMode(display=False) as torchs:
        assert counted(lambda: x @ x).total.flops == 54
        with pytest.raises(RuntimeError, match="one at a time"):
            counted(lambda: counted(lambda: x @ x))
        assert counted(lambda: x @ x).total.flops == 54
    assert torchs.get_total_flops() == 2 * 54

    def step():
        with FlopCounterMode(display=False):
            x @ x

    assert counted(step).total.flops == 54


def test_flops_are_those_of_torchs_counter_where_that_is_right():
    model = nn.Sequential(nn.Conv1d(5, 7, 3), nn.ReLU(), nn.Conv1d(7, 2, 2, bias=False))
    x = torch.zeros(3, 5, 13, requires_grad=True)
    with FlopCounterMode(display=False) as torchs:
        model(x).sum().backward()
    assert counted(lambda: model(x).sum().backward()).total.flops == torchs.get_total_flops() > 0


@pytest.mark.parametrize("n_layers", [1, 3])
def test_a_head_trains_at_three_times_its_forward(n_layers):
    """Case 12."""
    model = nn.Sequential(*(nn.Linear(8, 8) for _ in range(n_layers)), nn.Linear(8, 100))
    step = lambda: F.cross_entropy(model(torch.zeros(6, 8)), torch.arange(6)).backward()  # noqa: E731
    found = counted(step, model, {str(n_layers): "head"}).by_owner
    once = 2 * 6 * 8 * 100
    assert (found["head", "forward"].flops, found["head", "backward"].flops) == (once, 2 * once)


def test_adaptive_softmax_is_counted_part_by_part():
    """Case 16: H = 256, N = 512, of which 81 and 75 fall to the tails of WikiText-2's words."""
    model = nn.ModuleDict({"out": nn.AdaptiveLogSoftmaxWithLoss(256, 33_278, [2_000, 10_000])})
    hidden = torch.zeros(512, 256, requires_grad=True)
    targets = torch.cat(
        [torch.full((356,), 5), torch.full((81,), 3_000), torch.full((75,), 20_000)]
    )
    parts = {"out": "out", "out.head": "head", "out.tail.0": "tail 0", "out.tail.1": "tail 1"}
    found = counted(lambda: model["out"](hidden, targets).loss.backward(), model, parts)
    flops = dict.fromkeys(parts.values(), 0)
    for (owner, _), work in found.by_owner.items():
        flops[owner] = flops.get(owner, 0) + work.flops
    assert not found.uncounted
    assert {owner: n for owner, n in flops.items() if n} == {
        "head": 1_574_436_864,
        "tail 0": 256_794_624,
        "tail 1": 169_444_800,
    }
    assert found.total.flops == found.total.useful_flops == 2_000_676_288


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
    assert found.by_owner["tanh", "forward"] == Work(bytes=2 * 6 * FP32)
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
    patched = [(torch.autograd, "backward"), (torch.autograd, "grad")]
    patched += [(CheckpointFunction, "forward"), (torch.cuda.CUDAGraph, "replay")]
    originals = [getattr(*place) for place in patched]
    with pytest.raises(ZeroDivisionError):
        counted(lambda: 1 / 0)
    assert [getattr(*place) for place in patched] == originals
    assert _get_current_dispatch_mode() is None
    x @ x
    assert counts.total == before


def test_results_are_those_of_an_uncounted_step():
    torch.manual_seed(0)
    model, x = nn.Sequential(nn.Linear(8, 5), nn.GELU()), torch.randn(3, 8)
    wanted, found = model(x), []
    counted(lambda: found.append(model(x)))
    assert torch.equal(found[0], wanted)
