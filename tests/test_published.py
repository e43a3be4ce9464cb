"""Published times: each can be traced, and none is faster than the roofline allows."""

import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest

from lmtime.config import configure
from lmtime.cost import roofline
from lmtime.cost.huggingface import forward_flops
from lmtime.errors import UsageError
from lmtime.hardware import GPUS
from lmtime.published import _encoder, figures, read_figures

FILES = ("output_layers", "encoders")
FIGURES = [figure for name in FILES for figure in figures(name)]
every_figure = pytest.mark.parametrize(
    "figure", FIGURES, ids=lambda f: f"{f.device} {f.implementation} {f.phase} {f.latency_ms}"
)
HEAD = (
    "what,value,unit,device,dtype,implementation,phase,n_tokens,hidden_size,vocab_size,source,note"
)
ROW = "a layer,2.5,ms,t4,fp16,ours,forward,8,16,32,here/there#1,"


@every_figure
def test_a_figure_names_its_source_and_a_known_gpu(figure):
    assert "/" in figure.source
    assert figure.device in GPUS
    assert figure.latency_ms > 0


@every_figure
def test_a_prediction_is_a_lower_bound(figure):
    row = figure.row()
    assert row["predicted_ms_low"] <= row["latency_ms"]
    assert 1 <= row["ratio_to_low"] <= 2 * row["ratio_to_high"]


def test_the_best_code_comes_close_to_the_bound_and_some_does_not():
    ratios = [figure.row()["ratio_to_low"] for figure in figures("output_layers")]
    assert min(ratios) < 1.25
    assert max(ratios) > 50


def test_an_output_layer_is_what_the_formula_gives_by_hand():
    (figure,) = [f for f in FIGURES if f.latency_ms == 92.55]
    n, d, v = 16_384, 2_048, 248_320
    flops_ms = 1e3 * 6 * n * d * v / 989e12
    logits_ms = 1e3 * 6 * n * v * 2 / 3.35e12  # 2 forward, 4 backward
    vectors_ms = 1e3 * 200 * n / 3.35e12  # gather and mean: at most so much
    assert 0 < figure.predicted.low - flops_ms - logits_ms < vectors_ms
    products_ms = 1e3 * 3 * 2 * (n * d + d * v + n * v) / 3.35e12
    assert figure.predicted.high - figure.predicted.low == pytest.approx(products_ms)
    assert figure.row()["ratio_to_low"] == pytest.approx(1.42, abs=0.005)


def test_an_encoder_is_what_the_formula_gives_by_hand():
    (figure,) = [f for f in FIGURES if f.latency_ms == 33.28]
    n, d = 16 * 128, 768
    products = 12 * (2 * n * d * d * 4 + 2 * n * d * 3072 * 2 + 4 * n * 128 * d)
    # per layer: two sums (3), two norms (2), exact gelu on four times the width (2)
    values = n * d + 12 * n * d * (2 * 3 + 2 * 2 + 4 * 2)
    by_hand_ms = 1e3 * (products / 15.7e12 + values * 4 / 900e9)
    assert figure.predicted.low == pytest.approx(by_hand_ms, rel=0.01)
    assert figure.row()["ratio_to_low"] == pytest.approx(1.37, abs=0.005)


def test_a_whole_encoder_is_the_preset_without_its_head():
    (figure,) = [f for f in FIGURES if f.latency_ms == 33.28]
    config = configure("bert-base", batch_size=16, seq_len=128)
    layers = forward_flops(config, visible=False)
    wanted = sum(flops for owner, flops in layers.items() if owner.startswith("layer"))
    assert sum(op.flops for op in _encoder(SimpleNamespace(**figure.shape), 4)["forward"]) == wanted


def test_two_thirds_of_the_width_are_two_thirds_of_the_products():
    (whole,), (narrow,) = ([f for f in FIGURES if f.latency_ms == ms] for ms in (33.28, 21.83))
    flops = [
        sum(op.flops for op in _encoder(SimpleNamespace(**f.shape), 4)["forward"])
        for f in (whole, narrow)
    ]
    assert flops[1] * 3 == flops[0] * 2


@pytest.mark.parametrize(
    "change, complaint",
    [
        (("here/there#1", ""), "line 2: source must be given"),
        (("t4", "t5"), "line 2: unknown GPU 't5'"),
        (("fp16", "bf16"), "line 2: Tesla T4 has no bf16"),
        (("ms", "s"), "line 2: unit 's' must be ms"),
        (("forward", "sideways"), "phase 'sideways' one of forward"),
        (("2.5", "fast"), "line 2: could not convert"),
        (("2.5", "0"), "greater than 0"),
        ((",32", ",?"), "line 2: invalid literal"),
        (("#1,", "#1"), "line 2: note must be given"),
    ],
)
def test_a_row_that_says_too_little_is_refused(tmp_path, change, complaint):
    path = tmp_path / "a.csv"
    path.write_text(f"{HEAD}\n{ROW}\n")
    assert [f.latency_ms for f in read_figures(path)] == [2.5]
    path.write_text(f"{HEAD}\n{ROW.replace(*change)}\n")
    with pytest.raises(UsageError, match=complaint):
        read_figures(path)


def test_a_missing_file_is_told():
    with pytest.raises(UsageError, match=r"there is no .*nothing\.csv: set LMTIME_ROOT"):
        figures("nothing")
    with pytest.raises(UsageError, match=r"nothing\.csv cannot be read"):
        read_figures(Path("nothing.csv"))


def test_figures_need_the_standard_library_alone():
    code = (
        "import sys; sys.modules['torch'] = sys.modules['numpy'] = None;"
        "from lmtime.published import figures; figures('encoders')[0].row()"
    )
    subprocess.run([sys.executable, "-c", code], check=True)


def test_no_layer_that_computes_whole_is_slower_than_the_wide_band():
    """The factor of the band without calibration is that of the published times."""
    in_chunks = ("FLCE", "in chunks", "chunked")
    ratios = [
        row["ratio_to_high"]
        for row in (figure.row() for figure in FIGURES)
        if not any(word in row["implementation"] for word in in_chunks)
    ]
    assert len(ratios) >= 25
    assert max(ratios) <= roofline.SLOWER
    assert max(ratios) > 0.95 * roofline.SLOWER, "and no wider than they ask for"
