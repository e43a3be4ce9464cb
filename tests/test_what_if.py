"""The pages on vocabularies, GPUs and decoders compute what Python computes."""

import json
from itertools import product
from types import SimpleNamespace

import altair as alt
import numpy as np
import pytest

from lmtime import cost, explorer, inverse
from lmtime.config import PRESETS, GCNConfig
from lmtime.config.decoders import DECODERS
from lmtime.cost import decoders, precision, vocabulary
from lmtime.cost.huggingface import forward_flops
from lmtime.cost.precision import PRECISIONS
from lmtime.cost.step import GROUPS, group_ms, n_operators
from lmtime.explorer import gpus as gpu_page
from lmtime.explorer import tracing
from lmtime.explorer import vocabulary as vocabulary_page
from lmtime.explorer.decoders import head_share, tokens_below
from lmtime.hardware import GPUS, find_gpu
from lmtime.publishing.vega_eval import evaluate, signal_texts

N_POINTS = 300


def signals_at(chart, wanted, **moved):
    """Values of the chart's signals after its controls were moved there."""
    params = json.loads(chart.to_json())["params"]
    signals = [
        {"name": p["name"], "update": p["expr"]}
        if "expr" in p
        else {"name": p["name"], "value": moved.get(p["name"], p["value"])}
        for p in params
    ]
    spec = {"$schema": "https://vega.github.io/schema/vega/v6.json", "signals": signals}
    return [float(text) for text in signal_texts(spec, wanted)]


@pytest.fixture(scope="module")
def vocabulary_chart():
    return explorer.vocabulary_explorer()


@pytest.fixture(scope="module")
def gpu_chart():
    return explorer.gpu_explorer()


# Vocabularies


def vocabulary_points():
    rng = np.random.default_rng(1)
    return [
        {
            "h": int(rng.integers(16, 4097)),
            "b": int(rng.integers(1, 513)),
            "words": int(rng.integers(10_001, 1_000_001)),
            "scaled": int(rng.integers(2)),
            "flops_per_s": float(10 ** rng.uniform(11, 15.5)),
            "bytes_per_s": float(10 ** rng.uniform(10, 13)),
        }
        for _ in range(N_POINTS)
    ]


def rows_of(point, layer):
    sizes = point["h"], point["words"], point["b"]
    if layer == "full":
        return vocabulary.full_rows(*sizes)
    return vocabulary.adaptive_rows(*sizes, point["scaled"])


@pytest.mark.parametrize("layer", ["full", "adaptive"])
def test_the_page_on_vocabularies_and_python_agree_on_every_group(layer):
    words = alt.param(name="words")
    points = vocabulary_points()
    parts = evaluate(vocabulary_page.partition(words), points)
    points = [point | part for point, part in zip(points, parts, strict=True)]
    named = SimpleNamespace(**{name: alt.param(name=name) for name in parts[0]})
    if layer == "full":
        traced = vocabulary_page.full_ms(words)
    else:
        traced = vocabulary_page.adaptive_ms(words, named)
    found = evaluate({name: tracing.expression(ms) for name, ms in traced.items()}, points)
    for point, page in zip(points, found, strict=True):
        ms = group_ms(rows_of(point, layer), point["flops_per_s"], point["bytes_per_s"])
        assert page == pytest.approx(ms, rel=1e-12)


def test_both_softmaxes_of_a_default_vocabulary_are_those_of_its_configuration():
    config = GCNConfig(batch_size=64)
    n, sizes = config.n_tokens, (256, config.vocab_size, 64)
    assert vocabulary.cutoffs(config.vocab_size, 1) == config.cutoffs
    hits = cost.tail_tokens(n, config.cutoffs, config.vocab_size, vocabulary.WIDE)
    for scaled in (0, 1):
        assert vocabulary.adaptive_rows(*sizes, scaled) == cost.gcn(config, hits)
    full = GCNConfig(batch_size=64, output_layer="full")
    assert vocabulary.full_rows(*sizes) == cost.gcn(full, [])


