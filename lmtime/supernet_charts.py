"""Charts of super-networks: importances and rows of scores in, Altair out."""

from __future__ import annotations

from collections.abc import Sequence

import altair as alt

from lmtime.charts import colours
from lmtime.layer_charts import PALETTE


def scores(rows: Sequence[dict], description: str) -> alt.LayerChart:
    """A cell for each width and depth with its score in points; tooltips have the interval.

    rows: {"width", "depth", "score", "score_low", "score_high"}; the first two as shown, largest
    first.
    """
    widths, depths = (list(dict.fromkeys(r[name] for r in rows)) for name in ("width", "depth"))
    middle = (min(r["score"] for r in rows) + max(r["score"] for r in rows)) / 2
    base = alt.Chart(alt.Data(values=list(rows))).encode(
        x=alt.X("depth:N", title="depth", sort=depths, axis=alt.Axis(labelAngle=0, orient="top")),
        y=alt.Y("width:N", title="width", sort=widths),
        tooltip=[alt.Tooltip(f"{name}:Q", format=".1f") for name in
                 ("score", "score_low", "score_high")],
    )  # fmt: skip
    colour = alt.Color(
        "score:Q", title="points", scale=alt.Scale(scheme="blues", zero=False, nice=False)
    )
    ink = alt.condition(f"datum.score > {middle}", alt.value("white"), alt.value("black"))
    text = base.mark_text(fontSize=13).encode(text=alt.Text("score:Q", format=".1f"), color=ink)
    return alt.layer(base.mark_rect().encode(color=colour), text).properties(
        description=description, height=45 * len(widths), width=90 * len(depths)
    )


def score_and_work(rows: Sequence[dict], whole: float, description: str) -> alt.LayerChart:
    """Score of each sub-network against its FLOPs, by depth; a line for the one fine-tuned alone.

    rows: {"name", "depth", "flops", "score", "score_low", "score_high"}, flops a part of the
    whole network's.
    """
    depths = list(dict.fromkeys(r["depth"] for r in rows))
    base = alt.Chart(alt.Data(values=list(rows))).encode(
        x=alt.X("flops:Q", title="FLOPs, of the whole network", axis=alt.Axis(format="%")),
        color=colours(dict(zip(depths, PALETTE, strict=False)), "depth", shorthand="depth:N"),
    )
    y = alt.Y("score:Q", title="points", scale=alt.Scale(zero=False, padding=10))
    points = base.mark_point(filled=True, size=70, opacity=1).encode(
        y=y, tooltip=["name:N", alt.Tooltip("flops:Q", format=".0%"),
                      alt.Tooltip("score:Q", format=".1f")]
    )  # fmt: skip
    lines = base.mark_line(opacity=0.5).encode(y=y)
    intervals = base.mark_rule(strokeWidth=2, opacity=0.6).encode(
        y="score_low:Q", y2="score_high:Q"
    )
    alone = alt.Chart(alt.Data(values=[{"alone": whole}])).mark_rule(
        strokeDash=[5, 4], color="#999999"
    )
    return alt.layer(alone.encode(y="alone:Q"), lines, intervals, points).properties(
        description=description, height=320
    )


def importances(rows: Sequence[dict], description: str) -> alt.FacetChart:
    """How much the loss depends on each head of each layer, darker is more, panels side by side.

    rows: {"panel", "layer", "place", "importance"}, importance a part of the layer's largest.
    """
    panels = list(dict.fromkeys(r["panel"] for r in rows))
    return (
        alt.Chart(alt.Data(values=list(rows)))
        .mark_rect()
        .encode(
            x=alt.X("place:O", title="place in the layer", axis=alt.Axis(labelAngle=0)),
            y=alt.Y("layer:O", title="layer"),
            color=alt.Color(
                "importance:Q", title="of the layer's largest",
                scale=alt.Scale(scheme="blues", domain=[0, 1]),
            ),
            tooltip=["layer:O", "place:O", alt.Tooltip("importance:Q", format=".2f")],
        )
        .properties(height=150, width=290)
        .facet(column=alt.Column("panel:N", title=None, sort=panels))
        .properties(description=description)
    )  # fmt: skip
