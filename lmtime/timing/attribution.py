"""Whose each event of a profile is: from operators, calls and kernels to segments with owners.

Pure: it takes the events of a profile and the owners that the marks in it stand for. What the
host does between two marks has the owner of the first. What a device does has the owner in whose
segment it was launched, joined by the number of the launching call, however late it runs.
"""

from __future__ import annotations

from bisect import bisect_right
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from lmtime.timing import kinds
from lmtime.timing.ownership import MARKS, OPTIMIZER

MARK = "lmtime|"  # how the name of a mark begins
CALLS = frozenset({"cuda_runtime", "cuda_driver"})
DEVICE = frozenset({"kernel", "gpu_memcpy", "gpu_memset"})  # gpu_user_annotation does no work
GRAPH = "CUDA graph"


class Event(NamedTuple):
    """A slice of a profile: an operator, an annotation, a call of CUDA, or work of the device."""

    name: str
    category: str  # as torch.profiler names it: "cpu_op", "user_annotation", "kernel", ...
    start_ns: int
    end_ns: int
    track: int = 0  # the thread of the host, or the stream of the device
    call: int = 0  # joins a call of CUDA and what it launched


class Slice(NamedTuple):
    """What is drawn: one slice on a track, with what is said of it."""

    track: str
    name: str
    category: str
    start_ns: int
    end_ns: int
    args: dict[str, object]


@dataclass(frozen=True)
class Segment:
    """What one owner had of the step, from one change of owner to the next.

    On a GPU it begins when all that was launched before is done, or at the change of owner if
    that is later: where a CUDA event recorded there would stand.
    """

    owner: str
    phase: str
    start_ns: int
    end_ns: int
    kernels: int
    syncs: int
    busy_ns: dict[str, int]  # kind of work -> time in which it was done


class _Operator(NamedTuple):
    """Something that the host names, and what encloses it."""

    event: Event
    kind: str
    outer: tuple[str, ...]  # names of all that encloses it
    children: list[Event]

    @property
    def is_busy(self) -> bool:
        """It is an operator of torch, or runs inside one."""
        return any(map(kinds.is_operator, (*self.outer, self.event.name)))

    @property
    def is_kernel(self) -> bool:
        """It does work, and runs inside nothing that does."""
        return kinds.does_work(self.event.name) and not any(map(kinds.does_work, self.outer))

    @property
    def is_wait(self) -> bool:
        """On a GPU the host would wait in it, and it runs inside no other such operator."""
        return self.event.name in kinds.SYNCS and kinds.SYNCS.isdisjoint(self.outer)


class _Work(NamedTuple):
    """Time of a device, or of a CPU in an operator itself."""

    start_ns: int
    end_ns: int
    launch_ns: int
    kind: str
    kernels: int
    event: Event
    operator: str = ""


class _Marks:
    """Where the owners change on the host."""

    def __init__(self, events: Iterable[Event], owners: Sequence[tuple[str, str]]) -> None:
        self.owners = owners
        self.events = sorted((e for e in events if _is_mark(e)), key=lambda e: e.start_ns)
        if len(self.events) != len(owners) + 1:
            raise RuntimeError(f"the profile has {len(self.events)} of {len(owners) + 1} marks")
        self._starts = [e.end_ns for e in self.events[:-1]] + [self.events[-1].start_ns]

    def place(self, time_ns: int) -> int | None:
        """The number of the segment in which the host then was, if it is an owner's."""
        number = bisect_right(self._starts, time_ns) - 1
        inside = 0 <= number < len(self.owners) and self.owners[number][0] != MARKS
        return number if inside else None


def attribute(
    events: Sequence[Event], owners: Sequence[tuple[str, str]], *, on_gpu: bool
) -> tuple[list[Segment], list[Slice]]:
    """Segments of the step, and what is to be drawn of its operators and kernels.

    owners: (owner, phase) from each mark on; one more mark ends the last. The owner MARKS is left
    out with all that is its. Of work that overlaps each moment counts once, for what began first.
    """
    marks = _Marks(events, owners)
    operators, callers = _nested(events)
    if on_gpu:
        work = list(_gpu_work(events, callers, last_ns=marks.events[-1].start_ns - 1))
        waits = (e for e in events if e.category in CALLS and e.name in kinds.SYNC_CALLS)
    else:
        work = [piece for o in operators if o.is_busy for piece in _pieces(o)]
        waits = (o.event for o in operators if o.is_wait)
    n_waits = Counter(marks.place(event.start_ns) for event in waits)
    if not on_gpu:  # an optimizer's counts of its steps are read, and on a GPU stay on the host
        n_waits = Counter(
            {n: n_waits[n] for n, (owner, _) in enumerate(owners) if owner != OPTIMIZER}
        )
    drawn = list(_operator_slices(operators, marks))
    if on_gpu:
        drawn += _device_slices(work, marks)
    return list(_segments(marks, work, n_waits)), drawn


def _is_mark(event: Event) -> bool:
    return event.category == "user_annotation" and event.name.startswith(MARK)


