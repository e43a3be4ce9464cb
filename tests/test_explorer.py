"""The page computes what Python computes: traced formulas through the real Vega runtime."""

import json

import altair as alt
import numpy as np
import pytest

from lmtime import charts, cost, explorer
from lmtime.config import GCNConfig
from lmtime.explorer import growth
from lmtime.hardware import GPUS, find_gpu
from lmtime.publishing.vega_eval import evaluate

N_POINTS = 1_000


def points():
    """Random settings of the sliders, and the edges of their ranges."""
    rng = np.random.default_rng(0)
    rows = [
        {
            "hidden_size": int(rng.integers(16, 4097)),
            "final_hidden_size": int(rng.integers(16, 8193)),
            "vocab_size": int(rng.integers(10_001, 80_000)),
            "batch_size": int(rng.integers(1, 513)),
            "flops_per_s": float(10 ** rng.uniform(11, 15.5)),
            "bytes_per_s": float(10 ** rng.uniform(10, 13)),
        }
        for _ in range(N_POINTS)
    ]
    edge = dict(vocab_size=33_278, flops_per_s=1e13, bytes_per_s=1e12)
    rows += [
        dict(hidden_size=h, final_hidden_size=f, batch_size=b, **edge)
        for h, f, b in ((16, 16, 1), (17, 4095, 1), (4096, 16, 512), (129, 8192, 3))
    ]
    return rows


@pytest.mark.parametrize("widens", [False, True])
@pytest.mark.parametrize("output_layer", ["adaptive", "full"])
def test_the_page_and_python_agree_on_every_group(output_layer, widens):
    h = alt.param(name="hidden_size")
    final = alt.param(name="final_hidden_size") if widens else h
    shape = growth.traced_shape(h, final, widens=widens)
    shape.output_layer = output_layer
    n_tokens = alt.param(name="batch_size") * shape.seq_len
    hits = cost.tail_tokens(n_tokens, shape.cutoffs, shape.vocab_size)
    rates = alt.param(name="flops_per_s"), alt.param(name="bytes_per_s")
    traced = explorer.group_ms(shape, hits, *rates)
    rows = [r for r in points() if not widens or r["hidden_size"] != r["final_hidden_size"]]
    found = evaluate({k: explorer.expression(v) for k, v in traced.items()}, rows)
    for row, page in zip(rows, found, strict=True):
        python = in_python(row, output_layer, widens)
        assert page == pytest.approx(python, rel=1e-12)


def in_python(row, output_layer, widens):
    final = row["final_hidden_size"] if widens else row["hidden_size"]
    config = GCNConfig(
        hidden_size=row["hidden_size"],
        final_hidden_size=final,
        vocab_size=row["vocab_size"],
        batch_size=row["batch_size"],
        output_layer=output_layer,
    )
    hits = cost.tail_tokens(config.n_tokens, config.cutoffs, config.vocab_size)
    return explorer.group_ms(config, hits, row["flops_per_s"], row["bytes_per_s"])


def test_the_explorer_starts_where_python_says():
    """The derived signals of the chart itself: GPU by number, widths by exponent."""
    spec = json.loads(explorer.growth_explorer().to_json())
    derived = {p["name"]: p["expr"] for p in spec["params"] if "expr" in p}
    derived = {name: text for name, text in derived.items() if name[0] != "K"}  # no constants
    start = {p["name"]: p["value"] for p in spec["params"] if "value" in p}
    sizes = evaluate({k: v for k, v in derived.items() if not k.startswith("hits")}, [start])[0]
    v100 = find_gpu("v100-sxm2")
    assert sizes["flops_per_s"] == v100.flops_per_s("fp32")
    assert sizes["bytes_per_s"] == v100.bytes_per_s
    hits = {k: v for k, v in derived.items() if k.startswith("hits")}
    h, f = alt.param(name="hidden_size"), alt.param(name="final_hidden_size")
    text = growth._share(growth._alone_ms(h, f))
    found = evaluate(hits, [start | sizes])[0]
    share = evaluate({"share": text}, [start | sizes | found])[0]["share"]
    whole = {name: int(value) for name, value in sizes.items() if name.endswith("_size")}
    python = in_python(start | sizes | whole, "adaptive", widens=True)
    assert share == pytest.approx(python["output layer"] / sum(python.values()), rel=1e-12)


def test_every_gpu_of_the_table_can_be_chosen():
    spec = json.loads(explorer.growth_explorer().to_json())
    gpu = next(p for p in spec["params"] if p["name"] == "gpu")
    assert gpu["bind"]["labels"] == [g.title for g in GPUS.values()]


def test_the_share_falls_when_all_grows_and_rises_when_the_final_state_grows():
    rates = find_gpu("v100-sxm2").flops_per_s("fp32"), find_gpu("v100-sxm2").bytes_per_s

    def share(h, f):
        config = GCNConfig(h, f, batch_size=64)
        hits = cost.tail_tokens(config.n_tokens, config.cutoffs, config.vocab_size)
        ms = explorer.group_ms(config, hits, *rates)
        return ms["output layer"] / sum(ms.values())

    whole = [share(s, s) for s in (128, 256, 512, 1024, 2048)]
    alone = [share(128, s) for s in (256, 512, 1024, 2048)]
    assert whole == sorted(whole, reverse=True)
    assert alone == sorted(alone)


def test_colours_tell_the_groups_apart_and_name_them_all():
    assert set(charts.GROUP_COLOURS) == set(explorer.GROUPS) | {"outside"}
    assert len(set(charts.GROUP_COLOURS.values())) == len(charts.GROUP_COLOURS)


@pytest.mark.parametrize("vocab_size", growth.VOCABULARIES)
@pytest.mark.parametrize("hidden, final", [(256, 256), (256, 1024), (64, 4096), (4096, 64)])
def test_every_vocabulary_and_equal_widths_are_what_python_computes(vocab_size, hidden, final):
    h, f = alt.param(name="hidden_size"), alt.param(name="final_hidden_size")
    row = dict(hidden_size=hidden, final_hidden_size=final, vocab_size=vocab_size, batch_size=8)
    row |= dict(flops_per_s=1.57e13, bytes_per_s=9e11)
    config = GCNConfig(hidden, final, vocab_size=vocab_size)
    hits = cost.tail_tokens(config.n_tokens, config.cutoffs, config.vocab_size)
    row |= dict(zip(growth._HITS, hits, strict=True))
    page = evaluate(growth._alone_ms(h, f), [row])[0]
    python = explorer.group_ms(config, hits, row["flops_per_s"], row["bytes_per_s"])
    assert page == pytest.approx(python, rel=1e-12)
