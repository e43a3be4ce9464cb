"""Charts of output layers: rows of `compare` and of trials in, Altair out."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import altair as alt

from lmtime.charts import FIT_WIDTH, colours

# Told apart in both themes and by those who confuse red and green (Okabe and Ito 2008).
PALETTE = ["#0072B2", "#E69F00", "#009E73", "#D55E00", "#CC79A7", "#56B4E9", "#F0E442"]


def _colour(names: Sequence[str]) -> alt.Color:
    return colours(dict(zip(names, PALETTE, strict=False)), shorthand="layer:N")


def _sizes(x: str, values: Iterable[float]) -> alt.X:
    axis = alt.Axis(values=sorted(set(values)), format=",")
    scale = alt.Scale(type="log", base=2, nice=False, padding=16)
    return alt.X(
        f"{x}:Q", title=x.replace("_", " ").replace("n tokens", "tokens"), axis=axis, scale=scale
    )


def ratios(
    rows: Sequence[dict], x: str, description: str, *, to: str = "torch_adaptive"
) -> alt.LayerChart:
    """Time of each layer as a multiple of another's, with intervals, against a size.

    to: "torch_adaptive", or "gemm" for the bare products of the layer's own shapes.
    """
    low, high = ("ratio_low", "ratio_high") if to == "torch_adaptive" else (
        "ratio_to_gemm_low", "ratio_to_gemm_high"
    )  # fmt: skip
    shown = [
        {"layer": r["layer"], x: r[x], "ratio": r[f"ratio_to_{to}"], "low": r[low],
         "high": r[high], "ms": r["latency_ms"]}
        for r in rows
    ]  # fmt: skip
    names = list(dict.fromkeys(r["layer"] for r in shown))
    base = alt.Chart(alt.Data(values=shown)).encode(
        x=_sizes(x, (r[x] for r in shown)), color=_colour(names)
    )
    what = "torch's adaptive softmax" if to == "torch_adaptive" else "bare products"
    axis = alt.Y("ratio:Q", title=f"time, of {what}", scale=alt.Scale(zero=False, padding=10))
    lines = base.mark_line(opacity=0.6).encode(y=axis)
    points = base.mark_point(filled=True, size=55, opacity=1).encode(
        y=axis,
        tooltip=["layer:N", alt.Tooltip(f"{x}:Q", format=","), alt.Tooltip("ratio:Q", format=".2f"),
                 alt.Tooltip("ms:Q", format=".2f")],
    )  # fmt: skip
    intervals = base.mark_rule(strokeWidth=2).encode(y="low:Q", y2="high:Q")
    same = alt.Chart(alt.Data(values=[{"one": 1}])).mark_rule(strokeDash=[5, 4], color="#999999")
    return alt.layer(same.encode(y="one:Q"), lines, intervals, points).properties(
        description=description, height=300
    )


def front(rows: Sequence[dict], description: str) -> alt.LayerChart:
    """Perplexity against time, both relative to torch's partition, and what is on the front.

    rows: {"layer", "time", "time_low", "time_high", "change", "low", "high", "on_front"}; time and
    change are 1 and 0 for the partition compared with.
    """
    shown = [{**r, "where": "on the front" if r["on_front"] else "dominated"} for r in rows]
    base = alt.Chart(alt.Data(values=shown))
    x = alt.X("time:Q", title="time, of torch's adaptive softmax", scale=alt.Scale(zero=True))
    y = alt.Y("change:Q", title="change of perplexity", axis=alt.Axis(format="+%"))
    places = dict(zip(("on the front", "dominated"), PALETTE, strict=False))
    colour = colours(places, shorthand="where:N")
    points = base.mark_point(filled=True, size=90, opacity=1).encode(
        x=x, y=y, color=colour,
        tooltip=["layer:N", alt.Tooltip("time:Q", format=".2f"),
                 alt.Tooltip("change:Q", format="+.1%"), alt.Tooltip("low:Q", format="+.1%"),
                 alt.Tooltip("high:Q", format="+.1%")],
    )  # fmt: skip
    likely = base.mark_rule(strokeWidth=2).encode(x=x, y="low:Q", y2="high:Q", color=colour)
    spread = base.mark_rule(strokeWidth=2).encode(
        x="time_low:Q", x2="time_high:Q", y=y, color=colour
    )
    names = base.mark_text(align="left", dx=8, dy=-9, fontSize=11).encode(x=x, y=y, text="layer:N")
    none = alt.Chart(alt.Data(values=[{"none": 0}])).mark_rule(strokeDash=[5, 4], color="#999999")
    return alt.layer(none.encode(y="none:Q"), likely, spread, points, names).properties(
        description=description, height=340
    )


def by_memory(rows: Sequence[dict], description: str) -> alt.LayerChart:
    """Time of each layer and hidden size, with intervals, by what becomes of freed memory.

    rows: of `compare`, with "memory", where it goes.
    """
    shown = [
        {"layer": f"{r['layer']}|hidden {r['hidden_size']:,}", "memory": r["memory"],
         "ms": r["latency_ms"], "low": r["latency_ms_low"], "high": r["latency_ms_high"]}
        for r in rows
    ]  # fmt: skip
    names = list(dict.fromkeys(r["memory"] for r in shown))
    axis = alt.Axis(labelExpr="split(datum.label, '|')", labelLimit=200)
    base = alt.Chart(alt.Data(values=shown)).encode(
        y=alt.Y("layer:N", title=None, sort=None, axis=axis),
        yOffset=alt.YOffset("memory:N", sort=names),
        color=colours(dict(zip(names, PALETTE, strict=False)), shorthand="memory:N"),
        tooltip=["layer:N", "memory:N", alt.Tooltip("ms:Q", format=",.0f")],
    )
    intervals = base.mark_rule(strokeWidth=2).encode(x="low:Q", x2="high:Q")
    points = base.mark_point(filled=True, size=60, opacity=1).encode(x=alt.X("ms:Q", title="ms"))
    return alt.layer(intervals, points).properties(
        description=description, height=alt.Step(20), autosize=FIT_WIDTH
    )


def scaling(rows: Sequence[dict], description: str) -> alt.LayerChart:
    """Time of each layer against the hidden size, both logarithmic, with intervals."""
    shown = [
        {"layer": r["layer"], "hidden_size": r["hidden_size"], "ms": r["latency_ms"],
         "low": r["latency_ms_low"], "high": r["latency_ms_high"]}
        for r in rows
    ]  # fmt: skip
    names = list(dict.fromkeys(r["layer"] for r in shown))
    base = alt.Chart(alt.Data(values=shown)).encode(
        x=_sizes("hidden_size", (r["hidden_size"] for r in shown)), color=_colour(names)
    )
    axis = alt.Y("ms:Q", title="ms", scale=alt.Scale(type="log", nice=False, padding=10))
    lines = base.mark_line().encode(y=axis)
    points = base.mark_point(filled=True, size=55, opacity=1).encode(
        y=axis, tooltip=["layer:N", alt.Tooltip("hidden_size:Q", format=","),
                         alt.Tooltip("ms:Q", format=".2f")]
    )  # fmt: skip
    intervals = base.mark_rule(strokeWidth=2).encode(y="low:Q", y2="high:Q")
    return alt.layer(lines, intervals, points).properties(description=description, height=320)
