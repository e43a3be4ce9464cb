"""Share of the output layer and time of the step while the vocabulary grows."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import altair as alt

from lmtime.config import GCNConfig
from lmtime.cost import vocabulary
from lmtime.explorer import tracing
from lmtime.explorer.tracing import expression
from lmtime.hardware import GPUS

SMALLEST, LARGEST = vocabulary.SMALLEST, vocabulary.LARGEST
N_POINTS = 30
GRID = [
    round(SMALLEST * (LARGEST / SMALLEST) ** (k / N_POINTS)) for k in range(N_POINTS + 1)
]  # words
COLOURS = {"full softmax": "#D55E00", "adaptive softmax": "#0072B2"}
H, B, SCALED = (alt.param(name=name) for name in ("h", "b", "scaled"))
FIXED = ("h", "b", "scaled", "flops_per_s", "bytes_per_s")  # while the vocabulary moves
RATES = alt.param(name="flops_per_s"), alt.param(name="bytes_per_s")


def full_ms(words: Any) -> dict[str, Any]:
    """Traced time of each group with a full softmax."""
    return tracing.step_ms(vocabulary.full_rows(H, words, B), *RATES)


def adaptive_ms(words: Any, named: SimpleNamespace) -> dict[str, Any]:
    """The same with an adaptive softmax; named: where cutoffs and hits stand."""
    shape = vocabulary.network(H, words, B)
    ends, hits = [named.c1, named.c2], [named.n1, named.n2]
    return tracing.step_ms(vocabulary.adaptive_rows_of(shape, ends, hits), *RATES)


def partition(words: Any) -> dict[str, str]:
    """Expressions of cutoffs and hits: c1, c2, n1, n2."""
    ends = vocabulary.cutoffs(words, SCALED)
    hits = vocabulary.tails(B * GCNConfig.seq_len, (*ends, words))
    return dict(zip(("c1", "c2", "n1", "n2"), map(expression, (*ends, *hits)), strict=True))


def vocabulary_explorer() -> alt.VConcatChart:
    """Full and adaptive softmax against the vocabulary; what a step's time affords is marked."""
    constants = tracing.Constants(FIXED)
    share = _panel(constants, "share", alt.Axis(format="%"), "output layer's share")
    time = (
        _panel(
            constants, "ms", alt.Axis(format="~g", values=[10**k for k in range(-1, 6)]), "step, ms"
        )
        + _budget_rule()
    )
    derived = _derived(constants)
    chart = alt.vconcat(share, time).add_params(*_controls(), *tracing.signals(derived))
    return chart.properties(
        usermeta={"lmtime": {"sentence": _sentence(), "show": _shown()}},
        description="Predicted share of the output layer, and time of a training step of the "
        "gated convolutional network, against the vocabulary, with a full and with an adaptive "
        "softmax; the dashed rules are the vocabulary and the step time that the sliders set.",
    )


def _controls() -> list[alt.Parameter]:
    rules = {1: "grow with the vocabulary", 0: "stay at 2,000 and 10,000"}
    return [
        tracing.slider("k_words", "Vocabulary", 9, (0, 20), 1),
        tracing.slider("k_ms", "Step time (ms)", 13, (0, 40), 1),
        tracing.slider("k_hidden", "Hidden size", 8, (6, 12), 0.25),
        tracing.slider("k_batch", "Tokens in a step", 6, (0, 8), 1),
        tracing.choice("scaled", "Cutoffs", 1, rules),
        tracing.gpu_control("v100-sxm2"),
    ]


WORDS_EXPR = f"round({SMALLEST} * pow({LARGEST // SMALLEST}, k_words / 20))"


def _shown() -> dict[str, str]:
    return {
        "k_words": f"format({WORDS_EXPR}, ',')",
        "k_ms": "format(pow(10, k_ms / 10), ',.3~r')",
        "k_hidden": "format(round(pow(2, k_hidden)), ',')",
        "k_batch": "format(128 * pow(2, k_batch), ',')",
    }


def _derived(constants: tracing.Constants) -> dict[str, str]:
    """What the controls say, the shares at the chosen vocabulary, the vocabularies afforded."""
    given = {
        "h": "round(pow(2, k_hidden))",
        "b": "pow(2, k_batch)",
        "words": WORDS_EXPR,
        "budget": "pow(10, k_ms / 10)",
        "flops_per_s": f"{[gpu.fp32_flops_per_s for gpu in GPUS.values()]}[gpu]",
        "bytes_per_s": f"{[gpu.bytes_per_s for gpu in GPUS.values()]}[gpu]",
        "low": f"scaled ? {SMALLEST} : {vocabulary.CUTOFFS[-1] + 1}",
    }
    words = alt.param(name="words")
    given["body"] = expression(full_ms(words)["body"])
    moving = {f"{name}_0": text for name, text in partition(words).items()}
    for name, ms in (("full", full_ms(words)), ("adaptive", adaptive_ms(words, _named("_0")))):
        moving[f"{name}_share"] = _share(ms)
    moving |= tracing.halved("v", (str(SMALLEST), str(LARGEST)), _full_fits)
    moving |= tracing.halved("w", ("low", str(LARGEST)), _adaptive_fits)
    moving = {name: constants.taken_out(text) for name, text in moving.items()}
    return given | constants.signals | moving