def _segments(marks: _Marks, work: Iterable[_Work], n_waits: Counter) -> Iterator[Segment]:
    work_of = defaultdict(list)
    for item in work:
        work_of[marks.place(item.launch_ns)].append(item)
    done = 0  # when all is done that was launched before
    for number, (owner, phase) in enumerate(marks.owners):
        own = work_of[number]
        start = max(marks.events[number].end_ns, done)
        done = max([done, *(item.end_ns for item in own)])
        end = max(marks.events[number + 1].start_ns, done)
        kernels = sum(item.kernels for item in own)
        if owner != MARKS:
            yield Segment(owner, phase, start, end, kernels, n_waits[number], _busy(own, start))


def _busy(work: Iterable[_Work], since_ns: int) -> dict[str, int]:
    """Time by kind, each moment once: of work that overlaps, the first to begin has it."""
    by_kind: dict[str, int] = defaultdict(int)
    for item in sorted(work, key=lambda item: (item.start_ns, -item.end_ns)):
        by_kind[item.kind] += max(0, item.end_ns - max(item.start_ns, since_ns))
        since_ns = max(since_ns, item.end_ns)
    return dict(by_kind)


# -- the host -------------------------------------------------------------------------------------


def _nested(events: Iterable[Event]) -> tuple[list[_Operator], dict[int, _Operator]]:
    """All that the host names, outer before inner, and which of it made each call of CUDA.

    The caller is found by time: numbers of operators and of calls mix in a profile, and where
    none is known some versions of torch write the one in the place of the other.
    """
    found: list[_Operator] = []
    callers: dict[int, _Operator] = {}
    running: dict[int, list[_Operator]] = defaultdict(list)
    host = (e for e in events if e.category in ("cpu_op", *CALLS) or _is_mark(e))
    for event in sorted(host, key=lambda e: (e.start_ns, -e.end_ns)):
        stack = running[event.track]
        while stack and stack[-1].event.end_ns <= event.start_ns:
            stack.pop()
        if event.category == "cpu_op":
            found.append(_operator(event, stack))
            stack.append(found[-1])
        elif stack and event.category in CALLS:
            callers[event.call] = stack[-1]
        elif stack:
            stack[-1].children.append(event)
    return found, callers


def _operator(event: Event, enclosing: Sequence[_Operator]) -> _Operator:
    names = tuple(outer.event.name for outer in enclosing)
    kind = kinds.kind_of(event.name)
    if not enclosing:
        return _Operator(event, kind or kinds.ELEMENTWISE, names, [])
    outer = enclosing[-1]
    event = event._replace(end_ns=min(event.end_ns, outer.event.end_ns))
    outer.children.append(event)
    # What its name does not tell, what encloses it does: a bias that `addmm` copies.
    return _Operator(event, kind or outer.kind, names, [])


def _pieces(operator: _Operator) -> Iterator[_Work]:
    """The stretches of time in which it was the innermost operator."""
    event, kernels, start = operator.event, int(operator.is_kernel), operator.event.start_ns
    for end, following in [*((c.start_ns, c.end_ns) for c in operator.children), (event.end_ns, 0)]:
        yield _Work(start, end, start, operator.kind, kernels, event)
        kernels, start = 0, following


def _operator_slices(operators: Iterable[_Operator], marks: _Marks) -> Iterator[Slice]:
    for operator in operators:
        event = operator.event
        number = marks.place(event.start_ns)
        if number is not None and kinds.is_operator(event.name):
            args = _args(marks.owners[number], operator.kind)
            track = f"operators, thread {event.track}"
            yield Slice(track, event.name, "operator", event.start_ns, event.end_ns, args)


def _args(part: tuple[str, str], kind: str) -> dict[str, object]:
    return {"owner": part[0], "phase": part[1], "kind": kind}


# -- the device -----------------------------------------------------------------------------------


def _gpu_work(
    events: Iterable[Event], callers: dict[int, _Operator], last_ns: int
) -> Iterator[_Work]:
    """Kernels, copies and fills.

    One whose launch the profile has lost counts where it began, or in the last segment.
    """
    calls = {e.call: e for e in events if e.category in CALLS}
    for event in events:
        if event.category not in DEVICE:
            continue
        lost = event._replace(name="", start_ns=min(event.start_ns, last_ns))
        call = calls.get(event.call, lost)
        is_graph = "GraphLaunch" in call.name
        operator = None if is_graph else callers.get(event.call)
        yield _Work(
            start_ns=event.start_ns,
            end_ns=event.end_ns,
            launch_ns=call.start_ns,
            kind=operator.kind if operator and operator.is_busy else kinds.NO_OPERATOR,
            kernels=int(event.category == "kernel"),
            event=event,
            operator=operator.event.name if operator else GRAPH if is_graph else "",
        )


def _device_slices(work: Iterable[_Work], marks: _Marks) -> Iterator[Slice]:
    """Each piece of work on its stream, and each launch of a CUDA graph as one span above them."""
    graphs: dict[int, list[Slice]] = defaultdict(list)
    for item in work:
        number = marks.place(item.launch_ns)
        if number is None:
            continue
        args = _args(marks.owners[number], item.kind) | {"operator": item.operator}
        event = item.event
        track = f"stream {event.track}"
        drawn = Slice(track, event.name, event.category, event.start_ns, event.end_ns, args)
        yield drawn
        if item.operator == GRAPH:
            graphs[event.call].append(drawn)
    for parts in graphs.values():
        start, end = min(p.start_ns for p in parts), max(p.end_ns for p in parts)
        yield Slice(
            "CUDA graphs", GRAPH, "graph", start, end, parts[0].args | {"kernels": len(parts)}
        )
