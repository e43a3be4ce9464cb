"""Time of the partitions that a search found, against the hidden size, beside measured ones.

A search has no formula: the page looks its answers up in `data/partitions.csv`.
"""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from fractions import Fraction

import altair as alt

from lmtime import plans
from lmtime.cost.partitions import MOST_TAILS, RANK_FLOORS
from lmtime.explorer import tracing
from lmtime.layer_charts import PALETTE
from lmtime.partition_table import HIDDEN_SIZES, Found, read
from lmtime.records import row_sets

FLOORS = [str(Fraction(factor)) for factor in RANK_FLOORS]
ENDS = (int(math.log2(HIDDEN_SIZES[0])), int(math.log2(HIDDEN_SIZES[-1])))
# The row of the chosen point: of a table by hidden size, floor and clusters, all of them there.
PLACE = f"((k_hidden - {ENDS[0]}) * {len(FLOORS)} + floor) * {MOST_TAILS} + clusters - 1"


def partition_explorer(rows: Sequence[Found] | None = None) -> alt.LayerChart:
    """Predicted time of the fused layer over torch's for each floor, at a number of tails.

    rows: of a table that `lmtime cutoffs --table` wrote, else of the committed one. Points with
    intervals are what `lmtime compare` measured of partitions with as many tails.
    """
    rows = read() if rows is None else rows
    controls = [
        tracing.slider("k_hidden", "Hidden size", 10, ENDS, 1),
        tracing.slider("clusters", "Tail clusters", 4, (1, MOST_TAILS), 1),
        tracing.choice("floor", "Least width, of torch's", 2, dict(enumerate(FLOORS))),
    ]
    measured = measured_rows(rows[0].n_tokens)
    ends = [r[end] for r in measured for end in ("low", "high")]
    derived = {
        "place": PLACE,
        "cutoffs": f"{_texts(r.cutoffs for r in rows)}[place]",
        "widths": f"{_texts(r.tail_widths for r in rows)}[place]",
        "ratio": f"{[r.ratio_to_torchs for r in rows]}[place]",
        "rank": f"{[r.mean_rank_per_token for r in rows]}[place]",
    }
    return (
        alt.layer(*_predicted(rows, ends), *_measured(measured))
        .add_params(*controls, *tracing.signals(derived))
        .properties(
            width="container",
            height=300,
            usermeta={
                "lmtime": {
                    "sentence": _sentence(rows[0]),
                    "show": {"k_hidden": "format(pow(2, k_hidden), ',')"},
                }
            },
            description="Predicted time of the fused adaptive softmax with the partition that a "
            "search found, as a multiple of torch's layer with two tails, against the hidden "
            "size, for each floor on the width of words; points with intervals are measured.",
        )
    )


def measured_rows(n_tokens: int) -> list[dict[str, object]]:
    """Rows of `compare` of the partitions that have names, at so many tokens."""
    names = {name: name for name in plans.PARTITIONS} | {"fused-adaptive": plans.BASELINE}
    return [
        {
            "layer": names[r["layer"]],
            "n_clusters": len(plans.PARTITIONS[names[r["layer"]]]["cutoffs"]),
            "hidden_size": r["hidden_size"],
            "ratio": r["ratio_to_torch_adaptive"],
            "low": r["ratio_low"],
            "high": r["ratio_high"],
            "whose": f"{whose}: {r['device_name']}",
        }
        for whose, rows in row_sets("output_layers")
        for r in rows
        if r["layer"] in names and r["n_tokens"] == n_tokens
    ]


def _texts(lists: object) -> str:
    return json.dumps([", ".join(f"{n:,}" for n in numbers) for numbers in lists])


