"""Fronts from records: whose rows count, what is published, what is missing and how to get it."""

import numpy as np
import pytest
from front_rows import at_hand, grid, latency_row, score_row, trained

from lmtime.config import ENCODERS, SubNetwork
from lmtime.encoders import fronts, published_scores
from lmtime.encoders.fronts import Place
from lmtime.errors import UsageError
from lmtime.pareto.front import Budget

HERE = Place("cpu-1-thread")
N = 50


def front(task="sst2", place=HERE, **more):
    return fronts.task_front(task, place, n_resamples=N, **more)


def test_published_rows_are_the_paper_s_twelve_parts():
    rows = fronts.published_rows("rte")
    full = ENCODERS["bert-base"]
    assert len(rows) == 12
    for row, score in zip(rows, published_scores.dynabert("rte"), strict=True):
        assert row["score"] == score.score
        assert np.mean(row["samples"]) == pytest.approx(score.score, abs=100 / 277)
        assert len(row["samples"]) == 277
        config = SubNetwork.of_row(row).config(full)
        assert (config.n_layers, config.heads[0]) == (score.n_layers, score.n_heads)
        assert config.ffn_sizes[0] == score.ffn_size


def test_this_machine_s_rows_come_before_the_reference(monkeypatch):
    at_hand(monkeypatch, own=grid(speed=2), reference=grid())
    rows, whose = fronts.latencies("bert-base", HERE)
    assert whose == "this machine"
    assert {r["name"]: r["latency_ms"] for r in rows}["w1 d1"] == pytest.approx(164 / 2)
    found = front()
    assert (found.latencies_of, found.network) == ("this machine", "bert-base")
    assert found.scores_of.startswith("published")


def test_a_few_rows_of_another_study_do_not_hide_the_reference(monkeypatch):
    """The study of depth leaves the whole network's row on a machine that measured no grid."""
    at_hand(monkeypatch, own=[latency_row("w1 d1")], reference=grid(device_name="another CPU"))
    found = front()
    assert (found.latencies_of, found.device_name) == ("reference", "another CPU")
    assert len(found.table.rows) == 12


def test_rows_that_failed_their_gate_do_not_count(monkeypatch):
    at_hand(monkeypatch, own=grid(quality="drift"), reference=grid())
    assert front().latencies_of == "reference"


def test_a_budget_is_kept_and_the_json_document_says_whose_rows_it_is_of(monkeypatch):
    at_hand(monkeypatch, own=grid())
    doc = front(budget=Budget(max_latency_ms=60)).document()
    assert doc["provenance"] == {
        "latencies": "this machine",
        "scores": "published (Hou et al. 2020)",
        "device_name": "a CPU",
    }
    assert (doc["task"], doc["device"], doc["seq_len"]) == ("sst2", "cpu-1-thread", 128)
    on = [row for row in doc["rows"] if row["on_front"]]
    assert on and all(row["latency_ms"] <= 60 for row in on)


def test_scores_that_were_trained_come_before_published_ones(monkeypatch):
    own = trained("bert-base", "sst2")
    at_hand(monkeypatch, own=grid(), scores=own)
    rows, whose = fronts.scores("sst2", "bert-base")
    assert (len(rows), whose) == (12, "this machine")  # without the network trained alone
    assert fronts.scores("rte", "bert-base")[1].startswith("published")


def test_of_several_trainings_a_score_is_the_mean(monkeypatch):
    first, wrong = trained(), [{**row, "seed": 1, "predicted": "01" * 20} for row in trained()]
    at_hand(monkeypatch, own=grid("minilm-l6"), scores=[*wrong, *first])
    both = fronts.task_front("sentiment", HERE, n_resamples=N).table.rows
    at_hand(monkeypatch, own=grid("minilm-l6"), scores=first)
    one = fronts.task_front("sentiment", HERE, n_resamples=N).table.rows
    assert [row["score"] for row in both] == [row["score"] / 2 for row in one]


