"""The analytic model of the softmax in chunks against what torch executes."""

from itertools import pairwise
from types import SimpleNamespace

import altair as alt
import pytest
import torch

from lmtime.config import GCNConfig, TransformerConfig
from lmtime.cost.chunked import chunk_rows
from lmtime.cost.gcn import gcn
from lmtime.cost.predict import costs, parameters
from lmtime.models import build
from lmtime.publishing.vega_eval import evaluate
from lmtime.softmax import ChunkedSoftmax, runs
from lmtime.timing import Ownership
from lmtime.timing.counters import count

pytestmark = pytest.mark.usefixtures("one_thread")

LAYER = dict(output_layer="chunked")
SMALL = dict(n_layers=1, hidden_size=8, final_hidden_size=8, embedding_size=8, **LAYER)
CONFIGS = {
    "one chunk": (GCNConfig(batch_size=3, seq_len=17, vocab_size=503, **SMALL), 1),
    "two uneven chunks": (GCNConfig(batch_size=3, seq_len=101, vocab_size=33_278, **SMALL), 2),
    "three chunks": (GCNConfig(batch_size=2, seq_len=301, vocab_size=40_001, **SMALL), 3),
    "a network that widens": (
        GCNConfig(batch_size=2, seq_len=9, vocab_size=90, **SMALL | dict(final_hidden_size=13)), 1,
    ),
    "a transformer": (
        TransformerConfig(
            hidden_size=8, ffn_size=16, n_heads=2, n_layers=1, vocab_size=40_000, batch_size=2,
            seq_len=150, cutoffs=(100, 1000), div_value=2.0, **LAYER,
        ), 2,
    ),
}  # fmt: skip
every_case = pytest.mark.parametrize("name", CONFIGS)


@every_case
def test_predicted_work_is_the_executed_one(name):
    """FLOPs, bytes and launches."""
    assert_predicted(*CONFIGS[name])


@pytest.mark.skipif(not runs.HAS_ONEDNN, reason="this torch has no oneDNN")
def test_products_in_runs_cost_what_products_do(monkeypatch):
    """But for what fills the room, which is then no operator of its own."""
    monkeypatch.setattr(runs, "pay", lambda: True)
    sizes = dict(hidden_size=512, final_hidden_size=512, vocab_size=33_280)
    counts = assert_predicted(GCNConfig(batch_size=3, seq_len=101, **SMALL | sizes), 2)
    named = "scores_in_runs", "in_runs", "add_gradient_in_runs"
    assert [counts.by_operator[f"lmtime.{name}"] for name in named] == [2, 2, 2]


def assert_predicted(config, n_chunks):
    torch.manual_seed(1)
    model = build(config)
    words = torch.arange(config.n_tokens).view(config.batch_size, -1) * 71 % config.vocab_size
    counts = count(lambda: model(words, words).backward(), Ownership(model, model.owners))
    assert not counts.uncounted
    assert counts.by_operator["aten.log_softmax"] == n_chunks
    ends = (*config.cutoffs, config.vocab_size)
    hits = [int(((words >= a) & (words < b)).sum()) for a, b in pairwise(ends)]
    rows = costs(config, hits, ("forward", "backward"))
    predicted = {part: sum(ops) for part, ops in rows.items()}
    executed = counts.by_owner
    assert {p: c.flops for p, c in predicted.items()} == {p: c.flops for p, c in executed.items()}
    assert {p: c.bytes for p, c in predicted.items()} == {p: c.bytes for p, c in executed.items()}
    if isinstance(config, GCNConfig):
        assert sum(c.launches for c in predicted.values()) == sum(counts.by_operator.values())
    return counts


@every_case
def test_parameters_are_the_models(name):
    config, _ = CONFIGS[name]
    assert sum(parameters(config).values()) == sum(p.numel() for p in build(config).parameters())


@pytest.mark.parametrize("vocab_size", [50, 503, 32_768, 33_278, 1_000_003])
@pytest.mark.parametrize("n_tokens", [1, 255, 256, 257, 4_096, 100_003])
def test_chunks_are_the_layers(vocab_size, n_tokens):
    with torch.device("meta"):
        layer = ChunkedSoftmax(2, vocab_size)
    assert chunk_rows(n_tokens, vocab_size) == layer.chunk_rows(n_tokens)


def test_a_page_computes_what_python_does():
    config, _ = CONFIGS["three chunks"]
    row = dict(vocab_size=40_001, batch_size=2)
    shape = SimpleNamespace(
        **vars(config) | dict(widens=False) | {name: alt.param(name=name) for name in row}
    )
    for quantity in ("flops", "bytes"):
        traced, wanted = (
            {str(part): getattr(sum(ops), quantity) for part, ops in gcn(s, []).items()}
            for s in (shape, config)
        )
        page = {part: str(getattr(formula, "expr", formula)) for part, formula in traced.items()}
        assert evaluate(page, [row]) == [pytest.approx(wanted, rel=1e-12)]
