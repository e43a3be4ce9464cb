"""Charts of fronts of sub-networks: rows of `front_facts` and `device_fronts` in, Altair out."""

from __future__ import annotations

from collections.abc import Sequence

import altair as alt

from lmtime.charts import FIT_WIDTH, colours
from lmtime.layer_charts import PALETTE

BROKEN = "split(datum.label, /, | (?=[a-zA-Z])/)"  # "torch, cpu 1 thread" in three lines
FOUND = {"as it was chosen": PALETTE[1], "as it is": PALETTE[0]}


def probabilities(rows: Sequence[dict], description: str) -> alt.LayerChart:
    """A cell for each task and sub-network: in which part of resamples it is on the task's front.

    rows: {"task", "name", "probability"}.
    """
    base = _crossed(rows, "name").encode(y=_side(rows, "task", "task"))
    return cells(base, "probability", "on the front in, %", 1).properties(description=description)


def excess(rows: Sequence[dict], description: str, *, top: float = 0.3) -> alt.LayerChart:
    """A cell for each pair of devices: how much longer at most what the one chose takes there.

    rows: {"chosen_on", "run_on", "excess_max"}; top: the share that is darkest.
    """
    base = _crossed(rows, "run_on").encode(y=_side(rows, "chosen_on", "chosen on"))
    chart = cells(base, "excess_max", "longer at most by, %", top)
    return chart.properties(description=description)


def _crossed(rows: Sequence[dict], x: str) -> alt.Chart:
    """Columns of a field, each headed in lines of a word or two."""
    columns = list(dict.fromkeys(r[x] for r in rows))
    title = {"name": "width and depth"}.get(x, x.replace("_", " "))
    return alt.Chart(alt.Data(values=list(rows))).encode(
        x=alt.X(f"{x}:N", title=title, sort=columns, axis=broken_axis())
    )


def broken_axis() -> alt.Axis:
    """Labels in small lines of a word or two, so that a dozen stand side by side on a phone."""
    return alt.Axis(labelAngle=0, labelExpr=BROKEN, labelFontSize=9, labelLineHeight=10)


def _side(rows: Sequence[dict], field: str, title: str) -> alt.Y:
    names = list(dict.fromkeys(r[field] for r in rows))
    return alt.Y(
        f"{field}:N", title=title, sort=names, axis=alt.Axis(labelExpr="split(datum.label, ', ')")
    )


def cells(base: alt.Chart, value: str, title: str, top: float) -> alt.LayerChart:
    """A heat map with its numbers, in percent; base: with its x and y; top: what is darkest."""
    scale = alt.Scale(scheme="blues", domain=[0, top], clamp=True)
    legend = alt.Legend(orient="top", labelExpr="100 * datum.value", gradientLength=140)
    colour = alt.Color(f"{value}:Q", title=title, scale=scale, legend=legend)
    dark = f"datum['{value}'] > {0.55 * top}"
    ink = alt.condition(dark, alt.value("white"), alt.value("black"))
    percent = base.transform_calculate(
        percent=f"100 * datum['{value}']"
    )  # no sign: cells are small
    numbers = percent.mark_text(fontSize=11).encode(
        text=alt.Text("percent:Q", format=".0f"), color=ink
    )
    return alt.layer(base.mark_rect().encode(color=colour), numbers).properties(
        height=alt.Step(30), autosize=FIT_WIDTH
    )