@pytest.mark.parametrize("k_words, k_hidden, k_batch, scaled, gpu", [
    (9, 8, 6, 1, "v100-sxm2"), (9, 8, 6, 0, "v100-sxm2"), (20, 10.25, 3, 1, "h100-sxm"),
    (15, 6, 0, 0, "gtx-1080-ti"),
])  # fmt: skip
def test_the_vocabulary_that_the_page_affords_is_the_one_of_python(
    vocabulary_chart, k_words, k_hidden, k_batch, scaled, gpu
):
    """And what it takes out as constant leaves the shares at the chosen vocabulary as they are."""
    moved = dict(k_words=k_words, k_hidden=k_hidden, k_batch=k_batch, scaled=scaled)
    moved |= dict(gpu=list(GPUS).index(gpu), k_ms=12)
    point = {"scaled": scaled, "h": round(2**k_hidden), "b": 2**k_batch}
    names = ["words", "full_share", "adaptive_share", "v", "w"]
    words, full, adaptive, v, w = signals_at(vocabulary_chart, names, **moved)
    card, budget = find_gpu(gpu), 10**1.2
    for layer, share in (("full", full), ("adaptive", adaptive)):
        ms = group_ms(
            rows_of(point | {"words": words}, layer), card.fp32_flops_per_s, card.bytes_per_s
        )
        assert share == pytest.approx(ms["output layer"] / sum(ms.values()), rel=1e-12)
    for rule, page in (("full", v), ("scaled" if scaled else "fixed", w)):
        question = (budget, card, point["h"], point["b"], rule)
        try:
            assert page == pytest.approx(inverse.affordable_vocabulary(*question), rel=1e-3)
        except inverse.UsageError:
            ends = (vocabulary.SMALLEST, vocabulary.CUTOFFS[-1] + 1, vocabulary.LARGEST)
            assert any(page == pytest.approx(end, rel=1e-3) for end in ends)


def test_an_adaptive_softmax_is_cheaper_the_larger_the_vocabulary():
    v100 = find_gpu("v100-sxm2")
    ratios = []
    for words in (20_000, 100_000, 1_000_000):
        ms = [inverse.vocabulary_ms(v100, 256, 64, rule)(words) for rule in ("scaled", "full")]
        ratios.append(ms[0] / ms[1])
    assert ratios == sorted(ratios, reverse=True) and ratios[0] < 1


# Precisions


def test_every_gpu_and_precision_is_what_python_computes(gpu_chart):
    rng = np.random.default_rng(2)
    for i, (gpu, name) in enumerate(product(GPUS.values(), PRECISIONS)):
        chosen = PRECISIONS[name]
        rate = precision.rate_of(gpu, chosen)
        if rate is None or i % 3:  # a third of them: each is a compilation of the whole page
            continue
        k_hidden, k_words, k_tokens = rng.integers([6, 11, 7], [13, 21, 18]).tolist()
        moved = dict(k_hidden=k_hidden, k_words=k_words, k_tokens=k_tokens)
        moved |= dict(gpu=list(GPUS).index(gpu.name), precision=list(PRECISIONS).index(name))
        ms, share = signals_at(gpu_chart, ["chosen_ms", "chosen_share"], **moved)
        shape = vocabulary.network(2**k_hidden, 2**k_words, 2**k_tokens / 128)
        python = group_ms(precision.step_rows(shape, chosen), rate, gpu.bytes_per_s)
        total = sum(python.values())
        assert (ms, share) == pytest.approx((total, python["output layer"] / total), rel=1e-12)


def test_the_bars_of_every_precision_are_what_python_computes():
    """The traced formulas at random sizes and rates, as the rows of the chart evaluate them."""
    rng = np.random.default_rng(3)
    traced = gpu_page.step_ms(
        *(alt.param(name=n) for n in ("tokens", "flops_per_s", "bytes_per_s"))
    )
    sizes = ("value_bytes", "loss_bytes", "cast_bytes")
    points, expected = [], []
    for _ in range(N_POINTS):
        chosen = list(PRECISIONS.values())[rng.integers(4)]
        h, v, batch = rng.integers([16, 1_000, 1], [4_096, 10**6, 512]).tolist()
        flops, moved = (10 ** rng.uniform([11, 10], [15.5, 13])).tolist()
        points.append(
            {"h": h, "v": v, "tokens": 128 * batch, "flops_per_s": flops, "bytes_per_s": moved}
            | {name: getattr(chosen, name) for name in sizes}
        )
        rows = precision.step_rows(vocabulary.network(h, v, batch), chosen)
        expected.append(group_ms(rows, flops, moved))
    found = evaluate({name: tracing.expression(ms) for name, ms in traced.items()}, points)
    for page, python in zip(found, expected, strict=True):
        assert page == pytest.approx(python, rel=1e-12)


