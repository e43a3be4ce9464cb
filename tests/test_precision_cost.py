"""Half precision against what torch executes: every owner's bytes to the last one."""

import pytest
import torch
import torch.nn.functional as F
from counting import counted_training
from test_cost import SHAPES as GCN_SHAPES
from test_cost import tail_tokens
from test_huggingface_cost import FAMILIES, VARIANTS
from test_transformer_cost import SHAPES as TRANSFORMER_SHAPES
from test_transformer_cost import hits

from lmtime.config import GCNConfig, TransformerConfig, huggingface_config
from lmtime.cost.precision import PRECISIONS, loss_bytes_per_logit, peak_rate
from lmtime.cost.predict import costs
from lmtime.cost.transformer import transformer
from lmtime.errors import UsageError
from lmtime.hardware import GPUS
from lmtime.models import build, optimizer_for
from lmtime.softmax import full

pytestmark = pytest.mark.usefixtures("one_thread")

PURE, WIDE_LOSS = PRECISIONS["bf16"], PRECISIONS["bf16-fp32-loss"]


def changed(config, **changes):
    return type(config)(**{**vars(config), **changes})


CASES = {
    **{f"gcn, {name}": changed(c, output_layer="full") for name, c in GCN_SHAPES.items()},
    **{
        f"transformer, {name}": changed(c, output_layer="full")
        for name, c in TRANSFORMER_SHAPES.items()
    },
    **{
        name: huggingface_config(settings, batch_size=3, seq_len=11)
        for name, settings in (FAMILIES | VARIANTS).items()
    },
}


def counted(config):
    """Bytes of a step of the model with all values in bf16, and its tokens and targets."""
    torch.manual_seed(1)
    model = build(config).to(torch.bfloat16)
    optimizer = optimizer_for(model, config)
    tokens, targets = torch.randint(config.vocab_size, (2, config.batch_size, config.seq_len))
    counts = counted_training(model, optimizer, tokens, targets)
    return counts, tokens, targets


def compare(rows, counts):
    predicted = {part: sum(ops) for part, ops in rows.items()}
    found = counts.by_owner
    assert {p: c.flops for p, c in predicted.items()} == {p: c.flops for p, c in found.items()}
    assert {p: c.bytes for p, c in predicted.items()} == {p: c.bytes for p, c in found.items()}
    assert sum(c.launches for c in predicted.values()) == sum(counts.by_operator.values())


def rows_of(config, precision, tokens, targets):
    if isinstance(config, TransformerConfig):  # tokens of the bands are not the law's
        bands = transformer(
            config,
            hits(targets, config),
            input_tail_tokens=hits(tokens, config),
            value_bytes=precision.value_bytes,
        )
        embedding = {part: ops for part, ops in bands.items() if part[0] == "embedding"}
        return costs(config, hits(targets, config), precision=precision) | embedding
    tails = tail_tokens(targets, config) if isinstance(config, GCNConfig) else None
    return costs(config, tails, precision=precision)


@pytest.mark.parametrize("name", CASES)
def test_models_widen_their_logits_before_the_cross_entropy(name):
    config = CASES[name]
    counts, tokens, targets = counted(config)
    compare(rows_of(config, WIDE_LOSS, tokens, targets), counts)


@pytest.mark.parametrize("name", ["gcn, default widths", "gcn, awkward sizes"])
@pytest.mark.parametrize("output_layer", ["adaptive", "full"])
def test_all_in_half_precision(name, output_layer, monkeypatch):
    """An adaptive softmax has the precision of its weights; a full one is made to, here."""
    monkeypatch.setattr(full, "log_softmax", lambda logits: F.log_softmax(logits, dim=-1))
    config = changed(CASES[name], output_layer=output_layer)
    counts, tokens, targets = counted(config)
    compare(rows_of(config, PURE, tokens, targets), counts)


def test_all_of_an_adaptive_transformer_in_half_precision():
    config = TRANSFORMER_SHAPES["awkward sizes"]
    counts, tokens, targets = counted(config)
    compare(rows_of(config, PURE, tokens, targets), counts)


def test_half_precision_moves_half_and_computes_as_much():
    wide, half = (sum(sum(o) for o in costs(GCNConfig(), precision=p).values()) for p in (
        PRECISIONS["fp32"], PURE))  # fmt: skip
    assert half.flops == wide.flops
    assert 0.5 < half.bytes / wide.bytes < 0.51, "ids and sums stay as they are"


def test_a_wide_loss_casts_each_logit_and_its_gradient():
    found = {name: loss_bytes_per_logit(p) for name, p in PRECISIONS.items()}
    assert found["fp32"] == 2 * found["bf16"]
    assert found["bf16-fp32-loss"] == found["fp32"] + 2 * (2 + 4)


@pytest.mark.parametrize("name", GPUS)
def test_a_precision_without_arithmetic_is_refused_by_name(name):
    gpu = GPUS[name]
    for precision in PRECISIONS.values():
        if getattr(gpu, f"{precision.rate}_flops_per_s") is not None:
            assert peak_rate(gpu, precision) == gpu.flops_per_s(precision.rate)
            continue
        with pytest.raises(UsageError, match=f"no {precision.rate} arithmetic .* choose fp32"):
            peak_rate(gpu, precision)
