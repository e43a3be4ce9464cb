"""The analytic model of the Transformer against what torch executes, to the last digit."""

from itertools import pairwise
from types import SimpleNamespace

import altair as alt
import pytest
import torch
from torch.utils.flop_counter import FlopCounterMode

from lmtime.config import PRESETS, TransformerConfig
from lmtime.cost.operators import Attention
from lmtime.cost.output_layers import bands
from lmtime.cost.transformer import parameters, transformer
from lmtime.models import nesterov
from lmtime.models.transformer import Transformer
from lmtime.publishing.vega_eval import evaluate
from lmtime.timing import Ownership, region
from lmtime.timing.counters import count

SMALL = dict(vocab_size=503, cutoffs=(50, 200), batch_size=3, seq_len=17)
SHAPES = {
    "even sizes": TransformerConfig(hidden_size=32, ffn_size=64, n_heads=4, n_layers=3, **SMALL),
    "dropout": TransformerConfig(
        hidden_size=24, ffn_size=40, n_heads=2, n_layers=2, dropout=0.3, **SMALL
    ),
    "awkward sizes": TransformerConfig(
        hidden_size=39, ffn_size=53, n_heads=3, n_layers=2, **SMALL, div_value=1.7
    ),
    "one sequence, one head, one layer, one tail": TransformerConfig(
        hidden_size=20, ffn_size=7, n_heads=1, n_layers=1, vocab_size=90, cutoffs=(30,),
        batch_size=1, seq_len=33,
    ),
    "four tails, more heads than positions": TransformerConfig(
        hidden_size=64, ffn_size=96, n_heads=16, n_layers=1, div_value=2.0, vocab_size=400,
        cutoffs=(20, 60, 150, 301), batch_size=9, seq_len=8,
    ),
    "tails wider than the hidden state": TransformerConfig(
        hidden_size=12, ffn_size=30, n_heads=2, n_layers=2, div_value=0.5, **SMALL
    ),
}  # fmt: skip
every_case = pytest.mark.parametrize("output_layer", ["adaptive", "full"])
every_shape = pytest.mark.parametrize("name", SHAPES)

pytestmark = pytest.mark.usefixtures("one_thread")


def training_step(config, output_layer):
    config = TransformerConfig(**{**vars(config), "output_layer": output_layer})
    torch.manual_seed(1)
    model = Transformer(config)
    optimizer = nesterov(model)
    tokens, targets = torch.randint(0, config.vocab_size, (2, config.batch_size, config.seq_len))

    def step():
        with region("optimizer", "optimizer"):
            optimizer.zero_grad()
        model(tokens, targets).backward()
        optimizer.step()

    step()  # the first one creates the momentum buffers
    return config, model, optimizer, step, hits(tokens, config), hits(targets, config)


def hits(ids, config):
    edges = (*config.cutoffs, config.vocab_size)
    found = [int(((ids >= a) & (ids < b)).sum()) for a, b in pairwise(edges)]
    assert all(found) and sum(found) < ids.numel(), "the case must hit every band"
    return found


@every_case
@every_shape
def test_predicted_flops_and_bytes_are_the_executed_ones(name, output_layer):
    config, model, optimizer, step, inputs, targets = training_step(SHAPES[name], output_layer)
    counted = count(step, Ownership(model, model.owners, optimizer)).by_owner
    rows = transformer(config, targets, input_tail_tokens=inputs)
    predicted = {part: sum(ops) for part, ops in rows.items()}
    assert {p: c.flops for p, c in predicted.items()} == {p: c.flops for p, c in counted.items()}
    assert {p: c.bytes for p, c in predicted.items()} == {p: c.bytes for p, c in counted.items()}
    useful = transformer(config, targets, input_tail_tokens=inputs, causal=True)
    assert {p: sum(ops).flops for p, ops in useful.items()} == {
        p: c.useful_flops for p, c in counted.items()
    }


@every_case
def test_total_flops_are_torchs_own_and_those_of_attention(output_layer):
    """torch's counter gives 0 for fused attention on a CPU: 2 products forward, 5 backward."""
    config, _, _, step, inputs, targets = training_step(SHAPES["awkward sizes"], output_layer)
    with FlopCounterMode(display=False) as counter:
        step()
    rows = transformer(config, targets, input_tail_tokens=inputs).values()
    attention = config.n_layers * (2 + 5) * (2 * 3 * 17 * 17 * 39)
    assert sum(c.flops for ops in rows for c in ops) == counter.get_total_flops() + attention


