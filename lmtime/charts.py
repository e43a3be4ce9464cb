"""Rows in, Altair chart out. Nothing is measured or computed here but what a chart draws.

Importing it makes notebooks draw the way the book does.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import altair as alt

from lmtime.publishing import renderer
from lmtime.records import GROUPS, STEP

renderer.enable()

# Okabe and Ito's colours, told apart with any colour vision, on white and on black.
GROUP_COLOURS = {
    "embedding": "#E69F00",
    "body": "#56B4E9",
    "output layer": "#D55E00",
    "optimizer": "#009E73",
    "outside": "#999999",
}
FIT_WIDTH = alt.AutoSizeParams(type="fit-x", contains="padding")
BROKEN_LABEL = "split(datum.label, '|')"
PHASE_COLOURS = {"forward": "#56B4E9", "backward": "#D55E00", "optimizer": "#009E73"}


def colours(
    table: dict[str, str], title: str | None = None, *, columns: int = 3, **more: object
) -> alt.Color:
    """The colour channel of a table {category: colour}, its legend above the chart."""
    scale = alt.Scale(domain=list(table), range=list(table.values()))
    legend = alt.Legend(orient="top", columns=columns)
    return alt.Color(title=title, scale=scale, legend=legend, **more)


def step_parts(rows: Sequence[dict], description: str) -> alt.LayerChart:
    """Share of the step of each owner and phase: bar, 95 % interval, and the prediction as a tick.

    rows: those of one configuration, of `Record.to_row` or `Breakdown.rows`.
    """
    parts = [r for r in rows if r["owner"] != STEP]
    shown = [
        {
            "owner": r["owner"],
            "phase": r["phase"],
            "share": r["share"],
            "low": r["share_low"],
            "high": r["share_high"],
            "latency_ms": r["latency_ms"],
            "predicted": r.get("predicted_share"),
        }
        for r in parts
    ]
    owners = list(dict.fromkeys(r["owner"] for r in sorted(parts, key=_place)))
    tooltip = [
        "owner:N",
        "phase:N",
        alt.Tooltip("share:Q", format=".1%"),
        alt.Tooltip("low:Q", format=".1%", title="from"),
        alt.Tooltip("high:Q", format=".1%", title="to"),
        alt.Tooltip("latency_ms:Q", format=".2f", title="ms"),
        alt.Tooltip("predicted:Q", format=".1%", title="predicted share"),
    ]
    base = alt.Chart(alt.Data(values=shown)).encode(
        y=alt.Y("owner:N", sort=owners, title=None),
        yOffset=alt.YOffset("phase:N", sort=list(PHASE_COLOURS)),
        tooltip=tooltip,
    )
    share = alt.X("share:Q", axis=alt.Axis(format="%"), title="share of the step")
    bars = base.mark_bar(opacity=0.75).encode(
        x=share, color=colours(PHASE_COLOURS, shorthand="phase:N", sort=list(PHASE_COLOURS))
    )
    interval = base.mark_rule(strokeWidth=2).encode(x="low:Q", x2="high:Q")
    predicted = base.mark_tick(thickness=3, color="#CC79A7").encode(x="predicted:Q")
    return alt.layer(bars, interval, predicted).properties(
        description=description, height=alt.Step(13), autosize=FIT_WIDTH
    )


def _place(row: dict) -> int:
    """Order of the owners: as they run forward, the optimizer and what nobody owns last."""
    return list(PHASE_COLOURS).index(row["phase"]) + 3 * (row["owner"] == "outside")


def group_shares(rows: Iterable[dict], label: str, description: str) -> alt.Chart:
    """Stacked bars, one a row of `label`: where the step goes, by group of owners.

    rows: of `Study.group_rows`, each with a field `label` that names its bar; "|" breaks lines.
    """
    whole = alt.Scale(domain=[0, 1], nice=False, clamp=True)
    share = alt.X("share:Q", axis=alt.Axis(format="%"), title="share of the step", scale=whole)
    shown = [{"bar": r[label], "group": r["owner"], "share": r["share"]} for r in rows]
    table = {name: GROUP_COLOURS[name] for name in GROUPS}
    return _stacked(shown, "group", table, share).properties(description=description)


KIND_COLOURS = {
    "matrix products": "#D55E00",
    "softmax passes": "#E69F00",
    "index and scatter": "#56B4E9",
    "elementwise and copies": "#CC79A7",
    "waiting": "#009E73",
    "without an operator": "#0072B2",
    "idle": "#999999",
}


def kind_shares(rows: Iterable[dict], label: str, description: str) -> alt.Chart:
    """Stacked bars, one a row of `label`: what a group of owners does with its time.

    rows: of `Study.kind_rows`, each with a field `label` that names its bar; "|" breaks lines.
    """
    shown = [{"bar": r[label], "kind": r["kind"], "share": r["share"]} for r in rows]
    present = {r["kind"] for r in shown}
    table = {kind: colour for kind, colour in KIND_COLOURS.items() if kind in present}
    share = alt.X("share:Q", axis=alt.Axis(format="%"), title="share of the traced step")
    return _stacked(shown, "kind", table, share).properties(description=description)


def _stacked(shown: list[dict], part: str, table: dict[str, str], share: alt.X) -> alt.Chart:
    """Bars of parts in the order of their table of colours."""
    names = list(table)
    placed = [{**r, "place": names.index(r[part])} for r in shown]
    broken = alt.Axis(labelExpr=BROKEN_LABEL, labelLimit=240)
    return (
        alt.Chart(alt.Data(values=placed))
        .mark_bar()
        .encode(
            y=alt.Y("bar:N", title=None, sort=None, axis=broken),
            x=share,
            color=colours(table, columns=2, shorthand=f"{part}:N", sort=names),  # for a phone
            order=alt.Order("place:Q"),
            tooltip=["bar:N", f"{part}:N", alt.Tooltip("share:Q", format=".1%")],
        )
        .properties(height=alt.Step(62), autosize=FIT_WIDTH)
    )


def time_and_flops(rows: Iterable[dict], description: str) -> alt.LayerChart:
    """Share of the output layer by model: of the time of a step, measured, and of the FLOPs.

    rows: {"model", "flops_share"}, and where it was measured "share", "share_low", "share_high".
    """
    shown = [
        {
            "model": r["model"],
            "flops": r["flops_share"],
            "share": r.get("share"),
            "low": r.get("share_low"),
            "high": r.get("share_high"),
        }
        for r in rows
    ]
    base = alt.Chart(alt.Data(values=shown)).encode(
        y=alt.Y("model:N", sort=None, title=None, axis=alt.Axis(labelLimit=240))
    )
    share = alt.Axis(format="%")
    bars = base.mark_bar(color="#D55E00", opacity=0.45).encode(
        x=alt.X("flops:Q", axis=share, title="output layer's share: FLOPs (bar), time (point)"),
        tooltip=[
            "model:N",
            alt.Tooltip("flops:Q", format=".1%", title="share of FLOPs"),
            alt.Tooltip("share:Q", format=".1%", title="share of time"),
        ],
    )
    intervals = base.mark_rule(strokeWidth=2, color="#0072B2").encode(x="low:Q", x2="high:Q")
    points = base.mark_point(filled=True, size=60, opacity=1, color="#0072B2").encode(x="share:Q")
    return alt.layer(bars, intervals, points).properties(
        description=description, height=alt.Step(22), autosize=FIT_WIDTH
    )


def agreement(rows: Iterable[dict], description: str) -> alt.LayerChart:
    """Predicted against measured time of each group, both logarithmic, and where they agree.

    rows: of `accuracy.comparisons`.
    """
    shown = [
        {"group": r["owner"], "measured": r["measured_ms"], "predicted": r["predicted_ms"],
         "error": r["error"], "what": f"{r['model']}, {r['output_layer']} softmax, hidden size "
         f"{r['hidden_size']}, {r['batch_size'] * r['seq_len']} tokens"}
        for r in rows
    ]  # fmt: skip
    ends = [f([v for r in shown for v in (r["measured"], r["predicted"])]) for f in (min, max)]
    scale = alt.Scale(type="log", domain=ends, nice=False, padding=8)
    table = {name: colour for name, colour in GROUP_COLOURS.items() if name != "outside"}
    axis = alt.Axis(format="~g")
    points = (
        alt.Chart(alt.Data(values=shown))
        .mark_point(filled=True, size=45, opacity=0.75)
        .encode(
            x=alt.X("measured:Q", scale=scale, axis=axis, title="measured, ms"),
            y=alt.Y("predicted:Q", scale=scale, axis=axis, title="predicted, ms"),
            color=colours(table, shorthand="group:N", sort=list(table)),
            tooltip=["what:N", "group:N", alt.Tooltip("measured:Q", format=".2f"),
                     alt.Tooltip("predicted:Q", format=".2f"),
                     alt.Tooltip("error:Q", format="+.0%")],
        )
    )  # fmt: skip
    line = [{"measured": end, "predicted": end} for end in ends]
    same = alt.Chart(alt.Data(values=line)).mark_line(strokeDash=[5, 4], color="#999999")
    return alt.layer(
        same.encode(x=alt.X("measured:Q", scale=scale), y=alt.Y("predicted:Q", scale=scale)), points
    ).properties(description=description, height=380)


def growth(rows: Iterable[dict], x: str, series: str, description: str) -> alt.LayerChart:
    """Share of the output layer against a size: measured points with intervals, predicted lines.

    rows: of `Study.group_rows` for the output layer, each with the fields `x` and `series`.
    """
    shown = [
        {
            "x": r[x],
            "series": r[series],
            "share": r["share"],
            "low": r["share_low"],
            "high": r["share_high"],
            "predicted": r["predicted_share"],
        }
        for r in rows
    ]
    sizes = sorted({r["x"] for r in shown})
    base = alt.Chart(alt.Data(values=shown)).encode(
        x=alt.X(
            "x:Q",
            scale=alt.Scale(type="log", base=2, nice=False, padding=16),
            title=x.replace("_", " "),
            axis=alt.Axis(values=sizes, format="d"),
        ),
        color=alt.Color("series:N", title=None, legend=alt.Legend(orient="top", labelLimit=320)),
    )  # fmt: skip
    share = alt.Y("share:Q", axis=alt.Axis(format="%"), title="output layer's share of the step")
    points = base.mark_point(filled=True, size=60, opacity=1).encode(
        y=share,
        tooltip=[
            alt.Tooltip("x:Q", title=x.replace("_", " ")),
            alt.Tooltip("share:Q", format=".1%"),
            alt.Tooltip("predicted:Q", format=".1%"),
        ],
    )
    intervals = base.mark_rule(strokeWidth=2).encode(y="low:Q", y2="high:Q")
    predicted = base.mark_line(strokeDash=[5, 4]).encode(y="predicted:Q")
    return alt.layer(predicted, intervals, points).properties(description=description, height=300)


def samples(values_ms: Sequence[float], description: str) -> alt.LayerChart:
    """Every sample in the order it was taken, and the median as a line."""
    rows = [{"call": i, "ms": float(ms)} for i, ms in enumerate(values_ms, 1)]
    base = alt.Chart(alt.Data(values=rows))
    axis = alt.Axis(tickMinStep=1, format="d")
    dots = base.mark_point(filled=True, size=50, opacity=0.8).encode(
        x=alt.X("call:Q", title="call", axis=axis, scale=alt.Scale(nice=False, padding=12)),
        y=alt.Y("ms:Q", title="ms", scale=alt.Scale(zero=True)),
        tooltip=["call:Q", alt.Tooltip("ms:Q", format=".2f")],
    )
    median = base.mark_rule(strokeDash=[5, 4]).encode(y="median(ms):Q")
    return alt.layer(dots, median).properties(description=description, height=170)
