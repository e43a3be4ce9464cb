"""The analytic model against what torch executes: FLOPs and bytes equal to the last digit."""

from itertools import pairwise

import pytest
import torch
from torch.utils.flop_counter import FlopCounterMode

from lmtime import cost
from lmtime.config import GCNConfig
from lmtime.models import build, nesterov
from lmtime.timing import Ownership, region
from lmtime.timing.counters import count

SMALL = dict(vocab_size=503, cutoffs=(50, 200), batch_size=3, seq_len=17)
SHAPES = {
    "default widths": GCNConfig(**SMALL),
    "awkward sizes": GCNConfig(
        hidden_size=37, final_hidden_size=37, embedding_size=19, kernel_size=3, n_layers=2, **SMALL
    ),
    "the last layer widens": GCNConfig(
        hidden_size=24, final_hidden_size=61, embedding_size=32, **SMALL
    ),
    "dropout": GCNConfig(dropout=0.1, hidden_size=24, final_hidden_size=30, **SMALL),
    "the last layer narrows": GCNConfig(hidden_size=48, final_hidden_size=17, **SMALL),
    "one sequence, one layer, one tap": GCNConfig(
        hidden_size=20, final_hidden_size=20, n_layers=1, kernel_size=1, vocab_size=90,
        cutoffs=(30,), batch_size=1, seq_len=33,
    ),
    "four clusters": GCNConfig(
        hidden_size=64, final_hidden_size=64, div_value=2.0, vocab_size=400,
        cutoffs=(20, 60, 150, 301), batch_size=2, seq_len=64,
    ),
}  # fmt: skip


def training_step(config, output_layer):
    config = GCNConfig(**{**vars(config), "output_layer": output_layer})
    torch.manual_seed(1)
    model = build(config)
    optimizer = nesterov(model)
    tokens, targets = torch.randint(0, config.vocab_size, (2, config.batch_size, config.seq_len))

    def step():
        with region("optimizer", "optimizer"):
            optimizer.zero_grad()
        model(tokens, targets).backward()
        optimizer.step()

    step()  # the first one creates the momentum buffers
    return config, model, optimizer, step, targets


def tail_tokens(targets, config):
    edges = (*config.cutoffs, config.vocab_size)
    return [int(((targets >= a) & (targets < b)).sum()) for a, b in pairwise(edges)]


@pytest.mark.parametrize("output_layer", ["adaptive", "full"])
@pytest.mark.parametrize("name", SHAPES)
def test_predicted_flops_and_bytes_are_the_executed_ones(name, output_layer):
    config, model, optimizer, step, targets = training_step(SHAPES[name], output_layer)
    counted = count(step, Ownership(model, model.owners, optimizer)).by_owner
    hits = tail_tokens(targets, config)
    assert all(hits), "the case must hit every cluster"
    predicted = {part: sum(ops) for part, ops in cost.gcn(config, hits).items()}
    assert {p: c.flops for p, c in predicted.items()} == {p: c.flops for p, c in counted.items()}
    assert {p: c.bytes for p, c in predicted.items()} == {p: c.bytes for p, c in counted.items()}


@pytest.mark.parametrize("output_layer", ["adaptive", "full"])
def test_total_flops_are_torchs_own(output_layer):
    """torch's counter is right on this model in total (not by module: pytorch's own hierarchy)."""
    config, _, _, step, targets = training_step(SHAPES["default widths"], output_layer)
    with FlopCounterMode(display=False) as counter:
        step()
    rows = cost.gcn(config, tail_tokens(targets, config)).values()
    assert sum(c.flops for ops in rows for c in ops) == counter.get_total_flops()


@pytest.mark.parametrize("output_layer", ["adaptive", "full"])
@pytest.mark.parametrize("name", SHAPES)
def test_parameters_are_the_models(name, output_layer):
    config, model, *_ = training_step(SHAPES[name], output_layer)
    ownership = Ownership(model, model.owners)
    found = {}
    for parameter in model.parameters():
        owner = ownership.owner_of_parameter(parameter)
        found[owner] = found.get(owner, 0) + parameter.numel()
    assert cost.parameters(config) == found


def test_backward_is_twice_the_forward():
    rows = cost.gcn(GCNConfig(), [300, 100])
    for (owner, phase), ops in rows.items():
        if phase == "forward" and owner in ("output layer", "conv 1"):
            backward = sum(c.flops for c in rows[owner, "backward"])
            assert backward == 2 * sum(c.flops for c in ops)


def test_flops_of_a_published_case():
    """Head and tails of cutoffs [2000, 10000] with hits 374, 82, 56: 653,640,192 forward.

    Checked against torch's counter: d = 256 is the width that gives this number.
    """
    config = GCNConfig(batch_size=1, seq_len=512)
    forward = sum(cost.gcn(config, [82, 56])["output layer", "forward"])
    assert forward.flops == 2 * 512 * 256 * 2002 + 2 * (82 * 64 * 8256 + 56 * 16 * 23534)