def flops_and_latency(rows: Sequence[dict], description: str) -> alt.LayerChart:
    """Latency of each sub-network against its FLOPs, by the number of layers, with intervals.

    rows: of `front_facts.grid`. Those of equal FLOPs are joined.
    """
    keys = ("name", "latency_ms", "latency_ms_low", "latency_ms_high")
    shown = [
        {"gflops": r["flops"] / 1e9, "layers": str(r["n_layers"]), **{k: r[k] for k in keys}}
        for r in sorted(rows, key=lambda r: -r["n_layers"])
    ]
    table = dict(zip(dict.fromkeys(r["layers"] for r in shown), PALETTE, strict=False))
    base = alt.Chart(alt.Data(values=shown))
    x = alt.X("gflops:Q", title="FLOPs of one sequence, billions")
    y = alt.Y("latency_ms:Q", title="ms")
    colour = colours(table, "layers", shorthand="layers:N", sort=list(table))
    joined = base.mark_line(color="#999999", strokeDash=[4, 3]).encode(x=x, y=y, detail="gflops:Q")
    intervals = base.mark_rule(strokeWidth=2).encode(
        x=x, y="latency_ms_low:Q", y2="latency_ms_high:Q", color=colour
    )
    points = base.mark_point(filled=True, size=75, opacity=1).encode(
        x=x, y=y, color=colour,
        tooltip=["name:N", alt.Tooltip("gflops:Q", format=".2f"),
                 alt.Tooltip("latency_ms:Q", format=".1f")],
    )  # fmt: skip
    return alt.layer(joined, intervals, points).properties(description=description, height=320)


def equal_flops(rows: Sequence[dict], description: str) -> alt.LayerChart:
    """Latency of the deeper over the wider network of each pair of `front_facts.equal_flops`."""
    shown = [
        {"pair": f"{r['deep']}|over {r['wide']}", "place": r["place"],
         **{k: r[k] for k in ("ratio", "low", "high")}}
        for r in rows
    ]  # fmt: skip
    places = list(dict.fromkeys(r["place"] for r in shown))
    scale = alt.Scale(domain=places, range=PALETTE[: len(places)])
    legend = alt.Legend(orient="top", columns=2)  # long names, side by side on a phone
    axis = alt.Axis(labelExpr="split(datum.label, '|')", labelLimit=200)
    base = alt.Chart(alt.Data(values=shown)).encode(
        y=alt.Y("pair:N", title=None, sort=None, axis=axis),
        yOffset=alt.YOffset("place:N", sort=places),
        color=alt.Color("place:N", title=None, scale=scale, legend=legend),
        tooltip=["pair:N", "place:N", alt.Tooltip("ratio:Q", format=".2f")],
    )
    x = alt.X("ratio:Q", title="latency, deep over wide", scale=alt.Scale(zero=False, padding=8))
    one = alt.Chart(alt.Data(values=[{"one": 1}])).mark_rule(strokeDash=[5, 4], color="#999999")
    return alt.layer(
        one.encode(x="one:Q"),
        base.mark_rule(strokeWidth=2).encode(x="low:Q", x2="high:Q"),
        base.mark_point(filled=True, size=60, opacity=1).encode(x=x),
    ).properties(description=description, height=alt.Step(11), autosize=FIT_WIDTH)


def searched(rows: Sequence[dict], description: str) -> alt.LayerChart:
    """Each sub-network that a search found, as it was chosen and as it is, joined by a line.

    rows: of `front_facts.searched`. Chosen: by predicted latency and the score on one half of the
    examples; as it is: by measured latency and the score on the other half.
    """
    shown = [
        {"name": r["name"], "what": what, "ms": r[ms], "score": r[score]}
        for r in rows
        for what, ms, score in zip(
            FOUND, ("predicted_ms", "latency_ms"), ("score", "score_held_out"), strict=True
        )
    ]
    base = alt.Chart(alt.Data(values=shown)).encode(
        x=alt.X("ms:Q", title="ms", scale=alt.Scale(zero=False, padding=10)),
        y=alt.Y("score:Q", title="score, points", scale=alt.Scale(zero=False, padding=10)),
    )
    points = base.mark_point(filled=True, size=70, opacity=1).encode(
        color=colours(FOUND, shorthand="what:N"),
        tooltip=["name:N", "what:N", alt.Tooltip("ms:Q", format=".1f"),
                 alt.Tooltip("score:Q", format=".1f")],
    )  # fmt: skip
    joined = base.mark_line(color="#999999").encode(detail="name:N")
    return alt.layer(joined, points).properties(description=description, height=320)