def _named(suffix: str) -> SimpleNamespace:
    names = ("c1", "c2", "n1", "n2")
    return SimpleNamespace(**{name: alt.param(name=name + suffix) for name in names})


def _full_fits(words: alt.Parameter) -> dict[str, str]:
    return {"fits": f"{_total(full_ms(words))} <= budget"}


def _adaptive_fits(words: alt.Parameter) -> dict[str, str]:
    suffix = f"_{words.name}"
    found = {name + suffix: text for name, text in partition(words).items()}
    return found | {"fits": f"{_total(adaptive_ms(words, _named(suffix)))} <= budget"}


def _total(ms: dict[str, Any]) -> str:
    """The body does not depend on the vocabulary: it is computed once."""
    return tracing.total(ms | {"body": "body"})


def _share(ms: dict[str, Any]) -> str:
    return f"({expression(ms['output layer'])}) / ({_total(ms)})"


def _sentence() -> list:
    def afforded(name: str, low: str) -> str:
        near = 0.999  # the ends of the range are answers only in name
        return (
            f"{name} < {low} / {near} ? 'none' : {name} > {LARGEST * near} ? "
            f"'{LARGEST:,} words or more' : 'about ' + format({name}, ',.3r') + ' words'"
        )

    return [
        "With ", {"show": "k_words"}, " words the output layer takes ",
        {"signal": "full_share", "format": ".1%"}, " of the step with a full softmax and ",
        {"signal": "words < low ? 'nothing defined' : format(adaptive_share, '.1%')"},
        " with an adaptive one (predicted). A step of ", {"show": "k_ms"}, " affords this "
        "vocabulary with a full softmax: ", {"signal": afforded("v", str(SMALLEST))},
        "; with an adaptive one: ", {"signal": afforded("w", "low")}, ".",
    ]  # fmt: skip


def _values(constants: tracing.Constants, field: str) -> dict[str, str]:
    """{layer: expression} of a panel; an adaptive softmax needs more words than its cutoffs."""
    named = SimpleNamespace(**{name: alt.datum[name] for name in ("c1", "c2", "n1", "n2")})
    words = alt.datum.words
    of = {"share": _share, "ms": _total}[field]
    full, adaptive = (
        constants.taken_out(of(ms)) for ms in (full_ms(words), adaptive_ms(words, named))
    )
    return dict(zip(COLOURS, (full, f"datum.words < low ? null : {adaptive}"), strict=True))


def _panel(constants: tracing.Constants, field: str, axis: alt.Axis, title: str) -> alt.LayerChart:
    rows = alt.Data(values=[{"words": size} for size in GRID])
    x = alt.X(
        "words:Q",
        scale=alt.Scale(type="log", nice=False, domain=[SMALLEST, LARGEST]),
        axis=alt.Axis(values=[2e3, 1e4, 1e5, 1e6], format="~s"),
        title="vocabulary, words",
    )
    scale = alt.Scale(type="log", nice=False) if field == "ms" else alt.Scale(domain=[0, 1])
    lines = (
        alt.Chart(rows)
        .transform_calculate(**partition(alt.datum.words))
        .transform_calculate(**_values(constants, field))
        .transform_fold(list(COLOURS), as_=["layer", field])
        .transform_filter(f"isValid(datum.{field})")
        .mark_line()
        .encode(
            x=x,
            y=alt.Y(f"{field}:Q", axis=axis, title=title, scale=scale),
            color=alt.Color(
                "layer:N",
                title=None,
                scale=alt.Scale(domain=list(COLOURS), range=list(COLOURS.values())),
                legend=alt.Legend(orient="top", symbolType="stroke", symbolStrokeWidth=3),
            ),
            tooltip=[
                alt.Tooltip("words:Q", format=","),
                "layer:N",
                alt.Tooltip(f"{field}:Q", format=".1%" if field == "share" else ".4~r"),
            ],
        )
    )
    return alt.layer(lines, _rule("words", alt.X("at:Q"))).properties(height=190, width="container")


def _rule(value: str, channel: alt.X | alt.Y) -> alt.Chart:
    chart = alt.Chart(alt.Data(values=[{}])).mark_rule(strokeDash=[4, 3], strokeWidth=2)
    return chart.transform_calculate(at=value).encode(channel)


def _budget_rule() -> alt.Chart:
    return _rule("budget", alt.Y("at:Q"))
