"""Memory from shapes alone against the same step run without values."""

import dataclasses
import subprocess
import sys
from types import SimpleNamespace

import altair as alt
import pytest

from lmtime.config import GCNConfig, TransformerConfig, configure
from lmtime.cost.memory import Stage, gcn_stages, peak, training_bytes, transformer_stages
from lmtime.cost.predict import optimizer_of
from lmtime.models.memory import step_bytes

CLUSTERS = dict(vocab_size=5_003, cutoffs=(500, 2_000), batch_size=4, seq_len=64)
SMALL = dict(hidden_size=64, ffn_size=128, n_heads=4, n_layers=3, **CLUSTERS)
FULL, FUSED, CHUNKED = (dict(output_layer=n) for n in ("full", "fused-adaptive", "chunked"))
CONFIGS = {
    "gcn": GCNConfig(),
    "gcn, full": GCNConfig(**FULL),
    "gcn, widens": GCNConfig(final_hidden_size=1024, batch_size=32),
    "gcn, weights lead": GCNConfig(batch_size=1, seq_len=16),
    "gcn, activations lead": GCNConfig(batch_size=64),
    "gcn, awkward": GCNConfig(hidden_size=37, final_hidden_size=61, embedding_size=19, n_layers=3,
                              kernel_size=3, **CLUSTERS),
    "gcn, one layer": GCNConfig(n_layers=1, vocab_size=503, cutoffs=(50,), hidden_size=512),
    "gcn-1024": configure("gcn-1024"),
    "transformer": TransformerConfig(),
    "transformer, full": TransformerConfig(**FULL),
    "transformer, small": TransformerConfig(**SMALL),
    "transformer, small, full": TransformerConfig(**SMALL, **FULL),
    "transformer, activations lead": TransformerConfig(batch_size=32),
    "transformer, layers lead": TransformerConfig(vocab_size=2_000, cutoffs=(200, 900), n_layers=4),
    "transformer, three tails": TransformerConfig(cutoffs=(500, 5_000, 50_000), batch_size=16),
    "gcn, fused": GCNConfig(**FUSED),
    "gcn, fused, activations lead": GCNConfig(batch_size=64, **FUSED),
    "gcn, fused, widens": GCNConfig(final_hidden_size=1024, batch_size=32, **FUSED),
    "gcn, fused, free": GCNConfig(tail_widths=(128, 40), head_rank=100, shared_rank=128,
                                  batch_size=32, **FUSED),
    "gcn, fused, awkward": GCNConfig(hidden_size=37, final_hidden_size=61, tail_widths=(61, 7),
                                     **FUSED, **CLUSTERS),
    "gcn, fused, awkward, folds": GCNConfig(
        hidden_size=37, final_hidden_size=61, tail_widths=(61, 7), **FUSED,
        **CLUSTERS | dict(batch_size=51),
    ),
    "gcn, fused, free, folds": GCNConfig(tail_widths=(12, 40), head_rank=10, shared_rank=128,
                                         **FUSED, **CLUSTERS | dict(batch_size=200)),
    "transformer, fused, small, folds": TransformerConfig(
        **SMALL | FUSED | dict(batch_size=101)
    ),
    "transformer, fused": TransformerConfig(**FUSED),
    "transformer, fused, small": TransformerConfig(**SMALL, **FUSED),
    "transformer, fused, activations lead": TransformerConfig(batch_size=32, **FUSED),
    "gcn, chunked": GCNConfig(**CHUNKED),
    "gcn, chunked, activations lead": GCNConfig(batch_size=64, **CHUNKED),
    "gcn, chunked, widens": GCNConfig(final_hidden_size=1024, **CHUNKED),
    "transformer, chunked": TransformerConfig(**CHUNKED),
    "transformer, chunked, small": TransformerConfig(**SMALL, **CHUNKED),
    "transformer-gbw-1536": configure("transformer-gbw-1536"),
}  # fmt: skip


@pytest.mark.parametrize("name", CONFIGS)
def test_the_formula_gives_what_a_step_without_values_takes(name):
    config = CONFIGS[name]
    found, wanted = training_bytes(config), step_bytes(config)
    for part in ("parameters", "gradients", "optimizer"):
        assert getattr(found, part) == getattr(wanted, part)
    assert found.total == pytest.approx(wanted.total, rel=0.05)
    assert found.activations == pytest.approx(wanted.activations, rel=0.10)


@pytest.mark.parametrize("name", ["gpt2", "bert-base"])
def test_what_is_not_known_is_not_zero(name):
    config = configure(name, batch_size=1, seq_len=8)
    found, wanted = training_bytes(config), step_bytes(config)
    assert found.parameters == found.gradients == wanted.parameters
    assert found.optimizer == wanted.optimizer == 2 * wanted.parameters
    assert (found.activations, found.total) == (None, None)


@pytest.mark.parametrize("name, n_copies", [("sgd", 0), ("momentum", 1), ("adam-fused", 2)])
def test_states_are_the_optimizers(name, n_copies):
    config = CONFIGS["gcn, weights lead"]
    options = dict(optimizer=optimizer_of(config, name))
    found, wanted = training_bytes(config, **options), step_bytes(config, **options)
    assert found.optimizer == wanted.optimizer == n_copies * found.parameters
    assert found.total == pytest.approx(wanted.total, rel=0.05)


def test_the_peak_of_two_layers_by_hand():
    first = Stage(kept=10, forward=3, backward=4, weights=(5, 2))
    second = Stage(kept=20, forward=30, backward=1, weights=(6,))
    # forward: 13, 60; backward: 30 + 1 + 6 = 37, then 10 + 6 + 4 + 7 = 27
    assert peak([first, second]) == 60
    assert peak([first, Stage(kept=20, backward=50, weights=(6,))]) == 86
    assert peak([Stage(weights=(100,), backward=1), Stage(kept=1, weights=(8,))]) == 109


def test_more_tokens_take_more_and_keep_the_weights():
    few, many = (training_bytes(GCNConfig(batch_size=n, **FULL)) for n in (8, 16))
    assert few.parameters == many.parameters
    assert many.activations > 1.9 * few.activations


def test_a_row_holds_the_fields_and_their_sum():
    row = training_bytes(GCNConfig()).row()
    assert list(row) == ["parameters", "gradients", "optimizer", "activations", "total"]
    assert row.pop("total") == sum(row.values())


def test_the_estimate_needs_the_standard_library_alone():
    code = (
        "import sys; sys.modules['torch'] = sys.modules['numpy'] = None;"
        "from lmtime.config import GCNConfig; from lmtime.cost.memory import training_bytes;"
        "sys.stdout.write(str(training_bytes(GCNConfig()).total))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert int(done.stdout) == training_bytes(GCNConfig()).total


@pytest.mark.parametrize("stages", [gcn_stages, transformer_stages])
def test_a_peak_runs_on_parameters_of_a_page_too(stages):
    shape = GCNConfig() if stages is gcn_stages else TransformerConfig(**SMALL)
    traced = SimpleNamespace(
        **{f.name: getattr(shape, f.name) for f in dataclasses.fields(shape)}
        | {"final_hidden_size": shape.final_hidden_size, "ties_words": True, "widens": False}
        | {"batch_size": alt.param(name="batch_size")}
    )
    assert "batch_size" in repr(peak(stages(traced, [10.0, 5.0]), maximum=alt.expr.max))
