"""Charts of encoders' latency: rows of `depth` in, Altair out."""

from __future__ import annotations

from collections.abc import Sequence

import altair as alt

from lmtime.charts import colours
from lmtime.layer_charts import PALETTE


def _named(rows: Sequence[dict]) -> alt.Color:
    """Colours of the series, each row's field `series`."""
    names = list(dict.fromkeys(r["series"] for r in rows))
    return colours(dict(zip(names, PALETTE, strict=False)), shorthand="series:N")


def _depth(rows: Sequence[dict]) -> alt.X:
    axis = alt.Axis(values=sorted({r["n_layers"] for r in rows}), format="d")
    return alt.X("n_layers:Q", title="layers", axis=axis, scale=alt.Scale(nice=False, padding=12))


def latency_by_depth(
    rows: Sequence[dict], fits: Sequence[dict], description: str
) -> alt.LayerChart:
    """Median latency with its interval at each depth, and the line fitted to each series.

    rows: of `depth.depth_rows`; fits: of `depth.depth_fits`; both with the name of their `series`.
    """
    keys = ("series", "n_layers", "latency_ms", "latency_ms_low", "latency_ms_high")
    shown = [{key: r[key] for key in keys} for r in rows]
    ends = [
        {"series": f["series"], "n_layers": n, "line": f["intercept"] + n * f["slope"]}
        for f in fits
        for n in (f["shallowest"], f["deepest"])
    ]
    x, colour = _depth(shown), _named(rows)
    base = alt.Chart(alt.Data(values=shown)).encode(x=x, color=colour)
    points = base.mark_point(filled=True, size=55, opacity=1).encode(
        y=alt.Y("latency_ms:Q", title="ms"),
        tooltip=["series:N", "n_layers:Q", alt.Tooltip("latency_ms:Q", format=".1f")],
    )
    intervals = base.mark_rule(strokeWidth=2).encode(y="latency_ms_low:Q", y2="latency_ms_high:Q")
    lines = alt.Chart(alt.Data(values=ends)).mark_line(strokeDash=[5, 4])
    lines = lines.encode(x=x, y=alt.Y("line:Q", title="ms"), color=colour)
    return alt.layer(lines, intervals, points).properties(description=description, height=320)


def residuals_by_depth(
    rows: Sequence[dict], fits: Sequence[dict], description: str
) -> alt.LayerChart:
    """How far each median lies from its line, as a share of the line; as above."""
    left = {f["series"]: f["residuals"] for f in fits}
    shown = []
    for series, residuals in left.items():
        members = [r for r in rows if r["series"] == series]
        shown += [
            {"series": series, "n_layers": r["n_layers"], "residual": residual}
            for r, residual in zip(members, residuals, strict=True)
        ]
    points = (
        alt.Chart(alt.Data(values=shown))
        .mark_line(point=alt.OverlayMarkDef(filled=True, size=45))
        .encode(
            x=_depth(shown),
            y=alt.Y("residual:Q", title="distance from the line", axis=alt.Axis(format="+.0%")),
            color=_named(shown),
            tooltip=["series:N", "n_layers:Q", alt.Tooltip("residual:Q", format="+.1%")],
        )
    )
    none = alt.Chart(alt.Data(values=[{"none": 0}])).mark_rule(strokeDash=[5, 4], color="#999999")
    return alt.layer(none.encode(y="none:Q"), points).properties(
        description=description, height=240
    )


def throughput_by_depth(rows: Sequence[dict], description: str) -> alt.Chart:
    """Sequences a second at each depth, logarithmic; rows of `depth.depth_rows` with `series`."""
    shown = [{k: r[k] for k in ("series", "n_layers", "throughput_per_s")} for r in rows]
    scale = alt.Scale(type="log", nice=False, padding=10)
    return (
        alt.Chart(alt.Data(values=shown))
        .mark_line(point=alt.OverlayMarkDef(filled=True, size=45))
        .encode(
            x=_depth(shown),
            y=alt.Y("throughput_per_s:Q", title="sequences a second", scale=scale),
            color=_named(shown),
            tooltip=["series:N", "n_layers:Q", alt.Tooltip("throughput_per_s:Q", format=".1f")],
        )
        .properties(description=description, height=300)
    )