@every_case
@every_shape
def test_parameters_are_the_models(name, output_layer):
    config = TransformerConfig(**{**vars(SHAPES[name]), "output_layer": output_layer})
    assert parameters(config) == owned_parameters(config)


def owned_parameters(config):
    """Of a model without memory."""
    with torch.device("meta"):
        model = Transformer(config)
    ownership = Ownership(model, model.owners)
    found = {}
    for parameter in model.parameters():
        owner = ownership.owner_of_parameter(parameter)
        found[owner] = found.get(owner, 0) + parameter.numel()
    return found


def test_the_large_preset_has_the_published_number_of_parameters():
    """1026M, by fairseq's README."""
    config = PRESETS["transformer-gbw-1536"]
    found = parameters(config)
    assert 1.025e9 < sum(found.values()) < 1.027e9
    assert found == owned_parameters(config)


def test_bands_are_sizes_and_no_cutoffs():
    found = bands(PRESETS["transformer-gbw-1536"])
    assert found == [(60_000, 1536), (100_000, 384), (633_471, 96)]


@pytest.mark.parametrize("causal, share", [(False, 0.1091), (True, 0.1097)])
def test_the_adaptive_softmax_is_a_ninth_of_the_forward_flops(causal, share):
    """Hits by Zipf-Mandelbrot, 1 / (rank + 2.7); its own weights are less than a thousandth."""
    config = PRESETS["transformer-gbw-1536"]
    ends = (*config.cutoffs, config.vocab_size)
    mass = [sum(1 / (rank + 2.7) for rank in range(1, end + 1)) for end in ends]
    tails = [config.n_tokens * (b - a) / mass[-1] for a, b in pairwise(mass)]
    rows = transformer(config, tails, causal=causal)
    forward = {part[0]: sum(ops).flops for part, ops in rows.items() if part[1] == "forward"}
    assert forward["output layer"] / sum(forward.values()) == pytest.approx(share, abs=5e-5)
    owned = parameters(config)
    assert owned["output layer"] < 0.001 * sum(owned.values())


@pytest.mark.parametrize("output_layer", ["adaptive", "full"])
def test_a_page_computes_what_python_does(output_layer):
    """All sizes but the number of layers and the cutoffs move."""
    config = TransformerConfig(**{**vars(SHAPES["awkward sizes"]), "output_layer": output_layer})
    names = ("hidden_size", "ffn_size", "n_heads", "vocab_size", "batch_size", "seq_len")
    row = {name: getattr(config, name) for name in names}
    shape = SimpleNamespace(**vars(config) | {name: alt.param(name=name) for name in names})
    shape.final_hidden_size, shape.ties_words = shape.hidden_size, config.ties_words
    for quantity in ("flops", "bytes"):
        traced, wanted = (
            {str(part): getattr(sum(ops), quantity) for part, ops in transformer(s, [9, 5]).items()}
            for s in (shape, config)
        )
        page = {part: str(getattr(formula, "expr", formula)) for part, formula in traced.items()}
        assert evaluate(page, [row]) == [pytest.approx(wanted, rel=1e-12)]


def test_as_many_tokens_as_targets_unless_said_otherwise():
    config = SHAPES["even sizes"]
    assert transformer(config, [9, 5]) == transformer(config, [9, 5], input_tail_tokens=[9, 5])
    assert transformer(config, [9, 5]) != transformer(config, [9, 5], input_tail_tokens=[5, 9])


@pytest.mark.parametrize("seq_len, seen", [(1, 1), (2, 3), (5, 15)])
def test_a_causal_mask_leaves_each_position_itself_and_those_before(seq_len, seen):
    sizes = dict(batch_size=3, seq_len=seq_len, n_heads=2, hidden_size=8)
    assert Attention(**sizes, causal=True).product_flops == 2 * 3 * 8 * seen
    assert Attention(**sizes).product_flops == 2 * 3 * 8 * seq_len**2
