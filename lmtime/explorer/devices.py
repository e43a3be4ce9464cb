"""Which sub-networks are on the front of which device, for a task that the reader chooses."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence

import altair as alt

from lmtime import front_charts
from lmtime.encoders.device_fronts import DeviceFront, agreement
from lmtime.explorer import tracing


def device_explorer(found: Mapping[str, Sequence[DeviceFront]]) -> alt.LayerChart:
    """A cell for each sub-network and device: how often it is on the front there.

    found: {task: fronts of `device_fronts`, the rules last}.
    """
    tasks = list(found)
    shown = [
        {
            "task": i,
            "device": front.device,
            "name": row["name"],
            "probability": round(row["front_probability"], 3),
        }
        for i, task in enumerate(tasks)
        for front in found[task]
        for row in front.table.rows
    ]
    devices = list(dict.fromkeys(row["device"] for row in shown))
    names = list(dict.fromkeys(n for fronts in found.values() for n in agreement(fronts)["names"]))
    return (
        _cells(shown, _largest_first(names), devices)
        .add_params(
            tracing.choice("task", "Task", 0, dict(enumerate(tasks))),
            *tracing.signals(_derived(found)),
        )
        .properties(
            usermeta={"lmtime": {"sentence": _sentence()}},
            description="Probability of each sub-network to be on the front of each device, for "
            "the chosen task: part of the resamples of latencies and examples. The last two are "
            "rules in place of a device.",
        )
    )


def _largest_first(names: Sequence[str]) -> list[str]:
    """As in "w1 d1", then narrower, then shallower."""

    def parts(name: str) -> list[float]:
        return [_value(part[1:]) for part in name.split()]

    return sorted(names, key=lambda name: (-parts(name)[1], -parts(name)[0]))


def _value(text: str) -> float:
    top, _, bottom = text.partition("/")
    return float(top) / float(bottom or 1)


def _cells(shown: list[dict], names: list[str], devices: list[str]) -> alt.LayerChart:
    base = (
        alt.Chart(alt.Data(values=shown))
        .transform_filter("datum.task == task")
        .encode(
            x=alt.X("device:N", title=None, sort=devices, axis=front_charts.broken_axis()),
            y=alt.Y("name:N", title="width and depth", sort=names),
        )
    )
    return front_charts.cells(base, "probability", "on the front in, %", 1)


def _derived(found: Mapping[str, Sequence[DeviceFront]]) -> dict[str, str]:
    """Signals: how many sub-networks are on every, on some, on no front of the chosen task."""
    facts = [agreement(fronts) for fronts in found.values()]
    counts = {name: [len(f[name]) for f in facts] for name in ("on_every", "on_some", "on_none")}
    counts |= {"n_moved": [len(f["moved"]) for f in facts]}
    counts |= {"n_devices": [f["n_devices"] for f in facts]}
    return {name: f"{json.dumps(values)}[task]" for name, values in counts.items()}


def _sentence() -> list:
    return [
        "By medians ", {"signal": "on_every"}, " sub-networks are on the front of all ",
        {"signal": "n_devices"}, " measured devices, ", {"signal": "on_some"},
        " on some and ", {"signal": "on_none"}, " on none. ",
        {"signal": "n_moved ? n_moved : 'No'"},
        {"signal": "n_moved == 1 ? ' sub-network is' : n_moved ? ' are' : ' sub-network is'"},
        " surely (95 % of resamples) on the front of one of them and surely not on that of "
        "another.",
    ]  # fmt: skip