def test_what_was_trained_and_not_learnt_has_no_front_on_a_page(monkeypatch):
    learnt, chance = trained(task="cola"), trained(task="rte", score_low=49.0)
    at_hand(monkeypatch, own=grid("minilm-l6"), scores=[*chance, *learnt])
    assert fronts.scored_tasks("minilm-l6") == ["cola"]
    assert {f.task for f in fronts.all_fronts("minilm-l6", n_resamples=N)} == {"cola"}
    assert fronts.task_front("rte", HERE, network="minilm-l6", n_resamples=N).table.rows


def test_what_is_missing_is_told_with_the_command_that_gets_it(monkeypatch):
    at_hand(monkeypatch, own=grid()[:3], scores=trained())
    with pytest.raises(UsageError, match=r"less than half.*pareto measure --network bert-base "):
        front()
    with pytest.raises(UsageError, match=r"no latency of bert-base.*--device cuda --engine torch"):
        front(place=Place("cuda"))
    with pytest.raises(UsageError, match=r"on none at all; .*--batch-size 8 --seq-len 128` meas"):
        front(place=Place("cpu-1-thread", batch_size=8))
    with pytest.raises(UsageError, match=r"device 'gpu': choose cuda, cpu-1-thread"):
        front(place=Place("gpu"))
    at_hand(monkeypatch, own=grid(), scores=trained())
    with pytest.raises(UsageError, match=r"cpu-1-thread with torch, batch 1 of 128 tokens"):
        front(place=Place("cuda"))
    with pytest.raises(UsageError, match=r"score on cola: sentiment with minilm-l6.*pareto train"):
        front("cola", network="minilm-l6")
    at_hand(monkeypatch)
    with pytest.raises(UsageError, match="there are latencies on none at all"):
        front()
    with pytest.raises(UsageError, match="nothing has been trained"):
        front("sentiment")


def test_unknown_names_are_refused():
    with pytest.raises(UsageError, match="unknown task 'sst3'"):
        front("sst3")
    with pytest.raises(UsageError, match="unknown network 'bert'"):
        front(network="bert")


def test_all_fronts_are_of_every_task_at_the_same_places(monkeypatch):
    two = grid(device="cpu-2-threads", speed=1.5)
    longer = [r | {"seq_len": 256} for r in grid()]
    partial = grid(engine="onnxruntime")[:4]
    at_hand(monkeypatch, own=[*two, *longer, *partial], reference=grid())
    found = fronts.all_fronts("bert-base", n_resamples=N)
    assert [f.task for f in found[::2]] == list(published_scores.TASKS)
    assert {f.place for f in found} == {HERE, Place("cpu-2-threads")}
    assert found[0].place == HERE and len(found) == 2 * len(published_scores.TASKS)


def test_without_rows_there_are_no_fronts_and_no_error(monkeypatch):
    at_hand(monkeypatch, scores=trained())
    assert fronts.all_fronts("bert-base") == fronts.all_fronts("minilm-l6") == []
    assert fronts.measured("bert-base") == []
    at_hand(monkeypatch, own=grid("minilm-l6"))
    assert fronts.all_fronts("minilm-l6") == []  # nothing was trained


def test_what_was_measured_is_listed_by_place_this_machine_s_first(monkeypatch):
    onnx = grid(engine="onnxruntime", device_name="b")
    at_hand(monkeypatch, own=[*onnx, *grid(device_name="b")], reference=grid(device="cuda"))
    found = fronts.measured("bert-base")
    assert [(s.whose, s.place.in_words, s.device_name) for s in found] == [
        ("this machine", "torch, cpu 1 thread", "b"),
        ("this machine", "ONNX Runtime, cpu 1 thread", "b"),
        ("reference", "torch, cuda", "a CPU"),
    ]
    assert all(len(s.rows) == 12 for s in found)


def test_a_rule_is_a_device_whose_latency_is_work_or_layers():
    scored = [score_row("w1 d1", 30), score_row("w1/2 d1/2", 20)]
    flops = fronts.as_device(scored, "minilm-l6", "flops")
    assert [row["latency_ms"] for row in flops] == [
        SubNetwork.of_row(row).config(ENCODERS["minilm-l6"]).flops(1, 128) / 1e9 for row in scored
    ]
    layers = fronts.as_device([*scored, *scored], "minilm-l6", "layers")
    assert [row["latency_ms"] for row in layers] == [6, 3]
    assert layers[0]["parameters"] == ENCODERS["minilm-l6"].parameters
