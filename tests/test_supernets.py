"""A small super-network from its weights to its rows."""

import dataclasses
import json

import numpy as np
import pytest
import torch

from lmtime import tasks
from lmtime.config import EncoderConfig, SubNetwork, find_encoder
from lmtime.encoders import supernets
from lmtime.encoders.supernets import BUDGETS, Budget, Job, budget_of, run
from lmtime.errors import UsageError
from lmtime.metrics import score
from lmtime.models.batches import TOKENIZER, tokenise
from lmtime.models.checkpoint import load_encoder, minilm_folder, save_encoder
from lmtime.models.encoder import Encoder, cut
from lmtime.models.finetuning import DepthSchedule, Schedule, evaluate
from lmtime.records import read_jsonl
from lmtime.tasks import Examples, LabelledText

GOOD = ["a fine film", "quietly moving and very well acted", "funny, warm and wise", "a delight"]
BAD = ["a dull mess", "the plot never makes sense", "loud, long and stupid", "a bore"]
BRIEF = Schedule(1, 1e-3, 4)
BUDGET = Budget(BRIEF, BRIEF, DepthSchedule(1, 1e-3, 4, n_random=1), n_importance=4)

pytestmark = pytest.mark.usefixtures("one_thread")


def examples(n):
    texts = [(text, None) for pair in zip(GOOD, BAD, strict=True) for text in pair] * n
    return Examples(texts, np.array([1, 0] * 4 * n))


def labelled(metric="accuracy", n_classes=2):
    train, dev = examples(2), examples(1)
    if n_classes == 1:
        train, dev = (Examples(e.texts, 2.5 * e.labels) for e in (train, dev))
    return LabelledText("sentiment", train, dev, n_classes, metric, "00")


SMALL = EncoderConfig(
    hidden_size=8, head_size=4, heads=(4,) * 6, ffn_sizes=(8,) * 6, vocab_size=30_522
)


@pytest.fixture(autouse=True)
def place(tmp_path, monkeypatch):
    monkeypatch.setenv("LMTIME_RESULTS", str(tmp_path / "results"))
    monkeypatch.setattr(tasks, "load", lambda name: labelled())
    small = {"minilm-l6": SMALL}
    monkeypatch.setattr(supernets, "find_encoder", lambda n: small.get(n) or find_encoder(n))


@pytest.fixture(scope="module")
def weights(tmp_path_factory):
    """Six layers of MiniLM's kind, small ones, with its tokenizer."""
    folder = tmp_path_factory.mktemp("weights")
    torch.manual_seed(0)
    save_encoder(Encoder(SMALL), folder)
    (folder / TOKENIZER).write_bytes((minilm_folder() / TOKENIZER).read_bytes())
    return folder


def rows_of(path, **fields):
    return [r for r in read_jsonl(path) if all(r[k] == v for k, v in fields.items())]


def test_rows_are_of_the_teacher_and_of_every_width_and_depth(weights):
    job = Job(weights=weights, seed=4)
    path = run(job, BUDGET, command="test")
    rows = read_jsonl(path)
    assert len(rows) == 1 + 4 * 4
    assert rows[0]["name"] == "fine-tuned" and rows[0]["width"] is rows[0]["depth"] is None
    assert [r["name"] for r in rows[1:3]] == ["w1 d1", "w3/4 d1"]
    last = rows_of(path, name="w1/4 d1/2")[0]
    assert (last["width"], last["depth"]) == (0.25, 0.5)
    assert (last["layers"], last["heads"], last["ffn_sizes"]) == ([0, 2, 4], [1] * 3, [2] * 3)
    assert (last["network"], last["task"], last["seed"]) == ("minilm-l6", "sentiment", 4)
    for row in rows:
        assert row["n_examples"] == len(row["labels"]) == len(row["predicted"]) == 8
        labels, predicted = (np.array(list(map(int, row[k]))) for k in ("labels", "predicted"))
        assert row["score"] == score(row["metric"], labels, predicted)
        assert row["score_low"] <= row["score"] <= row["score_high"]


def test_what_is_kept_predicts_what_the_rows_say(weights):
    job = Job(weights=weights)
    path = run(job, BUDGET, command="test")
    dev = tokenise(job.folder, examples(1))
    network = load_encoder(job.folder)
    for row in rows_of(path, name="w1/2 d5/6") + rows_of(path, name="w1/4 d1/2"):
        sub = SubNetwork(*(tuple(row[k]) for k in ("layers", "heads", "ffn_sizes")))
        small = cut(network, sub)
        assert "".join(map(str, evaluate(small, dev, [None])[0])) == row["predicted"]
        assert small.config.parameters == row["parameters"]
    teacher = load_encoder(job.folder / "fine-tuned")
    fine_tuned = rows_of(path, name="fine-tuned")[0]
    assert "".join(map(str, evaluate(teacher, dev, [None])[0])) == fine_tuned["predicted"]
    assert not (job.folder / "stages").exists()


def test_conditions_say_what_was_spent(weights):
    path = run(Job(weights=weights), BUDGET, command="test")
    conditions = read_jsonl(path.parent / "provenance.jsonl")[-1]
    assert {r["run_id"] for r in read_jsonl(path)} == {conditions["run_id"]}
    notes = conditions["notes"]
    assert notes["budget"] == json.loads(json.dumps(dataclasses.asdict(BUDGET)))
    assert notes["examples_trained"] == 3 * 16
    assert list(notes["stages"]) == ["fine-tuning", "width", "depth"]
    assert all(s["steps"] == 4 and s["cpu_seconds"] > 0 for s in notes["stages"].values())


