"""One step on every GPU of the table, in each precision that it has."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import altair as alt

from lmtime.charts import GROUP_COLOURS, colours
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
PARTS = {"output layer": GROUP_COLOURS["output layer"], "rest of the step": "#56B4E9"}


def step_ms(n_tokens: Any, flops_per_s: Any, bytes_per_s: Any) -> dict[str, Any]:
    """Traced time of each group; the cast is written as an operator also where it moves nothing."""
    shape = vocabulary.network(H, V, n_tokens / SEQ_LEN)
    return tracing.step_ms(precision.step_rows(shape, CHOSEN), flops_per_s, bytes_per_s)


def gpu_explorer() -> alt.LayerChart:
    """Time of the step, its output layer first, a bar for each GPU that has the precision."""
    constants = tracing.Constants(FIXED)
    chart = alt.layer(*_marks(_rows(constants)))
    chart = chart.add_params(*_controls(), *tracing.signals(_derived(constants)))
    return chart.properties(
        width="container",
        height=alt.Step(19),
        usermeta={"lmtime": {"sentence": _sentence(), "show": _shown()}},
        description="Predicted time of a training step of the gated convolutional network with a "
        "full softmax on each GPU, and the output layer's part and share of it; a GPU whose "
        "hardware has no arithmetic of this precision says so. Launch-bound is an estimate: "
        "launching the operators one after another would take longer than they do.",
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


def _rows(constants: tracing.Constants) -> alt.Chart:
    """A row a GPU: ms of both parts, and what is said beside its bar."""
    rows = [
        {"gpu": gpu.title, "rates": rates, "bandwidth": gpu.bytes_per_s}
        for gpu, rates in zip(GPUS.values(), _rates(), strict=True)
    ]
    ms = step_ms(alt.param(name="tokens"), alt.datum.peak, alt.datum.bandwidth)
    whole, output = (
        constants.taken_out(text) for text in (tracing.total(ms), expression(ms["output layer"]))
    )
    first, second = PARTS
    return (
        alt.Chart(alt.Data(values=rows))
        .transform_calculate(peak="datum.rates[precision]", has="isValid(datum.rates[precision])")
        .transform_calculate(ms=f"datum.has ? {whole} : null")
        .transform_calculate(**{first: f"datum.has ? {output} : null"})
        .transform_calculate(
            **{second: f"datum.ms - datum['{first}']"},
            share=f"datum.has ? datum['{first}'] / datum.ms : null",
            said=f"datum.has ? format(datum['{first}'] / datum.ms, '.0%') + "
            "(datum.ms < launch_ms ? ', launch-bound' : '') : "
            f"'no ' + {[p.rate for p in PRECISIONS.values()]}[precision] + ' in its hardware'",
        )
    )


def _marks(base: alt.Chart) -> list[alt.Chart]:
    titles = [gpu.title for gpu in GPUS.values()]
    y = alt.Y("gpu:N", sort=titles, title=None, scale=alt.Scale(domain=titles))
    bars = (
        base.transform_filter("datum.has")
        .transform_fold(list(PARTS), as_=["part", "part_ms"])
        .mark_bar()
        .encode(
            y=y,
            x=alt.X("part_ms:Q", title="step at best, ms", stack="zero"),
            order=alt.Order("part:N"),
            color=colours(PARTS, shorthand="part:N", sort=list(PARTS)),
            tooltip=[
                alt.Tooltip("gpu:N", title="GPU"),
                "part:N",
                alt.Tooltip("part_ms:Q", format=".3~r", title="ms at best"),
                alt.Tooltip("share:Q", format=".1%", title="share of the output layer"),
            ],
        )
    )
    words = (
        base.transform_calculate(end="datum.has ? datum.ms : 0")
        .mark_text(align="left", dx=5)
        .encode(y=y, x=alt.X("end:Q"), text=alt.Text("said:N", title="beside the bar"))
    )
    return [bars, words]
