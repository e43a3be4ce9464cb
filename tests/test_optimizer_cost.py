"""Predicted traffic of updates against what torch's optimizers execute, to the last byte."""

from dataclasses import replace

import altair as alt
import pytest
import torch
from counting import counted
from torch import nn

from lmtime.config import GCNConfig, TransformerConfig, configure
from lmtime.cost.gcn import weights as gcn_weights
from lmtime.cost.optimizers import FOREACH, FUSED, LOOP, NAMES, OPTIMIZERS, find_optimizer
from lmtime.cost.transformer import weights as transformer_weights
from lmtime.errors import UsageError
from lmtime.models import GCN, Transformer
from lmtime.models.memory import _Storages
from lmtime.publishing.vega_eval import evaluate
from lmtime.timing.flops import Work

SIZES = [999, 77, 1]
MAKE = {
    "sgd": lambda p, **options: torch.optim.SGD(p, 0.1, **options),
    "momentum": lambda p, **options: torch.optim.SGD(p, 0.1, momentum=0.9, **options),
    "nesterov": lambda p, **options: torch.optim.SGD(p, 0.1, 0.9, nesterov=True, **options),
    "adam": lambda p, **options: torch.optim.Adam(p, 0.1, **options),
    "adamw": lambda p, **options: torch.optim.AdamW(p, 0.1, **options),
}
WAYS = {LOOP: dict(foreach=False), FOREACH: dict(foreach=True), FUSED: dict(fused=True)}


def ready(name, dtype=torch.float32, sizes=SIZES, **options):
    """An optimizer whose states exist, with gradients for the next step."""
    weights = [nn.Parameter(torch.zeros(n, dtype=dtype)) for n in sizes]
    optimizer = MAKE[name](weights, **options)
    for _ in range(2):
        for weight in weights:
            weight.grad = torch.ones_like(weight)
        optimizer.step()
    return optimizer


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("decay", [0, 0.1])
@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("name", OPTIMIZERS)
def test_an_update_moves_what_is_predicted(name, way, decay, dtype):
    found = counted(ready(name, dtype, weight_decay=decay, **WAYS[way]).step)
    formula = replace(OPTIMIZERS[name], way=way, decays=decay > 0)
    update = sum(formula.update(SIZES, dtype.itemsize))
    assert found.total == Work(bytes=update.bytes)
    assert sum(found.by_operator.values()) == update.launches


@pytest.mark.parametrize("name", OPTIMIZERS)
def test_torchs_own_choices_are_the_tables(name):
    """Unfused in a loop on a CPU, decay only where it is in the name."""
    found = counted(ready(name).step)
    assert found.total.bytes == sum(OPTIMIZERS[name].update(SIZES, 4)).bytes


@pytest.mark.parametrize("name", OPTIMIZERS)
def test_copies_are_the_states_as_large_as_the_parameters(name):
    states = [v for state in ready(name).state.values() for v in state.values() if v is not None]
    values = sum(value.numel() for value in states if value.ndim)  # the rest is a count of steps
    assert values == OPTIMIZERS[name].n_copies * sum(SIZES)


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("name", OPTIMIZERS)
def test_what_an_update_makes_on_the_way_is_known(name, way):
    optimizer, storages = ready(name, **WAYS[way]), _Storages([])
    weights = optimizer.param_groups[0]["params"]
    states = [v for state in optimizer.state.values() for v in state.values() if v is not None]
    for tensor in (*weights, *(weight.grad for weight in weights), *states):
        storages._note(tensor)
    held = storages.live
    with storages:
        optimizer.step()
    made = 4 * replace(OPTIMIZERS[name], way=way).temporary(SIZES)
    assert made <= storages.peak - held <= made + 8  # and a number made into a tensor


def test_a_fused_update_writes_gradients_only_to_take_a_scale_out_of_them():
    optimizer = ready("sgd", fused=True)
    plain = counted(optimizer.step).total.bytes
    optimizer.grad_scale, optimizer.found_inf = torch.ones(()), torch.zeros(())
    assert counted(optimizer.step).total.bytes == plain + 4 * sum(SIZES) + 2 * 4


def test_fused_by_name_and_anything_else_is_refused():
    assert find_optimizer("adam-fused") == replace(OPTIMIZERS["adam"], way=FUSED)
    assert find_optimizer("sgd", unfused=FOREACH).way == FOREACH
    assert len(NAMES) == 2 * len(OPTIMIZERS)
    with pytest.raises(UsageError, match="unknown optimizer 'lion': choose one of sgd, momentum"):
        find_optimizer("lion")


@pytest.mark.parametrize("name", NAMES)
def test_a_page_computes_what_python_does(name):
    optimizer = find_optimizer(name)
    traced = sum(optimizer.update([alt.param(name="n"), 7], alt.param(name="b"))).bytes
    wanted = sum(optimizer.update([1_000, 7], 2)).bytes
    assert evaluate({"bytes": str(traced.expr)}, [{"n": 1_000, "b": 2}]) == [{"bytes": wanted}]


CONFIGS = {
    "gcn": GCNConfig(vocab_size=503, cutoffs=(50, 200)),
    "gcn, full, widens": GCNConfig(final_hidden_size=61, output_layer="full"),
    "transformer": TransformerConfig(n_layers=2),
    "transformer, full": TransformerConfig(n_layers=2, output_layer="full"),
    "transformer-gbw": configure("transformer-gbw", n_layers=1),
}


@pytest.mark.parametrize("name", CONFIGS)
def test_sizes_of_tensors_are_the_models(name):
    config = CONFIGS[name]
    with torch.device("meta"):
        model = Transformer(config) if isinstance(config, TransformerConfig) else GCN(config)
    weights = gcn_weights if isinstance(config, GCNConfig) else transformer_weights
    found = sorted(size for sizes in weights(config).values() for size in sizes)
    assert found == sorted(p.numel() for p in model.parameters())
