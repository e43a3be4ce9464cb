"""Laws of `lmtime compare` and `lmtime train`: rows, sentences, and what they refuse."""

import json

import pytest

from lmtime import layer_charts
from lmtime.timing import pages

SMALL = [
    "compare", "--hidden-size=16", "--vocab-size=500", "--n-tokens=20", "--cutoffs=50,200",
    "--seconds=0.05", "--device=cpu",
]  # fmt: skip
CONTRACT = {
    "layer", "exact", "latency_ms", "ratio_to_torch_adaptive", "ratio_low", "ratio_high",
    "ratio_to_gemm", "peak_bytes", "flops", "kernels", "syncs",
}  # fmt: skip


def test_the_document_has_a_row_a_layer_with_every_field_of_the_contract(command):
    code, out, _ = command(*SMALL, "--json", "-")
    assert code == 0
    doc = json.loads(out)
    assert doc["schema"] == "lmtime/1"
    assert doc["rows"][0]["layer"] == "torch-adaptive"
    for row in doc["rows"]:
        assert row.keys() >= CONTRACT
        assert row["ratio_low"] <= row["ratio_to_torch_adaptive"] <= row["ratio_high"]
    exact = {r["layer"] for r in doc["rows"] if r["exact"]}
    assert exact == {
        "torch-adaptive", "fused-adaptive", "fused-adaptive-planned", "fused-adaptive-fast"
    }  # fmt: skip


def test_the_table_says_where_no_difference_is_shown(command):
    code, out, _ = command(*SMALL, "--layers", "fused-adaptive")
    assert code == 0
    assert "torch-adaptive" in out
    assert "bare matrix products" in out


@pytest.mark.parametrize("option, kept", [((), True), (("--return-pages",), False)])
def test_freed_memory_is_kept_unless_it_is_to_go_back(command, monkeypatch, option, kept):
    told = []
    monkeypatch.setattr(pages, "keep_pages", lambda: told.append(True) or True)
    code, _, _ = command(*SMALL, "--layers", "fused-adaptive", *option)
    assert (code, bool(told)) == (0, kept)


@pytest.mark.parametrize(
    ("arguments", "wanted"),
    [
        (["--layers", "quick"], "unknown layer 'quick': choose one of torch-adaptive"),
        (["--seconds", "0"], "--seconds 0.0 must be more than 0"),
        (["--n-tokens", "0"], "n_tokens=0 must be a whole number"),
        (["--hidden-size", "0"], "hidden_size=0 must be a whole number"),
        (["--cutoffs", "200,50"], "cutoffs 200,50 do not fit"),
        (["--cutoffs", "x"], "--cutoffs 'x' is not a list of whole numbers"),
        (["--json", "no/such/folder.json"], "cannot be written"),
    ],
)
def test_a_mistake_costs_one_sentence(command, tmp_path, arguments, wanted):
    code, out, err = command(*SMALL, *arguments)
    assert (code, out) == (2, "")
    assert wanted in err
    assert "Traceback" not in err
    assert list(tmp_path.iterdir()) == []


def test_train_tells_a_perplexity_and_refuses_a_model_without_choices(command):
    sizes = ["--hidden-size=16", "--embedding-size=8", "--n-layers=1", "--vocab-size=500",
             "--cutoffs=50", "--output-layer=fused-adaptive", "--batch-size=32"]  # fmt: skip
    code, out, err = command("train", "gcn", *sizes, "--n-tokens=4096", "--json", "-")
    assert code == 0
    (row,) = json.loads(out)["rows"]
    assert 1 < row["perplexity"] < 600
    assert row["n_tokens"] == sum(row["document_tokens"])
    code, _, err = command("train", "gpt2")
    assert code == 2
    assert "gpt2 has no output layers to choose from" in err
    assert command("train", "gcn", "--learning-rate", "3")[0] == 2


ROW = {
    "layer": "fused-adaptive", "hidden_size": 512, "n_tokens": 64, "latency_ms": 2.0,
    "latency_ms_low": 1.9, "latency_ms_high": 2.2, "ratio_to_torch_adaptive": 0.9,
    "ratio_low": 0.85, "ratio_high": 0.95, "ratio_to_gemm": 1.1, "ratio_to_gemm_low": 1.0,
    "ratio_to_gemm_high": 1.2,
}  # fmt: skip


@pytest.mark.parametrize("to", ["torch_adaptive", "gemm"])
def test_a_chart_of_ratios_draws_each_row_with_its_interval(to):
    rows = [ROW, {**ROW, "n_tokens": 1024}, {**ROW, "layer": "another"}]
    spec = layer_charts.ratios(rows, "n_tokens", "What it shows.", to=to).to_dict()
    assert "What it shows." in str(spec)
    assert str(spec).count("'ratio': ") >= 3


def test_the_front_tells_the_dominated_from_the_others():
    point = {"layer": "a", "time": 0.5, "time_low": 0.4, "time_high": 0.6, "change": 0.01,
             "low": -0.01, "high": 0.02}  # fmt: skip
    rows = [{**point, "on_front": True}, {**point, "layer": "b", "on_front": False}]
    text = str(layer_charts.front(rows, "A front.").to_dict())
    assert "'on the front'" in text
    assert "'dominated'" in text


def test_the_chart_by_memory_has_a_point_and_an_interval_for_each_row():
    rows = [{**ROW, "memory": name} for name in ("kept", "goes back")]
    spec = layer_charts.by_memory(rows, "By memory.").to_dict()
    (values,) = [found["data"]["values"] for found in (spec, *spec["layer"]) if "data" in found]
    assert [(v["memory"], v["low"], v["ms"], v["high"]) for v in values] == [
        ("kept", 1.9, 2.0, 2.2), ("goes back", 1.9, 2.0, 2.2),
    ]  # fmt: skip


def test_the_scaling_chart_is_logarithmic_in_both():
    spec = layer_charts.scaling([ROW, {**ROW, "hidden_size": 1024}], "Growth.").to_dict()
    assert str(spec).count("'type': 'log'") >= 2
