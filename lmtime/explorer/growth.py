"""Share of the output layer while the network widens, whole or in its last layer alone."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import altair as alt

from lmtime import cost
from lmtime.charts import GROUP_COLOURS, colours
from lmtime.config import GCNConfig
from lmtime.cost.step import GROUPS
from lmtime.explorer.tracing import Constants, expression, gpu_control, signals, slider, step_ms
from lmtime.hardware import GPUS

WIDTHS = [2 ** (k / 4) for k in range(24, 49)]  # 64 to 4,096
VOCABULARIES = (20_000, 33_278, 79_771)  # the last is all words of the training split


def group_ms(shape: Any, hits: list[Any], flops_per_s: Any, bytes_per_s: Any) -> dict[str, Any]:
    """Middle of the roofline band of each group of owners in ms, of numbers or parameters."""
    return step_ms(cost.gcn(shape, hits), flops_per_s, bytes_per_s)


def traced_shape(hidden_size: Any, final_hidden_size: Any, *, widens: bool) -> SimpleNamespace:
    """A default network whose widths, vocabulary and batch are parameters of the page."""
    fixed = vars(GCNConfig()) | {"widens": widens}
    moving = {
        "hidden_size": hidden_size,
        "final_hidden_size": final_hidden_size,
        "vocab_size": alt.param(name="vocab_size"),
        "batch_size": alt.param(name="batch_size"),
    }
    return SimpleNamespace(**(fixed | moving))


def growth_explorer() -> alt.VConcatChart:
    """Where the step of the network would go, whichever of its two widths grows.

    Left, everything is as wide as the slider says; right, the body keeps that width and the
    state before the output layer grows alone. Predicted by the roofline, fp32.
    """
    h, f = alt.param(name="hidden_size"), alt.param(name="final_hidden_size")
    x = alt.datum.width
    constants = Constants(FIXED)
    whole, alone, here, there = (
        {name: constants.taken_out(text) for name, text in ms.items()}
        for ms in (_whole_ms(x), _alone_ms(h, x), _whole_ms(h), _alone_ms(h, f))
    )
    panels = (
        _panel(whole, "hidden_size", "whole width"),
        _panel(alone, "final_hidden_size", "final hidden state alone"),
    )
    chart = alt.vconcat(*panels).add_params(*_controls(), *_derived(), *signals(constants.signals))
    sentence = [
        "With everything ", {"show": "k_hidden"}, " wide the output layer takes ",
        {"signal": _share(here), "format": ".1%"}, " of the step; with a body of ",
        {"show": "k_hidden"}, " and a final state of ", {"show": "k_final"}, ", ",
        {"signal": _share(there), "format": ".1%"}, " (predicted).",
    ]  # fmt: skip
    show = {
        "k_hidden": "format(round(pow(2, k_hidden)), ',')",
        "k_final": "format(round(pow(2, k_final)), ',')",
        "k_batch": "format(128 * pow(2, k_batch), ',')",
    }
    return chart.properties(
        usermeta={"lmtime": {"sentence": sentence, "show": show}},
        description="Predicted share of a training step of the gated convolutional network that "
        "embedding, body, output layer and optimizer take, against the width: above, the whole "
        "width grows; below, the final hidden state grows alone.",
    )


def _controls() -> list[alt.Parameter]:
    """What the reader sets. Widths and tokens move by powers of two."""

    words = [f"{v:,}" for v in VOCABULARIES]
    vocabulary = alt.binding_select(options=list(VOCABULARIES), labels=words, name="Vocabulary")
    return [
        slider("k_hidden", "Hidden size", 8, (6, 12), 0.25),
        slider("k_final", "Final hidden size", 10, (6, 12), 0.25),
        slider("k_batch", "Tokens in a step", 6, (0, 8), 1),
        alt.param(name="vocab_size", value=VOCABULARIES[1], bind=vocabulary),
        gpu_control("v100-sxm2"),
    ]


def _derived() -> list[alt.Parameter]:
    """Signals computed from the controls, so that each formula stands in the page once."""
    rates = {
        "flops_per_s": [gpu.fp32_flops_per_s for gpu in GPUS.values()],
        "bytes_per_s": [gpu.bytes_per_s for gpu in GPUS.values()],
    }
    sizes = {"hidden_size": "k_hidden", "final_hidden_size": "k_final", "batch_size": "k_batch"}
    derived = {name: f"round(pow(2, {k}))" for name, k in sizes.items()}
    derived |= {name: f"{values}[gpu]" for name, values in rates.items()}
    config = GCNConfig()
    n_tokens = alt.param(name="batch_size") * config.seq_len
    hits = cost.tail_tokens(n_tokens, config.cutoffs, alt.param(name="vocab_size"))
    derived |= {name: expression(value) for name, value in zip(_HITS, hits, strict=True)}
    return [alt.param(name=name, expr=text) for name, text in derived.items()]


_HITS = ("hits_1", "hits_2")
FIXED = ("hidden_size", "vocab_size", "batch_size", "flops_per_s", "bytes_per_s", *_HITS)


def _traced_ms(shape: SimpleNamespace) -> dict[str, str]:
    """Expression of each group's time."""
    hits = [alt.param(name=name) for name in _HITS]
    rates = alt.param(name="flops_per_s"), alt.param(name="bytes_per_s")
    return {name: expression(ms) for name, ms in group_ms(shape, hits, *rates).items()}


