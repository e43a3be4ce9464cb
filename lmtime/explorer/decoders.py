"""Share of the output layer in today's decoders, while the sequence grows."""

from __future__ import annotations

import dataclasses
import json
from typing import Any

import altair as alt

from lmtime.config.decoders import DECODERS
from lmtime.cost import decoders
from lmtime.explorer import tracing
from lmtime.explorer.tracing import expression

T, CAUSAL = alt.param(name="tokens"), alt.param(name="causal")
SHORTEST, LONGEST = 128, 32_768
VIEWS = {"a whole sequence": "#D55E00", "one new token": "#0072B2"}


def head_share(seq_len: Any) -> Any:
    """Traced share of the FLOPs of the model in the row."""
    return decoders.head_share(alt.datum, seq_len, CAUSAL, alt.expr.min)


def decoder_explorer() -> alt.LayerChart:
    """A bar for each model: share of the FLOPs of a sequence, or of the weights read."""
    controls = [
        tracing.slider("k_tokens", "Tokens in the sequence", 10, (7, 15), 0.25),
        tracing.slider("percent", "Share to fall below (%)", 20, (1, 60), 1),
        tracing.choice("causal", "Attention computes", 1, {1: "what is seen", 0: "all pairs"}),
        tracing.choice("view", "The model reads", 0, dict(enumerate(VIEWS))),
    ]
    derived = {"tokens": "round(pow(2, k_tokens))", "level": "percent / 100", "shares": _shares()}
    return (
        alt.layer(*_marks())
        .add_params(*controls, *tracing.signals(derived))
        .properties(
            width="container",
            height=alt.Step(19),
            usermeta={
                "lmtime": {
                    "sentence": _sentence(),
                    "show": {"k_tokens": "format(round(pow(2, k_tokens)), ',')"},
                }
            },
            description="Share of the output layer in each decoder: of the FLOPs of the forward "
            "pass over a sequence, or of the weights that are read for one new token; the words "
            "beside a bar say from which length on the share of the FLOPs is lower than the rule.",
        )
    )


def tokens_below(level: str) -> dict[str, str]:
    """Steps of the row that halve the range of lengths to where the share falls to the level."""
    found: dict[str, str] = {}

    def is_above(point: alt.Parameter) -> dict[str, str]:
        share = expression(head_share(point))
        return {"above": f"{share} > {level}"}

    for name, text in tracing.halved("at", (str(SHORTEST), str(LONGEST)), is_above).items():
        found[name] = _on_row(text)
    return found


def _on_row(text: str) -> str:
    """Earlier steps stand in the row, not among the signals."""
    return tracing.NAME.sub(lambda m: f"datum.{m[0]}" if m[0].startswith("at") else m[0], text)


def _rows() -> alt.Chart:
    """A row a model: both shares, and in words from which length on one is below the level."""
    rows = [dataclasses.asdict(decoder) for decoder in DECODERS]
    base = alt.Chart(alt.Data(values=rows)).transform_calculate(
        sequence=expression(head_share(T)), token=expression(decoders.decode_share(alt.datum))
    )
    for name, text in tokens_below("level").items():
        base = base.transform_calculate(**{name: text})
    low, high = expression(head_share(SHORTEST)), expression(head_share(LONGEST))
    return base.transform_calculate(
        share="view ? datum.token : datum.sequence",
        reads=f"{list(VIEWS)}[view]",
        answer=f"{low} <= level ? 'always below' : {high} > level ? 'never below' : "
        "'below from ' + format(datum.at, ',.3r') + ' tokens'",
    )


def _marks() -> list[alt.Chart]:
    base = _rows()
    y = alt.Y("name:N", sort=[d.name for d in DECODERS], title=None)
    x = alt.X(
        "share:Q",
        title="output layer's share",
        axis=alt.Axis(format="%", tickCount=5),
        scale=alt.Scale(domain=[0, 1]),
    )
    bars = base.mark_bar().encode(
        y=y,
        x=x,
        color=alt.Color(
            "reads:N",
            title=None,
            legend=None,
            scale=alt.Scale(domain=list(VIEWS), range=list(VIEWS.values())),
        ),
        tooltip=[
            alt.Tooltip("name:N", title="model"),
            alt.Tooltip("sequence:Q", format=".1%", title="of the FLOPs of a sequence"),
            alt.Tooltip("token:Q", format=".1%", title="of the weights read for a token"),
            alt.Tooltip("answer:N", title="share of the FLOPs"),
        ],
    )
    words = base.mark_text(align="left", dx=5).encode(
        y=y, x=x, text=alt.condition("view == 0", "answer:N", alt.value(""))
    )
    rule = (
        alt.Chart(alt.Data(values=[{}]))
        .mark_rule(strokeDash=[4, 3], strokeWidth=2)
        .transform_calculate(share="level")
        .encode(x="share:Q")
    )
    return [bars, words, rule]


def _shares() -> str:
    """Expression of a list: what each model's bar shows."""
    reads = [decoders.decode_share(decoder) for decoder in DECODERS]
    shares = (
        expression(decoders.head_share(decoder, T, CAUSAL, alt.expr.min)) for decoder in DECODERS
    )
    return f"view ? {reads} : [{', '.join(shares)}]"


def _sentence() -> list:
    names = json.dumps([decoder.name for decoder in DECODERS])
    over = " + ".join(f"(shares[{i}] > level)" for i in range(len(DECODERS)))
    return [
        {"signal": f"{names}[indexof(shares, extent(shares)[1])]"}, " has most in its output "
        "layer, ", {"signal": "extent(shares)[1]", "format": ".1%"}, ", and ",
        {"signal": over}, f" of these {len(DECODERS)} models more than ", {"show": "percent"},
        {"signal": "view ? ' of the weights that are read for one new token' : ' of the FLOPs of "
         "a sequence of ' + format(tokens, ',') + ' tokens'"}, ".",
    ]  # fmt: skip
