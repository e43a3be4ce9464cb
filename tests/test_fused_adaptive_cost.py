"""The analytic model of the fused adaptive softmax against what torch executes."""

import pytest
import torch

from lmtime.config import GCNConfig, TransformerConfig
from lmtime.cost import folding
from lmtime.cost.fused_adaptive import fused_folds, piece_rows
from lmtime.cost.predict import costs, parameters
from lmtime.models import build
from lmtime.softmax import runs
from lmtime.timing import Ownership
from lmtime.timing.counters import count

pytestmark = pytest.mark.usefixtures("one_thread")

LAYER = dict(output_layer="fused-adaptive")
SMALL = dict(vocab_size=503, cutoffs=(50, 200), batch_size=3, seq_len=17, **LAYER)
NARROW = dict(hidden_size=32, final_hidden_size=32, n_layers=1, **SMALL)
BLOCK = dict(hidden_size=32, ffn_size=64, n_heads=4, n_layers=1)
CONFIGS = {
    "torch's shape": GCNConfig(**NARROW),
    "awkward sizes, widens": GCNConfig(
        **NARROW | dict(hidden_size=24, final_hidden_size=61, div_value=1.7)
    ),
    "four clusters": GCNConfig(**NARROW | dict(cutoffs=(20, 60, 150, 301), div_value=2.0)),
    "free widths, one without a projection": GCNConfig(**NARROW, tail_widths=(32, 5)),
    "a tail wider than the hidden state": GCNConfig(**NARROW, tail_widths=(40, 1)),
    "a head of low rank": GCNConfig(**NARROW, head_rank=11),
    "one projection for all": GCNConfig(**NARROW, shared_rank=19),
    "all of them": GCNConfig(**NARROW, tail_widths=(19, 7), head_rank=11, shared_rank=19),
    "more scores than a CPU takes at once": GCNConfig(
        **NARROW | dict(vocab_size=40_000, cutoffs=(20_000, 30_000))
    ),
    "more scores than are kept": GCNConfig(
        **NARROW | dict(final_hidden_size=16, vocab_size=100_000, cutoffs=(50_000, 60_000))
    ),
    "tied": TransformerConfig(**BLOCK, **SMALL),
    "tied, tails wider than the hidden state": TransformerConfig(
        **BLOCK, **SMALL | dict(div_value=0.5, cutoffs=(50, 200, 300))
    ),
}  # fmt: skip


@pytest.fixture(autouse=True)
def a_cpu_of_which_the_costs_are(monkeypatch):
    """Elsewhere short scores, by the BLAS, have room at the end of each row, which is filled."""
    monkeypatch.setattr(runs, "pay", lambda: runs.HAS_ONEDNN)


every_case = pytest.mark.parametrize("name", CONFIGS)


