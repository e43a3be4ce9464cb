"""Time of a step where the host launches what the device does, and now and then waits for it.

Between two waits the host runs ahead: such a segment takes as long as the slower of the two. On a
CPU nothing runs ahead, and what an operator costs beside its work is added to it. Traceable.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from lmtime.calibration import Calibration
from lmtime.cost.operators import Cost
from lmtime.cost.output_layers import Rows
from lmtime.cost.step import LAUNCH_S
from lmtime.hardware import Gpu

SYNC_S = 10e-6  # the host learns that the device is done, at best; an estimate, 10 to 20


@dataclass(frozen=True)
class Host:
    """Seconds that a launch and a wait cost; overlaps: whether the device works meanwhile."""

    launch_s: Any = LAUNCH_S
    sync_s: Any = SYNC_S
    overlaps: bool = True


def host_of(device: Gpu | Calibration) -> Host:
    """As measured, where it was; of a GPU else an estimate, of a CPU else nothing."""
    if isinstance(device, Gpu):
        return Host()
    if device.device == "cpu":
        return Host(device.host_s_per_operator or 0.0, 0.0, overlaps=False)
    return Host(device.host_s_per_operator or LAUNCH_S, device.sync_s or SYNC_S)


@dataclass(frozen=True)
class Segment:
    """Operators up to a wait, and how many waits end it. Seconds."""

    device_s: Any
    host_s: Any
    syncs: Any = 0

    def idle_s(self, maximum: Callable[[Any, Any], Any] = max) -> Any:
        """How long the device waits for the host."""
        return maximum(self.host_s - self.device_s, 0)


def in_order(rows: Rows) -> list[tuple[tuple[str, str], Cost]]:
    """((owner, phase), operator) as a step runs them: owners forward, then backward in reverse."""
    owners = list(dict.fromkeys(owner for owner, _ in rows))
    forward = [(owner, "forward") for owner in owners]
    backward = [(owner, "backward") for owner in reversed(owners)]
    rest = [part for part in rows if part[1] not in ("forward", "backward")]
    return [(part, op) for part in (*forward, *backward, *rest) for op in rows.get(part, ())]


def segments(
    operators: Iterable[Cost], device_s: Callable[[Cost], Any], host: Host
) -> list[Segment]:
    """Cut behind each operator that the host waits for; device_s: time of one on the device."""
    return [
        Segment(
            sum(device_s(op) for op in between),
            sum(op.launches for op in between) * host.launch_s,
            between[-1].syncs,
        )
        for between in _cut(list(operators))
    ]


def step_s(
    found: Sequence[Segment], host: Host, *, maximum: Callable[[Any, Any], Any] = max
) -> Any:
    """Seconds of the segments one after another, waits included."""
    if not host.overlaps:
        return sum(s.device_s + s.host_s for s in found)
    return sum(s.device_s + s.idle_s(maximum) + s.syncs * host.sync_s for s in found)


def host_bound_share(found: Sequence[Segment], host: Host) -> float:
    """Part of the step in which the device has nothing to do."""
    whole = step_s(found, host)
    return 1 - sum(s.device_s for s in found) / whole


def part_s(
    rows: Rows, device_s: Callable[[Cost], float], host: Host
) -> dict[tuple[str, str], float]:
    """Seconds of each part, which sum to `step_s`.

    Where the device waits, that is because of operators that launch longer than they run: they
    share its idle time, each by how much longer.
    """
    ordered = in_order(rows)
    found = dict.fromkeys(rows, 0.0)
    for between in _cut(ordered, lambda pair: pair[1].syncs):
        (segment,) = segments((op for _, op in between), device_s, host)
        late = [max(op.launches * host.launch_s - device_s(op), 0) for _, op in between]
        idle = segment.idle_s() / sum(late) if segment.idle_s() > 0 else 0.0
        for (part, op), late_s in zip(between, late, strict=True):
            added = late_s * idle if host.overlaps else op.launches * host.launch_s
            found[part] += device_s(op) + added + op.syncs * host.sync_s
    return found


def _cut(items: list, syncs: Callable[[Any], float] = lambda op: op.syncs) -> list[list]:
    """Runs of items that each end in one with a wait, and what comes last."""
    runs: list[list] = [[]]
    for item in items:
        runs[-1].append(item)
        if syncs(item):
            runs.append([])
    return [run for run in runs if run]
