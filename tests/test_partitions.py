"""Laws of the search for partitions: it finds the cheapest there is, and keeps the floor."""

import json
from collections import defaultdict
from functools import cache
from itertools import combinations, pairwise
from pathlib import Path
from types import SimpleNamespace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import lmtime
from lmtime.calibration import Calibration, read_calibration
from lmtime.cost import clusters, partitions
from lmtime.cost.clusters import Layer
from lmtime.cost.fused_adaptive import fused_adaptive
from lmtime.cost.output_layers import adaptive
from lmtime.cost.partitions import (
    RankFloor,
    baseline_cutoffs,
    best_partitions,
    candidates,
    cheapest,
    front,
    partition,
)
from lmtime.cost.zipf import REVIEWS
from lmtime.errors import UsageError
from lmtime.hardware import find_gpu

REFERENCE = Path(lmtime.__file__).parent.parent / "data" / "results" / "amd-epyc-2-threads"
QUICK = Calibration("cpu", "a CPU", 1, {"fp32": 1e11}, 2e10)
DEVICES = {
    "FLOPs": clusters.work(),
    "GPU": clusters.published(find_gpu("v100-sxm2")),
    "large sizes": clusters.measured(QUICK),
    "measured": clusters.measured(read_calibration(REFERENCE / "calibration.json")),
}
each_device = pytest.mark.parametrize("prices", DEVICES.values(), ids=DEVICES)
falling = st.lists(st.integers(1, 10**6), min_size=40, max_size=90).map(
    lambda counts: sorted(counts, reverse=True)
)


def zipf(n_words):
    return [1e6 / (rank + 2.7) for rank in range(n_words)]


def few_candidates(monkeypatch, n):
    monkeypatch.setattr(partitions, "N_CANDIDATES", n)


# The programme against all partitions there are


def every_partition(ends, n_tails):
    *inside, last = ends
    for cutoffs in combinations(inside, n_tails):
        yield cutoffs, list(pairwise((*cutoffs, last)))


def least_of_all(ends, head, tail, n_tails):
    return min(
        head(cutoffs[0], n_tails) + sum(tail(*span) for span in spans)
        for cutoffs, spans in every_partition(ends, n_tails)
    )


@given(data=st.data(), n_ends=st.integers(2, 8))
@settings(max_examples=60, deadline=None)
def test_no_partition_is_cheaper_whatever_the_prices(data, n_ends):
    ends = list(range(1, n_ends + 1))
    price = st.integers(-50, 50)
    tails = {pair: data.draw(price) for pair in combinations(ends, 2)}
    heads = {(end, k): data.draw(price) for end in ends for k in range(1, n_ends)}
    found = cheapest(ends, lambda c, k: heads[c, k], lambda a, b: tails[a, b], n_ends - 1)
    assert list(found) == list(range(1, n_ends))
    for n_tails, (cost, cutoffs) in found.items():
        assert cost == least_of_all(
            ends, lambda c, k: heads[c, k], lambda a, b: tails[a, b], n_tails
        )
        spans = pairwise((*cutoffs, ends[-1]))
        assert cost == heads[cutoffs[0], n_tails] + sum(tails[span] for span in spans)


def test_more_tails_than_there_are_places_are_left_out():
    found = cheapest([1, 2, 3], lambda c, k: c, lambda a, b: b - a, 6)
    assert list(found) == [1, 2]


@each_device
def test_no_partition_of_a_layer_is_cheaper(prices, monkeypatch):
    few_candidates(monkeypatch, 9)
    layer, floor = Layer(zipf(500), 96, 128, prices), RankFloor(96, 500, 1 / 2)
    ends = candidates(500, floor.baseline.cutoffs)

    @cache
    def tail(start, end):
        return min(layer.tail(start, end, w) for w in {floor.width(start), 96})

    for found in best_partitions(layer, floor):
        least = least_of_all(ends, cache(layer.head), tail, len(found.cutoffs))
        assert found.price == pytest.approx(least, rel=1e-12)


@given(counts=falling, factor=st.sampled_from([1, 1 / 2, 1 / 8]), n_tokens=st.integers(1, 500))
@settings(max_examples=15, deadline=None)
def test_no_partition_is_cheaper_whatever_the_counts(counts, factor, n_tokens):
    n = len(counts)
    layer, floor = Layer(counts, 64, n_tokens, DEVICES["GPU"]), RankFloor(64, n, factor)
    ends = sorted({1, 3, 8, 20, *floor.baseline.cutoffs, n})

    @cache
    def tail(start, end):
        return layer.tail(start, end, floor.width(start))

    for n_tails, (cost, _) in cheapest(ends, layer.head, tail, 4).items():
        least = least_of_all(ends, layer.head, tail, n_tails)
        assert cost == pytest.approx(least, rel=1e-12)


