"""Which sub-network to deploy: score against latency for a task, a device and a budget.

Everything was measured or published before: the page looks up what the reader chooses.
"""

from __future__ import annotations

import json
from bisect import bisect_left
from collections.abc import Sequence
from statistics import median

import altair as alt

from lmtime.charts import colours
from lmtime.encoders.fronts import TaskFront
from lmtime.explorer import tracing
from lmtime.layer_charts import PALETTE

NEVER_MS = 1e9  # stands where a front has no further member
N_BUDGETS = 80  # positions of the slider, in equal ratios: devices differ tenfold in speed
PLACES = {"on the front": PALETTE[0], "dominated": PALETTE[1], "over the budget": "#999999"}


def front_explorer(found: Sequence[TaskFront]) -> alt.LayerChart:
    """Every task of `found` on every device of it: each pair must be there once.

    The slider starts at a budget that half of the networks of the first pair keep.
    """
    tasks = list(dict.fromkeys(front.task for front in found))
    devices = list(dict.fromkeys(called(front) for front in found))
    ordered = {(front.task, called(front)): front for front in found}
    if len(ordered) != len(tasks) * len(devices) or len(ordered) != len(found):
        raise ValueError("a page needs the front of each task on each device, once")
    fronts = [ordered[task, device] for task in tasks for device in devices]
    budgets = budgets_ms(fronts)
    ends = (budgets[0], budgets[-1])
    start = bisect_left(budgets, median(_latencies(fronts[:1])))
    controls = [
        tracing.choice("task", "Task", 0, dict(enumerate(tasks))),
        tracing.choice("device", "Device", 0, dict(enumerate(devices))),
        tracing.slider("k_budget", "At most", start, (0, len(budgets) - 1), 1),
    ]
    show = {"k_budget": "format(budget, '~g') + ' ms'"}
    return (
        alt.layer(*_layers(ends), data=alt.Data(values=_points(fronts, tasks, devices)))
        .add_params(*controls, *tracing.signals(_derived(fronts, len(devices), budgets)))
        .properties(
            width="container",
            height=320,
            usermeta={"lmtime": {"sentence": _sentence(), "show": show}},
            description="Score of each sub-network against its latency, for the chosen task and "
            "device: those on the front, those dominated, and those over the budget, with the "
            "intervals of both.",
        )
    )


def budgets_ms(fronts: Sequence[TaskFront]) -> list[float]:
    """What the slider offers, in three digits: from just below the fastest to the slowest."""
    times = _latencies(fronts)
    low, high = 0.9 * min(times), 1.02 * max(times)
    steps = (low * (high / low) ** (k / (N_BUDGETS - 1)) for k in range(N_BUDGETS))
    return sorted({float(f"{ms:.3g}") for ms in steps})


def _latencies(fronts: Sequence[TaskFront]) -> list[float]:
    return [row["latency_ms"] for front in fronts for row in front.table.rows]


def called(front: TaskFront) -> str:
    """A device in words."""
    return front.place.in_words


def _derived(
    fronts: Sequence[TaskFront], n_devices: int, budgets: Sequence[float]
) -> dict[str, str]:
    """Signals: the pair that is chosen, how many of its front keep the budget, the last of them."""
    members = [[r for r in front.table.rows if r["on_front"]] for front in fronts]
    most = max(map(len, members))
    times = [
        [of[i]["latency_ms"] if i < len(of) else NEVER_MS for of in members] for i in range(most)
    ]
    kept = " + ".join(f"({json.dumps(column)}[pair] <= budget)" for column in times)
    derived = {"budget": f"{json.dumps(budgets)}[k_budget]", "pair": f"task * {n_devices} + device"}
    derived |= {"kept": kept, "best": "max(kept - 1, 0)"}
    for name, digits in (("latency_ms", 2), ("score", 2), ("front_probability", 3)):
        values = [[round(r[name], digits) for r in of] for of in members]
        derived[f"best_{name}"] = f"{json.dumps(values)}[pair][best]"
    names = [[r["name"] for r in of] for of in members]
    return derived | {"best_name": f"{json.dumps(names)}[pair][best]"}


def _points(fronts: Sequence[TaskFront], tasks: list[str], devices: list[str]) -> list[dict]:
    return [
        {
            "task": tasks.index(front.task),
            "device": devices.index(called(front)),
            "name": row["name"],
            "where": "on the front" if row["on_front"] else "dominated",
            "probability": round(row["front_probability"], 3),
            **{key: round(row[key], 3) for key in ENDS},
        }
        for front in fronts
        for row in front.table.rows
    ]


def _layers(ends: tuple[float, float]) -> list[alt.Chart]:
    over = "datum.latency_ms > budget ? 'over the budget' : datum.where"
    base = (
        alt.Chart()
        .transform_filter("datum.task == task && datum.device == device")
        .transform_calculate(state=over)
    )
    scale = alt.Scale(type="log", nice=False, domain=[0.97 * ends[0], 1.1 * ends[1]])
    axis = alt.Axis(format="~g", labelOverlap=True)
    title = "latency of one sequence of 128 tokens, ms"
    x = alt.X("latency_ms:Q", title=title, scale=scale, axis=axis)
    y = alt.Y("score:Q", title="score, points", scale=alt.Scale(zero=False, padding=12))
    colour = colours(PLACES, shorthand="state:N")
    points = base.mark_point(filled=True, size=90, opacity=1).encode(
        x=x, y=y, color=colour,
        tooltip=["name:N", alt.Tooltip("latency_ms:Q", format=".1f"),
                 alt.Tooltip("score:Q", format=".1f"), alt.Tooltip("probability:Q", format=".0%")],
    )  # fmt: skip
    named = base.transform_filter("datum.where == 'on the front'")
    names = named.mark_text(align="left", dx=7, dy=-8, fontSize=11).encode(x=x, y=y, text="name:N")
    at = alt.Chart(alt.Data(values=[{}])).transform_calculate(at="budget")
    return [
        at.mark_rule(strokeDash=[5, 4], strokeWidth=2).encode(x=alt.X("at:Q", scale=scale)),
        base.mark_rule(strokeWidth=1.5, opacity=0.6).encode(
            x=x, y="score_low:Q", y2="score_high:Q", color=colour
        ),
        base.mark_rule(strokeWidth=1.5, opacity=0.6).encode(
            x="latency_ms_low:Q", x2="latency_ms_high:Q", y=y, color=colour
        ),
        points,
        names,
    ]


ENDS = tuple(f"{name}{end}" for name in ("latency_ms", "score") for end in ("", "_low", "_high"))


def _sentence() -> list:
    return [
        {"signal": "kept ? 'Within ' : 'Nothing takes as little as '"}, {"show": "k_budget"},
        {"signal": "kept ? ' the best for this task is ' : ': the fastest of the front is '"},
        {"signal": "best_name"}, ", ", {"signal": "best_score", "format": ".1f"}, " points in ",
        {"signal": "best_latency_ms", "format": ".1f"}, " ms. It is on the front in ",
        {"signal": "best_front_probability", "format": ".0%"}, " of resamples of the latencies "
        "and of the examples.",
    ]  # fmt: skip