def test_a_gpu_without_a_precision_has_no_bar_and_no_number(gpu_chart):
    spec = json.loads(gpu_chart.to_json())
    rows = spec.get("data", spec["layer"][0].get("data"))["values"]
    for row, gpu in zip(rows, GPUS.values(), strict=True):
        assert row["rates"] == [precision.rate_of(gpu, p) for p in PRECISIONS.values()]
    assert rows[0]["gpu"] == "GeForce GTX 1080 Ti" and rows[0]["rates"][1:] == [None] * 3


@pytest.mark.parametrize("name, hidden_size", [
    ("fp32", {"v100-sxm2": 55, "gtx-1080-ti": 74}),
    ("bf16-fp32-loss", {"a100-sxm-80gb": 728, "h100-sxm": 1405, "h200-sxm": 980,
                        "b200-sxm": 1338 * 8.0 / 7.7, "l4": 1950, "l40s": 1950}),
])  # fmt: skip
def test_the_crossover_is_the_one_reckoned_by_hand(name, hidden_size):
    """By hand the B200 had the higher of the two bandwidths that are published, 8.0 TB/s."""
    chosen = PRECISIONS[name]
    for gpu, expected in hidden_size.items():
        rate = precision.rate_of(GPUS[gpu], chosen)
        of_logit = precision.loss_bytes_per_logit(chosen)
        found = precision.crossover_hidden_size(rate, GPUS[gpu].bytes_per_s, of_logit)
        assert found == pytest.approx(expected, rel=0.03), gpu


def test_a_logit_moves_as_many_bytes_as_its_passes_read_and_write():
    """Log-softmax 2 values, scatter 1, its gradient 3; widened before and narrowed behind."""
    found = {name: precision.loss_bytes_per_logit(p) for name, p in PRECISIONS.items()}
    assert found == {"fp32": 24, "tf32": 24, "bf16": 12, "bf16-fp32-loss": 24 + 2 * (2 + 4)}


def test_a_step_in_fp32_is_that_of_the_network_and_a_wider_loss_costs_two_casts():
    config = GCNConfig(output_layer="full")
    rows = {name: precision.step_rows(config, p) for name, p in PRECISIONS.items()}
    assert rows["fp32"] == rows["tf32"] == cost.gcn(config, [])
    assert n_operators(rows["bf16-fp32-loss"]) == n_operators(rows["bf16"]) + 2


@pytest.mark.parametrize("gpu", ["v100-sxm2", "h100-sxm", "b200-sxm"])
def test_the_tokens_below_which_launches_rule_are_those_of_python(gpu_chart, gpu):
    moved = dict(gpu=list(GPUS).index(gpu), k_hidden=7, k_words=12)
    (page,) = signals_at(gpu_chart, ["least"], **moved)
    python = inverse.launch_bound_tokens(GPUS[gpu], PRECISIONS["fp32"], 128, 4_096)
    assert page == pytest.approx(python, rel=2e-3)


# Decoders: in % of the forward FLOPs, causal at 1,024 and 4,096 tokens, then of all pairs.
PUBLISHED = """
29.0 23.9 27.1 19.4 | 13.6 11.3 12.7 9.3 | 7.9 6.7 7.4 5.6 | 4.9 4.3 4.7 3.7
18.6 13.8 16.7 10.3 | 1.9 1.8 1.9 1.7 | 6.9 6.5 6.8 6.1 | 20.7 19.2 20.2 17.5
11.9 11.1 11.6 10.1 | 20.6 19.7 20.3 18.7 | 22.1 20.8 21.7 19.3 | 9.7 9.2 9.6 8.6
59.3 56.8 54.9 40.0 | 29.6 29.1 28.6 24.8 | 17.0 16.7 16.7 15.1 | 26.4 23.4 25.3 20.3
14.7 13.6 14.3 12.3 | 9.8 9.2 9.6 8.4 | 7.6 7.3 7.5 6.9 | 23.8 18.7 21.8 14.6
17.5 15.9 16.9 14.2 | 9.3 8.4 9.0 7.4
"""
READ = {"GPT-2 small": 31.2, "GPT-2 XL": 5.2, "Llama-2 7B": 2.0, "Llama-3 8B": 7.0,
        "Llama-3.2 1B": 21.3, "Gemma-2 2B": 22.6, "Gemma-3 270M": 62.6, "Gemma-3 1B": 30.2,
        "Qwen2.5 0.5B": 27.6, "Qwen3 0.6B": 26.1}  # fmt: skip