# What a partition costs


@pytest.mark.parametrize("execution", ["torch", "fused"])
@each_device
def test_a_partition_costs_what_the_operators_of_its_layer_do(prices, execution):
    """Of tokens so many that scores are dropped, and so few that a band is one piece."""
    counts, d, n = zipf(3000), 256, 550
    layer = Layer(counts, d, n, prices, execution)
    found = partition(layer, (100, 700), (64, 16))
    hits = [n * layer.share(100, 700), n * layer.share(700, 3000)]
    shape = SimpleNamespace(final_hidden_size=d, vocab_size=3000, cutoffs=(100, 700), div_value=4.0)
    formulas = {"torch": adaptive, "fused": fused_adaptive}[execution]
    operators = [op for ops in formulas(shape, n, hits, 4, in_rows=True).values() for op in ops]
    if execution == "torch":  # the first tail is charged as others are
        operators.append(clusters.later_tail_backward(n, hits[0], 4))
    whole = sum(map(prices.operator, operators))
    assert found.price == pytest.approx(whole, rel=1e-12)
    assert found.flops_per_token == pytest.approx(sum(op.flops for op in operators) / n)


def test_predicted_times_are_near_the_measured_ones():
    """A network's output layer and loss at the default cutoffs, as its reference rows have it."""
    shares = [REVIEWS.cumulative_share(rank) for rank in range(2000, 33_279)]
    counts = [shares[0] / 2000] * 2000 + [b - a for a, b in pairwise(shares)]
    measured = defaultdict(float)
    for line in (REFERENCE / "accuracy.jsonl").read_text().splitlines():
        row = json.loads(line)
        shape = row["output_layer"], row["vocab_size"], row.get("cutoffs"), row.get("div_value")
        is_layer = row["owner"] in ("output layer", "loss") and row["model"] == "gcn"
        if is_layer and shape == ("adaptive", 33_278, [2000, 10_000], 4.0):
            sizes = row["final_hidden_size"], row["batch_size"] * row["seq_len"]
            measured[(*sizes, row["run_id"])] += row["latency_ms"]
    wide = {sizes: ms for sizes, ms in measured.items() if sizes[0] >= 512 and sizes[1] >= 256}
    assert len(wide) >= 5
    for (d, n, _), ms in wide.items():
        layer = Layer(counts, d, n, DEVICES["measured"], "torch")
        predicted = partition(layer, (2000, 10_000), (d // 4, d // 16)).price
        assert 0.75 < predicted / ms < 1.2


def test_a_tail_as_wide_as_the_layer_is_not_projected():
    layer = Layer(zipf(400), 64, 100, DEVICES["FLOPs"])
    hits = 100 * layer.share(50, 400)
    assert layer.tail(50, 400, 64) == pytest.approx(6 * hits * 64 * 350)
    assert layer.tail(50, 400, 16) == pytest.approx(6 * hits * (64 * 16 + 16 * 350))


def test_mean_rank_weighs_widths_with_how_often_words_are_met():
    layer = Layer([6, 2] + [1 / 15] * 30, 64, 10, DEVICES["FLOPs"])
    assert partition(layer, (1, 2), (32, 16)).mean_rank_per_token == pytest.approx(
        0.6 * 64 + 0.2 * 32 + 0.2 * 16
    )


# The floor


@pytest.mark.parametrize("factor", [1, 1 / 2, 1 / 4, 1 / 64])
@pytest.mark.parametrize("hidden_size", [64, 300, 1024])
def test_no_word_gets_less_than_its_part_of_the_baseline(factor, hidden_size, monkeypatch):
    few_candidates(monkeypatch, 14)
    layer = Layer(zipf(12_000), hidden_size, 64, DEVICES["FLOPs"])
    floor = RankFloor(hidden_size, 12_000, factor)
    base = [(0, hidden_size), (2000, hidden_size // 4), (10_000, hidden_size // 16)]
    for found in best_partitions(layer, floor):
        assert found.rank_floor == factor
        for start, width in zip(found.cutoffs, found.widths, strict=True):
            given = next(w for first, w in reversed(base) if start >= first)
            assert max(factor * given, min(16, hidden_size)) <= width <= hidden_size
            assert width % 16 == 0 or width == hidden_size


@given(st.integers(32, 50_000), st.integers(16, 2048), st.floats(0.01, 1), st.data())
@settings(max_examples=60, deadline=None)
def test_the_floor_never_rises_with_the_id(vocab_size, hidden_size, factor, data):
    floor = RankFloor(hidden_size, vocab_size, factor)
    a, b = sorted(data.draw(st.tuples(*[st.integers(0, vocab_size - 1)] * 2)))
    assert floor.least(a) >= floor.least(b)
    assert floor.width(a) >= floor.width(b)


@each_device
def test_the_best_is_never_dearer_than_torchs_partition_and_a_lower_floor_never_dearer(
    prices, monkeypatch
):
    few_candidates(monkeypatch, 24)
    layer = Layer(zipf(20_000), 512, 256, prices)
    floors = [RankFloor(512, 20_000, factor) for factor in (1, 1 / 2, 1 / 4)]
    prices_of = [[p.price for p in best_partitions(layer, floor)] for floor in floors]
    base = floors[0].baseline  # as the same implementation executes it
    assert prices_of[0][1] <= partition(layer, base.cutoffs, base.tail_dims).price
    if prices is not DEVICES["measured"]:  # a measured rate may fall with the width
        for higher, lower in pairwise(prices_of):
            assert all(b <= a for a, b in zip(higher, lower, strict=True))


def test_candidates_rise_hold_what_is_asked_for_and_end_with_the_vocabulary():
    ends = candidates(33_278, (2000, 10_000))
    assert ends == sorted(set(ends))
    assert {1, 2, 3, 2000, 10_000} <= set(ends)
    assert ends[-1] == 33_278
    assert 80 < len(ends) <= partitions.N_CANDIDATES + 3
    assert all(b / a < 1.15 for a, b in pairwise(ends) if a > 30)


def test_more_candidates_find_little_more(monkeypatch):
    layer, floor = Layer(zipf(20_000), 512, 256, DEVICES["FLOPs"]), RankFloor(512, 20_000, 1 / 4)
    found = [p.price for p in best_partitions(layer, floor)]
    few_candidates(monkeypatch, 200)
    for coarse, fine in zip(found, best_partitions(layer, floor), strict=True):
        assert coarse < 1.005 * fine.price


def test_the_baseline_of_a_small_vocabulary_is_the_same_parts_of_it():
    assert baseline_cutoffs(33_278) == baseline_cutoffs(10_001) == (2000, 10_000)
    assert baseline_cutoffs(3328) == (200, 1000)
    for vocab_size in range(partitions.FEWEST_WORDS, 300):
        low, high = baseline_cutoffs(vocab_size)
        assert 1 <= low < high < vocab_size


@pytest.mark.parametrize(
    "given, wanted",
    [
        ((1024, 31), "a vocabulary of 31 words is too small to divide"),
        ((1024, 1000, 0.0), "rank floor 0 must be above 0 and at most 1"),
        ((1024, 1000, 1.5), "rank floor 1.5 must be above 0"),
        ((1024, 1000, 1.0, 1025), "min_width=1025 must lie between 1 and the hidden size, 1024"),
        ((8, 1000, 1.0, 4), "none of the 8 hidden dimensions"),
    ],
)
def test_a_floor_that_cannot_be_is_refused(given, wanted):
    with pytest.raises(UsageError, match=wanted):
        RankFloor(*given)


def test_the_front_is_what_no_other_beats_in_price_and_rank(monkeypatch):
    few_candidates(monkeypatch, 12)
    found = front(Layer(zipf(3000), 256, 128, DEVICES["GPU"]))
    assert {(p.rank_floor, len(p.cutoffs)) for p, _ in found} == {
        (floor, k) for floor in partitions.RANK_FLOORS for k in range(1, 7)
    }
    kept = [p for p, on_front in found if on_front]
    for p, on_front in found:
        beaten = [
            q
            for q, _ in found
            if q.price <= p.price
            and q.mean_rank_per_token >= p.mean_rank_per_token
            and (q.price, q.mean_rank_per_token) != (p.price, p.mean_rank_per_token)
        ]
        assert on_front == (not beaten)
    assert min(p.price for p, _ in found) == min(p.price for p in kept)