def test_a_longer_training_replaces_a_shorter_one_and_not_the_reverse(weights, monkeypatch):
    longer = dataclasses.replace(BUDGET, width=Schedule(2, 1e-3, 4))
    other = run(Job(weights=weights, seed=1), BUDGET, command="test")
    path = run(Job(weights=weights), BUDGET, command="test")
    first = rows_of(path, seed=0)
    run(Job(weights=weights), longer, command="test")
    second = rows_of(path, seed=0)
    assert path == other and len(first) == len(second) == len(rows_of(path, seed=1)) == 17
    assert first[0]["run_id"] != second[0]["run_id"]
    told = []
    monkeypatch.setattr(supernets, "train", None)
    run(Job(weights=weights), BUDGET, command="test", say=told.append)
    assert told == ["minilm-l6-sentiment-0: already trained"]
    assert rows_of(path, seed=0) == second


def test_weights_that_are_none_are_refused_before_anything_is_made(tmp_path):
    with pytest.raises(UsageError, match=r"is no checkpoint: it must hold config\.json and model"):
        run(Job(weights=tmp_path), BUDGET, command="test")
    (tmp_path / "config.json").write_text("{}")
    (tmp_path / "pytorch_model.bin").touch()
    with pytest.raises(UsageError, match=r"pytorch_model\.bin is pickled and never read"):
        run(Job(weights=tmp_path), BUDGET, command="test")
    assert not (tmp_path / "results").exists()


def test_one_that_was_interrupted_gives_the_same_rows(weights, monkeypatch, tmp_path):
    rows = read_jsonl(run(Job(weights=weights), BUDGET, command="test"))
    monkeypatch.setenv("LMTIME_RESULTS", str(tmp_path / "elsewhere"))
    with monkeypatch.context() as patch, pytest.raises(KeyboardInterrupt):
        patch.setattr(supernets, "train_depth", interrupt)
        run(Job(weights=weights), BUDGET, command="test")
    assert not read_jsonl(Job().path)
    again = read_jsonl(run(Job(weights=weights), BUDGET, command="test"))
    assert [r | {"run_id": ""} for r in again] == [r | {"run_id": ""} for r in rows]


def interrupt(*args, **more):
    raise KeyboardInterrupt


def test_numbers_are_kept_as_they_are(weights, monkeypatch):
    monkeypatch.setattr(tasks, "load", lambda name: labelled("pearson_spearman", 1))
    row = read_jsonl(run(Job(weights=weights), BUDGET, command="test"))[-1]
    assert row["labels"] == [2.5, 0.0] * 4
    assert all(isinstance(value, float) for value in row["predicted"])


def test_a_part_of_the_data_is_a_part(weights, monkeypatch):
    seen, fine_tune = [], supernets.fine_tune
    monkeypatch.setattr(
        supernets,
        "fine_tune",
        lambda n, d, s, run: seen.append(len(d)) or fine_tune(n, d, s, run=run),
    )
    part = dataclasses.replace(BUDGET, n_train=6, n_dev=3)
    rows = read_jsonl(run(Job(weights=weights), part, command="test"))
    assert seen == [6]
    assert {r["n_examples"] for r in rows} == {3}


def test_the_teacher_meets_enough_examples_of_a_small_task():
    paper = budget_of("paper")
    for n_train, epochs in ((7_475, 2), (7_000, 2), (6_999, 3), (2_127, 7)):
        assert paper.teacher_of(n_train).epochs == epochs
        assert paper.n_examples(n_train) == (epochs + 3) * n_train
    assert budget_of("quick").n_examples(100) == 4 * 100


def test_presets_grow_and_smoke_is_only_for_tests(monkeypatch):
    assert budget_of("smoke").n_dev < budget_of("quick").n_dev < 1000
    assert budget_of("smoke").n_examples(7000) < budget_of("quick").n_examples(7000)
    assert budget_of("quick").n_examples(7000) < budget_of("paper").n_examples(7000) == 5 * 7000
    monkeypatch.delenv("LMTIME_RESULTS")
    with pytest.raises(UsageError, match="LMTIME_RESULTS"):
        budget_of("smoke")
    with pytest.raises(UsageError, match="smoke, quick, paper"):
        budget_of("long")
    assert set(BUDGETS) == {"smoke", "quick", "paper"}


def test_networks_without_weights_are_refused():
    job = Job("bert-base")
    with pytest.raises(UsageError, match="no weights of bert-base"):
        run(job, BUDGET, command="test")
    assert not job.folder.exists()
    with pytest.raises(UsageError, match="minilm-l6"):
        Job("bert")
    with pytest.raises(UsageError, match="n_train=0"):
        dataclasses.replace(BUDGET, n_train=0)


def test_other_weights_or_none_are_trained_anew_or_refused(weights, tmp_path, monkeypatch):
    job = Job(weights=weights)
    path = run(job, BUDGET, command="test")
    first = read_jsonl(path)[0]["run_id"]
    (job.folder / "model.safetensors").unlink()  # rows whose network is gone are no training
    assert read_jsonl(run(job, BUDGET, command="test"))[0]["run_id"] != first
    other = tmp_path / "other"
    torch.manual_seed(1)
    save_encoder(Encoder(SMALL), other)
    (other / TOKENIZER).write_bytes((weights / TOKENIZER).read_bytes())
    second = read_jsonl(path)[0]["run_id"]
    run(Job(weights=other), BUDGET, command="test")
    assert read_jsonl(path)[0]["run_id"] != second
    monkeypatch.setattr(supernets, "find_encoder", lambda name: EncoderConfig())
    with pytest.raises(UsageError, match="is no minilm-l6: its hidden_size is 8"):
        run(Job(weights=other, seed=9), BUDGET, command="test")