def test_shares_of_all_decoders_are_those_reckoned_apart():
    table = PUBLISHED.strip().replace("\n", " | ").split(" | ")
    for decoder, line in zip(DECODERS, table, strict=True):
        settings = [(1024, 1), (4096, 1), (1024, 0), (4096, 0)]
        found = [100 * decoders.head_share(decoder, n, causal) for n, causal in settings]
        assert found == pytest.approx([float(text) for text in line.split()], abs=0.1), decoder
        if decoder.name in READ:
            assert 100 * decoders.decode_share(decoder) == pytest.approx(
                READ[decoder.name], abs=0.1
            )


@pytest.mark.parametrize("preset, name", [
    ("gpt2", "GPT-2 small"), ("gpt2-medium", "GPT-2 medium"), ("gpt2-large", "GPT-2 large"),
    ("gpt2-xl", "GPT-2 XL"), ("llama-3.2-1b", "Llama-3.2 1B"), ("gemma-3-270m", "Gemma-3 270M"),
    ("gemma-3-1b", "Gemma-3 1B"), ("qwen2.5-0.5b", "Qwen2.5 0.5B"), ("qwen3-0.6b", "Qwen3 0.6B"),
    ("smollm2-135m", "SmolLM2-135M"),
])  # fmt: skip
@pytest.mark.parametrize("causal", [0, 1])
def test_a_preset_and_its_shape_have_the_same_share(preset, name, causal):
    (decoder,) = (d for d in DECODERS if d.name == name)
    flops = forward_flops(PRESETS[preset].changed(seq_len=1000), visible=bool(causal))
    share = flops["output layer"] / sum(flops.values())
    assert decoders.head_share(decoder, 1000, causal) == pytest.approx(share, rel=1e-12)


def test_the_page_on_decoders_and_python_agree():
    rng = np.random.default_rng(4)
    points, expected = [], []
    for _ in range(N_POINTS):
        decoder = DECODERS[rng.integers(len(DECODERS))]
        tokens, causal = rng.integers([1, 0], [40_000, 2]).tolist()
        points.append({"tokens": tokens, "causal": causal, **vars(decoder)})
        expected.append(
            [decoders.head_share(decoder, tokens, causal), decoders.decode_share(decoder)]
        )
    for point in points:
        del point["name"]
    traced = head_share(alt.param(name="tokens")), decoders.decode_share(alt.datum)
    texts = {f"share{i}": tracing.expression(t) for i, t in enumerate(traced)}
    found = evaluate(texts, points)
    for page, python in zip(found, expected, strict=True):
        assert list(page.values()) == pytest.approx(python, rel=1e-12)


@pytest.mark.parametrize("level", [0.05, 0.2, 0.4])
def test_the_length_on_a_bar_is_the_one_of_python(level):
    steps = tokens_below("level")
    rows = [{k: v for k, v in vars(d).items() if k != "name"} for d in DECODERS]
    rows = [row | {"level": level, "causal": 1} for row in rows]
    for name, text in steps.items():
        found = evaluate({name: text}, rows)
        rows = [row | value for row, value in zip(rows, found, strict=True)]
    for decoder, row in zip(DECODERS, rows, strict=True):
        try:
            length = inverse.tokens_for_share(level, decoder, ends=(128, 32_768))
        except inverse.UsageError:
            continue
        assert row["at"] == pytest.approx(length, rel=1e-3)


def test_all_groups_of_a_step_are_shown():
    assert tuple(explorer.GROUPS) == GROUPS
