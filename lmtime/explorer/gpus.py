"""One step on every GPU of the table, in each precision that it has."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import altair as alt

from lmtime.config import GCNConfig
from lmtime.cost import precision, vocabulary
from lmtime.cost.precision import PRECISIONS
from lmtime.explorer import tracing
from lmtime.explorer.tracing import expression
from lmtime.hardware import GPUS
from lmtime.inverse import MOST_TOKENS

SEQ_LEN = GCNConfig.seq_len
H, V = alt.param(name="h"), alt.param(name="v")
FIXED = ("h", "v", "value_bytes", "loss_bytes", "cast_bytes", "flops_per_s", "bytes_per_s")
CHOSEN = SimpleNamespace(
    **{name: alt.param(name=name) for name in ("value_bytes", "loss_bytes", "cast_bytes")}
)
WORK, LAUNCHES = "its operators", "their launches (estimate)"
BOUNDS = {WORK: "#0072B2", LAUNCHES: "#E69F00"}


def step_ms(n_tokens: Any, flops_per_s: Any, bytes_per_s: Any) -> dict[str, Any]:
    """Traced time of each group; the cast is written as an operator also where it moves nothing."""
    shape = vocabulary.network(H, V, n_tokens / SEQ_LEN)
    return tracing.step_ms(precision.step_rows(shape, CHOSEN), flops_per_s, bytes_per_s)


def gpu_explorer() -> alt.HConcatChart:
    """Time of the step and share of the output layer, a bar for each GPU that has the precision."""
    constants = tracing.Constants(FIXED)
    bars = _bars(constants)
    derived = _derived(constants)
    chart = alt.hconcat(*bars).add_params(*_controls(), *tracing.signals(derived))
    return chart.properties(
        usermeta={"lmtime": {"sentence": _sentence(), "show": _shown()}},
        description="Predicted time of a training step of the gated convolutional network with a "
        "full softmax, and the output layer's share of it, on each GPU; where the hardware has no "
        "arithmetic of this precision it says so.",
    )


def _controls() -> list[alt.Parameter]:
    titles = {i: chosen.title for i, chosen in enumerate(PRECISIONS.values())}
    return [
        tracing.slider("k_hidden", "Hidden size", 8, (6, 12), 0.25),
        tracing.slider("k_words", "Vocabulary", 15, (11, 20), 0.25),
        tracing.slider("k_tokens", "Tokens in a step", 13, (7, 17), 1),
        tracing.choice("precision", "Precision", 0, titles),
        tracing.gpu_control("h100-sxm"),
    ]


def _shown() -> dict[str, str]:
    sizes = ("k_hidden", "k_words", "k_tokens")
    return {k: f"format(round(pow(2, {k})), ',')" for k in sizes}


def _rates() -> list[list[float | None]]:
    """One row a GPU, one rate a precision, None where there is none."""
    return [[precision.rate_of(g, p) for p in PRECISIONS.values()] for g in GPUS.values()]


def _derived(constants: tracing.Constants) -> dict[str, str]:
    """What the controls say; of the chosen GPU its step, crossover and where launches rule."""
    rates = str(_rates()).replace("None", "null")
    given = {
        "h": "round(pow(2, k_hidden))",
        "v": "round(pow(2, k_words))",
        "tokens": "pow(2, k_tokens)",
        "flops_per_s": f"{rates}[gpu][precision]",
        "bytes_per_s": f"{[gpu.bytes_per_s for gpu in GPUS.values()]}[gpu]",
    }
    shape = vocabulary.network(64, 2_000, 1)
    lists = {
        "value_bytes": [p.value_bytes for p in PRECISIONS.values()],
        "loss_bytes": [p.loss_bytes for p in PRECISIONS.values()],
        "cast_bytes": [p.cast_bytes for p in PRECISIONS.values()],
        "launch_ms": [precision.launch_ms_of(shape, p) for p in PRECISIONS.values()],
        "logit_bytes": [precision.loss_bytes_per_logit(p) for p in PRECISIONS.values()],
    }
    given |= {name: f"{values}[precision]" for name, values in lists.items()}
    rates = alt.param(name="flops_per_s"), alt.param(name="bytes_per_s")
    crossover = precision.crossover_hidden_size(*rates, alt.param(name="logit_bytes"))
    ms = step_ms(alt.param(name="tokens"), *rates)
    moving = {
        "crossover": expression(crossover),
        "chosen_ms": tracing.total(ms),
        "chosen_share": f"({expression(ms['output layer'])}) / chosen_ms",
    }

    def is_short(n_tokens: alt.Parameter) -> dict[str, str]:
        return {"short": f"{tracing.total(step_ms(n_tokens, *rates))} <= launch_ms"}

    moving |= tracing.halved("least", ("1", str(MOST_TOKENS)), is_short)
    moving = {name: constants.taken_out(text) for name, text in moving.items()}
    return given | constants.signals | moving


def _sentence() -> list:
    has = "isValid(flops_per_s)"
    gpu = f"{[gpu.title for gpu in GPUS.values()]}[gpu]".replace("'", '"')
    name = f"{[p.title for p in PRECISIONS.values()]}[precision]".replace("'", '"')
    step = (
        f"{gpu} + ' takes ' + format(chosen_ms, ',.3~r') + ' ms at best, ' + "
        "format(chosen_share, '.1%') + ' of it in the output layer (predicted). Its cross-entropy "
        "takes as long as the products of the output layer at a hidden size of ' + "
        "format(crossover, ',.0f') + ', longer below. Launching the operators takes longer than "
        f"they do ' + (least < 1.01 ? 'at no number of tokens' : 'below about ' + "
        "format(least, ',.2r') + ' tokens') + ' (estimate).'"
    )
    none = f"{gpu} + ' has no arithmetic for ' + {name} + ': choose another GPU or precision.'"
    return [{"signal": f"{has} ? {step} : {none}"}]


def _bars(constants: tracing.Constants) -> list[alt.LayerChart]:
    titles = [gpu.title for gpu in GPUS.values()]
    rows = [
        {"gpu": gpu.title, "rates": rates, "bandwidth": gpu.bytes_per_s}
        for gpu, rates in zip(GPUS.values(), _rates(), strict=True)
    ]
    ms = step_ms(alt.param(name="tokens"), alt.datum.peak, alt.datum.bandwidth)
    whole, output = (
        constants.taken_out(text) for text in (tracing.total(ms), expression(ms["output layer"]))
    )
    base = (
        alt.Chart(alt.Data(values=rows))
        .transform_calculate(peak="datum.rates[precision]", has="isValid(datum.rates[precision])")
        .transform_calculate(ms=f"datum.has ? {whole} : null")
        .transform_calculate(
            share=f"datum.has ? {output} / datum.ms : null",
            bound=f"datum.ms < launch_ms ? '{LAUNCHES}' : '{WORK}'",
        )
    )
    y = alt.Y("gpu:N", sort=titles, title=None, scale=alt.Scale(domain=titles))
    return [_panel(base, y, field) for field in ("ms", "share")]


def _panel(base: alt.Chart, y: alt.Y, field: str) -> alt.LayerChart:
    is_time = field == "ms"
    title = "step at best, ms" if is_time else "output layer's share"
    axis = alt.Axis(tickCount=4) if is_time else alt.Axis(tickCount=4, format="%")
    scale = alt.Scale(zero=True) if is_time else alt.Scale(domain=[0, 1])
    y = y if is_time else y.copy()
    if not is_time:
        y.axis = alt.Axis(labels=False, ticks=False)
    bars = (
        base.transform_filter("datum.has")
        .mark_bar()
        .encode(
            y=y,
            x=alt.X(f"{field}:Q", title=title, axis=axis, scale=scale),
            color=alt.Color(
                "bound:N",
                title="longer are",
                scale=alt.Scale(domain=list(BOUNDS), range=list(BOUNDS.values())),
                legend=alt.Legend(orient="top", columns=1),
            ),
            tooltip=[
                alt.Tooltip("gpu:N", title="GPU"),
                alt.Tooltip("ms:Q", format=".4~r", title="ms at best"),
                alt.Tooltip("share:Q", format=".1%", title="output layer"),
                alt.Tooltip("bound:N", title="longer are"),
            ],
        )
    )
    without = (
        base.transform_filter("!datum.has")
        .mark_text(align="left", fontStyle="italic")
        .encode(y=y, x=alt.value(4), text=alt.value("none" if not is_time else "not in hardware"))
    )
    return alt.layer(bars, without).properties(width="container", height=alt.Step(17))
