"""Laws of training under a budget, and of what a trial leaves behind."""

import dataclasses
import math
from itertools import pairwise

import numpy as np
import pytest
import torch

from lmtime import corpora, models, plans, trials
from lmtime.config import configure
from lmtime.corpora import EOS, Corpus
from lmtime.errors import UsageError
from lmtime.models.training import Budget, held_out, rate_at, train
from lmtime.records import write_jsonl

WORDS = ("the", EOS, "a", "film", "good", "bad")
SMALL = configure(
    "gcn", hidden_size=16, embedding_size=8, n_layers=1, vocab_size=6, batch_size=2, seq_len=8,
    cutoffs=(3,), output_layer="fused-adaptive",
)  # fmt: skip


@pytest.fixture(scope="module")
def text():
    """Documents of a repeated sentence: quickly learnt, of 4 and 6 tokens in turn."""
    short, long = [0, 3, 4, 1], [2, 3, 5, 0, 3, 1]
    stream = np.array((short + long) * 60, dtype=np.int32)
    return Corpus("text", WORDS, {"train": stream, "valid": stream[:100]}, "")


def test_documents_are_whole_and_every_target_is_in_one(text):
    found = held_out(models.build(SMALL), text, 30)
    assert found.n_tokens.tolist() == [3, 6, 4, 6, 4, 6, 4], "the first token is nobody's target"
    assert found.n_tokens.sum() >= 30
    assert (found.nll > 0).all()
    assert found.perplexity == pytest.approx(6, rel=0.5), "untrained: every word alike"


def test_the_likelihood_of_a_document_is_that_of_its_tokens(text):
    """One window holds everything: the model's own loss, document by document."""
    network = models.build(dataclasses.replace(SMALL, batch_size=1, seq_len=64))
    found = held_out(network, text, 40)
    ids = torch.from_numpy(text.stream("valid")[: found.n_tokens.sum() + 1].astype(np.int64))[None]
    with torch.no_grad():
        mean = network(ids[:, :-1], ids[:, 1:])
    assert found.nll.sum() / found.n_tokens.sum() == pytest.approx(float(mean), rel=1e-5)


def test_training_learns_what_repeats(text):
    network = models.build(SMALL)
    before = held_out(network, text, 30).perplexity
    losses = train(network, text, Budget(6_000, 1e-2), seed=0)
    assert losses[-1] < losses[0]
    assert held_out(network, text, 30).perplexity < before / 2


def test_a_seed_repeats_a_trial_and_another_does_not(text, monkeypatch):
    monkeypatch.setattr(corpora, "load", lambda name, vocab_size: text)
    budget = Budget(400, held_out_tokens=30)
    first, again, other = (
        trials.trial("gcn", SMALL, budget, seed)["perplexity"] for seed in (0, 0, 1)
    )
    assert first == again != other


def test_the_rate_rises_then_falls_to_nothing():
    rates = [rate_at(i, 100) for i in range(100)]
    assert rates[0] == pytest.approx(1 / 5)
    assert max(rates) == 1
    assert rates[-1] < 0.01
    assert all(a >= b for a, b in pairwise(rates[5:]))
    assert rate_at(0, 1) == 1


def test_a_loss_that_is_no_number_stops_the_training(text):
    network = models.build(SMALL)
    with torch.no_grad():
        network.embedding.weight.fill_(math.nan)
    with pytest.raises(RuntimeError, match="lower the rate"):
        train(network, text, Budget(2_000), seed=0)


@pytest.mark.parametrize("fields", [{"n_tokens": 0}, {"learning_rate": 2.0}])
def test_a_budget_that_is_none_is_refused(fields):
    with pytest.raises(UsageError):
        Budget(**fields)


def test_a_trial_is_made_once_and_its_row_can_be_read(text, monkeypatch, tmp_path):
    monkeypatch.setenv("LMTIME_RESULTS", str(tmp_path))
    named = lambda name, vocab_size: dataclasses.replace(text, name=name)  # noqa: E731
    monkeypatch.setattr(corpora, "load", named)
    said = []
    for _ in range(2):
        path = trials.run_missing(
            [("gcn", SMALL, 0)], Budget(200, held_out_tokens=30), command="", say=said.append
        )
    assert len(path.read_text().splitlines()) == 1
    assert said[-1].endswith("already trained")


@pytest.mark.parametrize("layer", ["fused-adaptive", "full"])
def test_a_trial_whose_row_lacks_newer_fields_is_the_same(layer, tmp_path):
    config = configure("gcn", output_layer=layer)
    fields = dataclasses.asdict(config)
    del fields["dropout"]
    row = {"model": "gcn", "config": fields, "budget": dataclasses.asdict(Budget()), "seed": 3}
    path = tmp_path / "rows.jsonl"
    write_jsonl(path, [{**row, "corpus": {"name": "movie-reviews"}}])
    assert trials._has(path, "gcn", config, Budget(), 3, "movie-reviews")
    other = dataclasses.replace(config, seq_len=64)
    assert not trials._has(path, "gcn", other, Budget(), 3, "movie-reviews")
    assert not trials._has(path, "gcn", config, Budget(), 3, "wikitext-2")


def test_titles_name_what_leaves_torchs_shape():
    title = trials.title_of(
        dataclasses.asdict(plans.partitioned("four tails with a shared projection"))
    )
    assert title == (
        "fused-adaptive [60, 400, 2000, 10000] widths 256, 256, 64, 16 shared rank 256"
    )