def step(config):
    """A model, its forward and backward pass, and the targets of each tail, all of them hit."""
    torch.manual_seed(1)
    model = build(config)
    starts, n_tails = (0, *config.cutoffs), len(config.cutoffs)
    hits = [config.n_tokens // (n_tails + 1 + i) for i in range(1, n_tails + 1)]
    bands = [0] * (config.n_tokens - sum(hits))
    bands += [i for i, n_hits in enumerate(hits, 1) for _ in range(n_hits)]
    words = torch.tensor([starts[i] + j % 7 for j, i in enumerate(bands)])
    words = words[torch.randperm(len(words))].view(config.batch_size, -1)
    return model, lambda: model(words, words).backward(), hits


def assert_predicted(config):
    """FLOPs and bytes of each owner and phase."""
    model, run, hits = step(config)
    counts = count(run, Ownership(model, model.owners))
    assert not counts.uncounted
    predicted = costs(config, hits, ("forward", "backward"))
    assert {p: sum(c).flops for p, c in predicted.items()} == {
        p: c.flops for p, c in counts.by_owner.items()
    }
    assert {p: sum(c).bytes for p, c in predicted.items()} == {
        p: c.bytes for p, c in counts.by_owner.items()
    }


@every_case
def test_predicted_flops_and_bytes_are_the_executed_ones(name):
    assert_predicted(CONFIGS[name])


@pytest.mark.parametrize("at_once", [1, 300])
@every_case
def test_they_are_so_in_many_pieces(name, at_once, monkeypatch):
    config = CONFIGS[name]
    monkeypatch.setattr(folding, "KEPT_AT_MOST", -1)
    monkeypatch.setattr(folding, "WEIGHTS_PER_SCORE", 2**60)
    monkeypatch.setattr(folding, "MOST_PIECES", 2**60 if config.vocab_size == 503 else 16)
    monkeypatch.setitem(folding.SCORES_AT_ONCE, "cpu", (at_once, at_once))
    _, _, hits = step(config)
    rows = [config.n_tokens, *hits]
    steps = piece_rows(config, config.n_tokens, hits)
    assert any(n > step for n, step in zip(rows, steps, strict=True)), "some band in pieces"
    assert_predicted(config)


@pytest.mark.parametrize("beyond", [0, 1])
def test_formula_and_layer_agree_where_folding_begins(beyond, monkeypatch):
    config = CONFIGS["torch's shape"]
    _, _, hits = step(config)
    n_scores = config.n_tokens * 52 + hits[0] * 150 + hits[1] * 303
    monkeypatch.setattr(folding, "KEPT_AT_MOST", n_scores - beyond)
    assert fused_folds(config, config.n_tokens, hits) == bool(beyond)
    assert_predicted(config)


@pytest.mark.skipif(not runs.HAS_ONEDNN, reason="this torch has no oneDNN")
@pytest.mark.parametrize("keeps", [True, False])
def test_products_in_runs_cost_what_products_do(keeps, monkeypatch):
    monkeypatch.setattr(folding, "KEPT_AT_MOST", 2**60 if keeps else -1)
    sizes = dict(batch_size=3, seq_len=100, hidden_size=256, final_hidden_size=256)
    config = GCNConfig(**NARROW | sizes | dict(vocab_size=803, cutoffs=(300, 500)))
    model, run, _ = step(config)
    ran = count(run, Ownership(model, model.owners)).by_operator
    named = "scores_in_runs", "in_runs", "gradient_in_runs"
    assert {f"lmtime.{name}" for name in named} <= ran.keys()
    assert_predicted(config)


def test_pieces_have_the_room_of_later_gradients():
    """By hand: 1000 rows of 1000 scores, then 100 rows of 5000, few at once on a CPU."""
    n_rows, n_entries = [1_000, 100], [1_000, 5_000]
    assert folding.rows_at_once(n_rows, n_entries, [9, 1_000_000], "cpu") == [1_000, 50]
    assert folding.rows_at_once(n_rows, n_entries, [9, 300_000], "cpu") == [500, 100]
    assert folding.rows_at_once(n_rows, n_entries, [9, 9], "cuda") == [1_000, 100]
    assert folding.rows_at_once([0.4], [10], [1], "cpu") == [1]
    assert folding.rows_at_once([0], [10], [1], "cpu") == [1]


def test_half_of_the_scores_beyond_the_weights_may_live_at_once():
    """2**23 scores: 2**22 at once without weights, 2**19 beside 7 * 2**20, all beside 2**30."""
    for n_weights, n_pieces in ((0, 2), (7 * 2**20, 16), (2**30, 1)):
        (rows,) = folding.rows_at_once([2**13], [2**10], [n_weights], "cpu")
        assert rows == 2**13 // n_pieces


@every_case
def test_parameters_are_the_models(name):
    model = build(CONFIGS[name])
    ownership, found = Ownership(model, model.owners), {}
    for parameter in model.parameters():
        owner = ownership.owner_of_parameter(parameter)
        found[owner] = found.get(owner, 0) + parameter.numel()
    assert parameters(CONFIGS[name]) == found


@pytest.mark.parametrize("name", ["all of them", "more scores than are kept"])
def test_launches_are_the_executed_ones_and_the_host_waits_once(name):
    config = CONFIGS[name]
    model, run, hits = step(config)
    counts = count(run, Ownership(model, model.owners))
    predicted = costs(config, hits, ("forward", "backward")).values()
    assert sum(op.launches for ops in predicted for op in ops) == sum(counts.by_operator.values())
    assert sum(op.syncs for ops in predicted for op in ops) == 1