def _predicted(rows: Sequence[Found], ends: Sequence[float]) -> list[alt.Chart]:
    """A line a floor, the chosen point on it, rules at its hidden size and at torch's time.

    ends: further ratios that the axis has room for.
    """
    shown = [
        {
            "hidden_size": r.hidden_size,
            "floor": FLOORS[RANK_FLOORS.index(r.rank_floor)],
            "n_clusters": r.n_clusters,
            "ratio": r.ratio_to_torchs,
            "cutoffs": ", ".join(f"{c:,}" for c in r.cutoffs),
            "widths": ", ".join(f"{w:,}" for w in r.tail_widths),
        }
        for r in rows
    ]
    colour = alt.Color(
        "floor:N",
        title="least width, of torch's",
        scale=alt.Scale(domain=FLOORS, range=PALETTE[: len(FLOORS)]),
        legend=alt.Legend(orient="top", symbolType="stroke", symbolStrokeWidth=3),
    )
    base = alt.Chart(alt.Data(values=shown)).transform_filter("datum.n_clusters == clusters")
    base = base.encode(
        x=_hidden_size(),
        y=_ratio([1, *(r.ratio_to_torchs for r in rows), *ends]),
        color=colour,
        tooltip=["hidden_size:Q", "floor:N", alt.Tooltip("ratio:Q", format=".2f"), "cutoffs:N",
                 "widths:N"],
    )  # fmt: skip
    here = base.transform_filter(
        f"datum.hidden_size == pow(2, k_hidden) && datum.floor == {FLOORS}[floor]"
    )
    one = alt.Chart(alt.Data(values=[{"one": 1}])).mark_rule(strokeDash=[5, 4], color="#999999")
    at = alt.Chart(alt.Data(values=[{}])).mark_rule(strokeDash=[4, 3], strokeWidth=2)
    return [
        one.encode(y="one:Q"),
        at.transform_calculate(at="pow(2, k_hidden)").encode(x="at:Q"),
        base.mark_line(),
        here.mark_point(filled=True, size=110, opacity=1),
    ]


def _measured(rows: Sequence[dict]) -> list[alt.Chart]:
    """A shape a layer, and its interval; nothing where nothing was measured."""
    if not rows:
        return []
    base = alt.Chart(alt.Data(values=list(rows))).transform_filter("datum.n_clusters == clusters")
    base = base.encode(x=_hidden_size())
    names = list(dict.fromkeys(str(r["layer"]) for r in rows))
    shapes = alt.Shape(
        "layer:N",
        title="measured",
        scale=alt.Scale(domain=names),
        legend=alt.Legend(orient="bottom", columns=2),
    )
    points = base.mark_point(size=60, strokeWidth=2, color="#888888", opacity=1).encode(
        y="ratio:Q", shape=shapes,
        tooltip=["layer:N", "hidden_size:Q", alt.Tooltip("ratio:Q", format=".2f"),
                 alt.Tooltip("low:Q", format=".2f"), alt.Tooltip("high:Q", format=".2f"),
                 "whose:N"],
    )  # fmt: skip
    return [
        base.mark_rule(strokeWidth=2, color="#888888").encode(y="low:Q", y2="high:Q"),
        points,
    ]


def _hidden_size() -> alt.X:
    scale = alt.Scale(type="log", base=2, nice=False, padding=12)
    axis = alt.Axis(values=list(HIDDEN_SIZES), format=",")
    return alt.X("hidden_size:Q", title="hidden size", axis=axis, scale=scale)


def _ratio(ratios: Sequence[float]) -> alt.Y:
    """The same scale whatever is chosen, so that a slider moves lines, not axes."""
    ends = [round(min(ratios) / 1.1, 3), round(1.1 * max(ratios), 3)]
    scale = alt.Scale(type="log", domain=ends, nice=False)
    axis = alt.Axis(values=[0.05, 0.1, 0.15, 0.2, 0.3, 0.5, 0.7, 1, 1.5], format="~g")
    return alt.Y("ratio:Q", title="time, of torch's adaptive softmax", scale=scale, axis=axis)


def _sentence(row: Found) -> list:
    return [
        {"show": "clusters"}, {"signal": "clusters == 1 ? ' tail cluster' : ' tail clusters'"},
        " behind a hidden size of ", {"show": "k_hidden"}, ", with no word in less than ",
        {"signal": "['the width', 'half', 'a quarter', 'an eighth'][floor]"},
        " of what torch's default gives it: cutoffs ", {"signal": "cutoffs"}, " and widths ",
        {"signal": "widths"}, " are predicted to take ", {"signal": "ratio", "format": ".2f"},
        f" of the time of torch's layer ({row.n_tokens:,} tokens, {row.vocab_size:,} words). A "
        "token's word is compared in ", {"signal": "rank", "format": ",.0f"}, " dimensions on "
        "average.",
    ]  # fmt: skip