def _whole_ms(width: Any) -> dict[str, str]:
    """Everything is `width` wide."""
    return _traced_ms(traced_shape(width, width, widens=False))


def _alone_ms(body: Any, final: Any) -> dict[str, str]:
    """The last layer ends in `final`; where that is the body's width, nothing widens."""
    same, wider = _whole_ms(body), _traced_ms(traced_shape(body, final, widens=True))
    equal = expression(body == final)
    return {name: f"({equal}) ? ({same[name]}) : ({wider[name]})" for name in wider}


def _share(ms: dict[str, str]) -> str:
    """Expression of the output layer's share of the step."""
    return f"({ms['output layer']}) / ({' + '.join(f'({text})' for text in ms.values())})"


def _panel(ms: dict[str, str], cursor: str, title: str) -> alt.LayerChart:
    """Shares against the width as stacked areas, and a rule where the slider stands."""
    total = " + ".join(f"datum['{name}']" for name in ms)
    rows = alt.Data(values=[{"width": round(width, 2)} for width in WIDTHS])
    axis = alt.Axis(values=[2**k for k in range(6, 13)], format="d")
    width = alt.X(
        "width:Q", scale=alt.Scale(type="log", base=2, nice=False), title=title, axis=axis
    )
    areas = (
        alt.Chart(rows)
        .transform_calculate(**ms)
        .transform_calculate(total_ms=total)
        .transform_fold(list(ms), as_=["group", "ms"])
        .transform_calculate(
            share="datum.ms / datum.total_ms", place=f"indexof({list(GROUPS)}, datum.group)"
        )
        .mark_area(opacity=0.85)
        .encode(
            x=width,
            y=alt.Y("share:Q", axis=alt.Axis(format="%"), title="share of the step", stack="zero"),
            color=colours(
                {name: GROUP_COLOURS[name] for name in GROUPS},
                shorthand="group:N",
                sort=list(GROUPS),
            ),
            order=alt.Order("place:Q"),
            tooltip=[
                alt.Tooltip("width:Q", format=".0f", title=title),
                alt.Tooltip("group:N"),
                alt.Tooltip("share:Q", format=".1%"),
                alt.Tooltip("ms:Q", format=".3f", title="ms, predicted"),
            ],
        )
    )
    rule = (
        alt.Chart(alt.Data(values=[{}]))
        .mark_rule(strokeDash=[4, 3], strokeWidth=2)
        .transform_calculate(at=cursor)
        .encode(x=alt.X("at:Q"))
    )
    return alt.layer(areas, rule).properties(height=190, width="container")
