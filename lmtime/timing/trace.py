"""One step under `torch.profiler`: kernels, busy and idle time, host waits, each with its owner.

A cross-check, never the clock: the profiler slows the step, so its times show what a part is made
of and not how long a plain step takes. Every change of owner leaves a mark in the profile. What
the host calls between two marks, and what those calls launch on a device, has the owner of the
first. The time of the marks themselves and the walk over the autograd graph belong to nobody.
"""

from __future__ import annotations

import json
import resource
import tempfile
from collections import defaultdict
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from decimal import Decimal
from itertools import pairwise
from pathlib import Path

import torch
from torch.profiler import ProfilerActivity, profile, record_function

from lmtime import records
from lmtime.errors import UsageError
from lmtime.timing import kinds
from lmtime.timing.attribution import MARK, Event, Segment, Slice, attribute
from lmtime.timing.clock import clock_for
from lmtime.timing.ownership import OUTSIDE, Ownership
from lmtime.timing.timer import Step


@dataclass(frozen=True)
class Trace:
    """One profiled step. Its parts are its segments, folded by owner and phase."""

    segments: tuple[Segment, ...]
    slices: tuple[Slice, ...] = field(repr=False, default=())
    page_faults: dict[tuple[str, str], int] = field(default_factory=dict)  # by owner and phase

    @property
    def total_ms(self) -> float:
        """The step under the profiler, without the marks: the sum of all busy and idle time."""
        return sum(s.end_ns - s.start_ns for s in self.segments) / 1e6

    def rows(self) -> list[dict]:
        """One row an owner and phase, in the order they first ran.

        kernels: on a GPU what was launched, without copies and fills; on a CPU the operators that
        do work, as they are dispatched below autograd: no views, no allocations, not what they
        call. busy_ms: on a GPU the time in which some of its kernels, copies or fills ran; on a
        CPU that in operators. idle_ms: the rest of its segments. syncs: on a GPU the calls in
        which the host waited for the device; on a CPU the operators that would wait on a GPU, but
        for the optimizer's, whose counts of steps stay on the host there too. by_kind: busy_ms by
        kind of work (`kinds.KINDS`), told by the innermost operator whose name tells it.
        page_faults: pages of memory that the host touched for the first time since the system gave
        them out; each costs about a microsecond.
        """
        folded: dict[tuple[str, str], list[Segment]] = defaultdict(list)
        for segment in self.segments:
            folded[segment.owner, segment.phase].append(segment)
        rows = []
        for (owner, phase), parts in folded.items():
            by_kind = {kind: sum(s.busy_ns.get(kind, 0) for s in parts) for kind in kinds.KINDS}
            span, busy = sum(s.end_ns - s.start_ns for s in parts), sum(by_kind.values())
            rows.append(
                {
                    "owner": owner,
                    "phase": phase,
                    "kernels": sum(s.kernels for s in parts),
                    "syncs": sum(s.syncs for s in parts),
                    "page_faults": self.page_faults.get((owner, phase), 0),
                    "busy_ms": busy / 1e6,
                    "idle_ms": (span - busy) / 1e6,
                    "by_kind": {kind: ns / 1e6 for kind, ns in by_kind.items() if ns},
                }
            )
        return rows

    def write(self, path: Path) -> None:
        """A Chrome trace (chrome://tracing, Perfetto): owners, operators and, on a GPU, kernels."""
        owners = (
            Slice("owners", s.owner, s.phase, s.start_ns, s.end_ns, {"kernels": s.kernels})
            for s in self.segments
        )
        slices = [*owners, *self.slices]
        zero = min((s.start_ns for s in slices), default=0)
        events = [_label("process_name", 0, "lmtime")]
        for number, (track, lane) in enumerate(_lanes(slices), 1):
            events.append(_label("thread_name", number, track))
            events += [_drawn(s, number, zero) for s in lane]
        records.write_text(path, json.dumps({"traceEvents": events, "displayTimeUnit": "ms"}))


def _label(what: str, track: int, name: str) -> dict:
    return {"name": what, "ph": "M", "pid": 1, "tid": track, "args": {"name": name}}


def _drawn(piece: Slice, track: int, zero_ns: int) -> dict:
    return {
        "name": piece.name,
        "cat": piece.category,
        "ph": "X",
        "pid": 1,
        "tid": track,
        "ts": (piece.start_ns - zero_ns) / 1e3,  # the format counts in microseconds
        "dur": (piece.end_ns - piece.start_ns) / 1e3,
        "args": piece.args,
    }


class _Lane:
    """Slices of one track that nest in each other."""

    def __init__(self) -> None:
        self.slices: list[Slice] = []
        self._ends: list[int] = []

    def takes(self, new: Slice) -> bool:
        """Keeps it unless it crosses the end of another; slices come by their start."""
        while self._ends and self._ends[-1] <= new.start_ns:
            self._ends.pop()
        if self._ends and new.end_ns > self._ends[-1]:
            return False
        self.slices.append(new)
        self._ends.append(new.end_ns)
        return True


def _lanes(slices: Iterable[Slice]) -> list[tuple[str, list[Slice]]]:
    """Each track with its slices; those that cross others are on further lanes of its name."""
    tracks: dict[str, list[_Lane]] = defaultdict(list)
    for new in sorted(slices, key=lambda s: (s.start_ns, -s.end_ns)):
        lanes = tracks[new.track]
        if not any(lane.takes(new) for lane in lanes):
            lanes.append(_Lane())
            lanes[-1].takes(new)
    return [(track, lane.slices) for track, lanes in tracks.items() for lane in lanes]


def trace(step: Step, ownership: Ownership, *, device: str) -> Trace:
    """Run one step, already warmed up, under `torch.profiler`. device: "cpu" or "cuda"."""
    clock = clock_for(device)
    activities = [ProfilerActivity.CPU]
    if torch.device(device).type == "cuda":
        activities.append(ProfilerActivity.CUDA)
        if ProfilerActivity.CUDA not in torch.profiler.supported_activities():
            raise UsageError("this build of torch records no kernels (it has no CUPTI)")
    owners = [(OUTSIDE, "forward")]
    faults: list[int] = []

    def mark() -> None:
        faults.append(resource.getrusage(resource.RUSAGE_SELF).ru_minflt)
        with record_function(f"{MARK}{owners[-1][0]}|{owners[-1][1]}"):
            pass

    def listen(owner: str, phase: str) -> None:
        owners.append((owner, phase))
        mark()

    with profile(activities=activities, acc_events=True) as profiler:
        clock.synchronize()
        with ownership.watching(listen):
            mark()
            step()
            mark()
        clock.synchronize()
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "trace.json"
        profiler.export_chrome_trace(str(path))
        text = path.read_text(encoding="utf-8")
    segments, slices = attribute(list(read(text)), owners, on_gpu=len(activities) > 1)
    touched: dict[tuple[str, str], int] = defaultdict(int)
    for owner, (before, after) in zip(owners, pairwise(faults), strict=True):
        touched[owner] += after - before
    return Trace(tuple(segments), tuple(slices), dict(touched))


def read(text: str) -> Iterator[Event]:
    """The slices of what `torch.profiler` exports (a Chrome trace), times exact to 1 ns."""
    for event in json.loads(text, parse_float=Decimal)["traceEvents"]:
        if event.get("ph") != "X":
            continue
        start, args = int(1000 * event["ts"]), event.get("args", {})
        yield Event(
            name=event["name"],
            category=str(event.get("cat", "")).lower(),
            start_ns=start,
            end_ns=start + int(1000 * event["dur"]),
            track=args.get("stream", event["tid"]),
            call=args.get("correlation", 0),
        )
