"""Where the time of a step goes: a mark at every change of owner, the parts sum to the step.

Plain and instrumented steps take turns; the ratio of their times is the price of the marks.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import asdict, dataclass, field

import numpy as np

from lmtime import stats
from lmtime.records import STEP
from lmtime.timing.clock import Clock
from lmtime.timing.counters import Counts
from lmtime.timing.flops import Work
from lmtime.timing.ownership import MARKS, OUTSIDE, Ownership
from lmtime.timing.timer import Step, StopRule, spread, time_once, warm_up

INFLATION_TOLD = 1.05  # above it the result says so
INFLATION_REFUSED = 1.25  # above it the result is not one
DRIFT_REFUSED = 1.2  # last third of the samples over the first, or the inverse
MIN_STEPS_OF_DRIFT = 15  # fewer cannot tell drift from chance


@dataclass(frozen=True)
class Span:
    """What one owner had of a step, from one mark to the next."""

    owner: str
    phase: str
    start_ms: float  # since the step began
    duration_ms: float


@dataclass(frozen=True)
class Breakdown:
    """Samples of a step and of its parts: every sample is kept.

    parts: (owner, phase) of each column of `samples_ms`, in the order they first ran.
    samples_ms: (n_steps, n_parts), zero where a part did not occur in a step.
    plain_ms: (n_steps,), the steps without marks that were taken in turn. counts: the work of one
    more step, where it was counted.
    """

    parts: tuple[tuple[str, str], ...]
    samples_ms: np.ndarray
    plain_ms: np.ndarray
    n_warmup: int
    warmed_up: bool
    counts: Counts | None = field(repr=False, default=None)

    @property
    def totals_ms(self) -> np.ndarray:
        """Each instrumented step as the sum of its parts, (n_steps,)."""
        return self.samples_ms.sum(axis=1)

    @property
    def inflation(self) -> stats.Ratio:
        """Instrumented over plain: median of the paired ratios and its 95 % interval."""
        return stats.paired_ratio(self.totals_ms, self.plain_ms, np.random.default_rng(0))

    @property
    def drift(self) -> float:
        """Median plain step of the last third of the samples over that of the first third."""
        third = max(1, len(self.plain_ms) // 3)
        return float(np.median(self.plain_ms[-third:]) / np.median(self.plain_ms[:third]))

    @property
    def quality(self) -> str:
        """Empty, or why this must not be used as a result."""
        if self.inflation.ratio > INFLATION_REFUSED:
            return f"the marks slow the step {self.inflation.ratio:.2f} times"
        if len(self.plain_ms) < stats.MIN_PAIRS:
            return f"{len(self.plain_ms)} pairs of steps are too few for an interval"
        if spread(self.plain_ms) > 0.25:
            return f"the plain step spreads {100 * spread(self.plain_ms):.0f} % (IQR / median)"
        steady = 1 / DRIFT_REFUSED <= self.drift <= DRIFT_REFUSED
        if len(self.plain_ms) >= MIN_STEPS_OF_DRIFT and not steady:
            return f"the plain step drifts to {self.drift:.2f} times its time while measured"
        return ""

    def part(self, owner: str, phase: str | None = None) -> np.ndarray:
        """Samples of an owner in ms, (n_steps,), of one phase or of all."""
        columns = [i for i, p in enumerate(self.parts) if p[0] == owner and phase in (None, p[1])]
        return self.samples_ms[:, columns].sum(axis=1)

    def rows(self, *, seed: int = 0) -> list[dict]:
        """One row a part and one for the step: medians, quantiles, shares, all with intervals.

        The keys are fields of `records.Record`. The step's `latency_ms` is the sum of its parts.
        Where work was counted, its FLOPs and bytes stand in the same row.
        """
        rng = np.random.default_rng(seed)
        shares = stats.share_intervals(self.samples_ms, rng)
        rows = []
        for i, (owner, phase) in enumerate(self.parts):
            share = {
                "share": float(shares.shares[i]),
                "share_low": float(shares.low[i]),
                "share_high": float(shares.high[i]),
            }
            latency = _latency(stats.summarise(self.samples_ms[:, i], rng))
            rows.append({"owner": owner, "phase": phase} | share | latency)
        whole = _latency(stats.summarise(self.totals_ms, rng)) | {
            "latency_ms": sum(row["latency_ms"] for row in rows),
            "latency_ms_low": shares.total_low,
            "latency_ms_high": shares.total_high,
        }
        step = dict(owner=STEP, phase=STEP, share=1.0, share_low=1.0, share_high=1.0)
        return [row | self._work(row) for row in (*rows, step | whole)]

    def _work(self, row: dict) -> dict[str, int]:
        """Counted work of one row."""
        if self.counts is None:
            return {}
        part = (row["owner"], row["phase"])
        whole = part == (STEP, STEP)
        return asdict(self.counts.total if whole else self.counts.by_owner.get(part, Work()))

    def table(self) -> str:
        """The rows as text, largest share first, and the price of the marks.

        Where work was counted: FLOPs, bytes moved, and the rates that they and the time make.
        """
        rows = sorted(self.rows(), key=lambda row: -row["share"])
        width = max(len(row["owner"]) for row in rows)
        lines = [
            f"{row['owner']:{width}}  {row['phase']:9}  {row['latency_ms']:10.3f} ms"
            f"  {100 * row['share']:5.1f} %"
            f"  {_interval(row):14}{_rates(row)}"
            for row in rows
        ]
        lines.append(f"Marks cost {100 * (self.inflation.ratio - 1):+.1f} %. {self.quality}")
        if self.counts is not None and self.counts.uncounted:
            calls = (f"{name} ({n})" for name, n in self.counts.uncounted.items())
            lines.append(f"No formula, so FLOPs are missing for: {', '.join(calls)}")
        return "\n".join(line.rstrip() for line in lines)

    def chart(self):
        """The rows as a chart, for a notebook: share of each owner and phase with its interval."""
        from lmtime import charts  # what draws is loaded when something is drawn

        return charts.step_parts(self.rows(), "Share of the step of each owner and phase")


def _interval(row: dict) -> str:
    return f"({100 * row['share_low']:.1f} to {100 * row['share_high']:.1f})"


def _rates(row: dict) -> str:
    """Work and what is done of it in a second; nothing where it was not counted."""
    if "flops" not in row:
        return ""
    seconds = row["latency_ms"] / 1e3
    cells = ((row["flops"], "GFLOP"), (row["bytes"], "GB"))
    return "".join(
        f"  {value / 1e9:9.3f} {unit} {value / seconds / 1e9:8.1f} {unit}/s" if seconds else ""
        for value, unit in cells
    )


def _latency(summary: stats.Summary) -> dict[str, float | int]:
    return {
        "latency_ms": summary.median,
        "latency_ms_low": summary.low,
        "latency_ms_high": summary.high,
        "latency_ms_p05": summary.p05,
        "latency_ms_p25": summary.p25,
        "latency_ms_p50": summary.median,
        "latency_ms_p75": summary.p75,
        "latency_ms_p95": summary.p95,
        "n": summary.n,
    }


def record_step(step: Step, ownership: Ownership, clock: Clock) -> tuple[Span, ...]:
    """One instrumented call: the spans between marks, whose durations sum to the call.

    The span of the owner MARKS is the walk over the autograd graph that only a measurement makes.
    """
    owners: list[tuple[str, str]] = [(OUTSIDE, "forward")]
    marks: list[object] = []

    def listen(owner: str, phase: str) -> None:
        marks.append(clock.mark())
        owners.append((owner, phase))

    with ownership.watching(listen):
        clock.synchronize()
        marks.append(clock.mark())
        step()
        marks.append(clock.mark())
    durations = clock.intervals_ms(marks)
    starts = np.concatenate([[0.0], np.cumsum(durations)])
    return tuple(
        Span(owner, phase, float(start), float(duration))
        for (owner, phase), start, duration in zip(owners, starts, durations, strict=False)
    )


def measure(
    next_step: Callable[[], Step],
    ownership: Ownership,
    clock: Clock,
    rule: StopRule | None = None,
    *,
    say: Callable[[int, float], None] = lambda n, spread: None,
) -> Breakdown:
    """Warm up, then sample plain and instrumented steps in turn until the spread is small.

    next_step: gives the step to time next; the plain and the instrumented step of a pair are the
    same one, so that both see the same tokens. say: told the number of pairs and the spread.
    """
    rule = rule or StopRule()
    n_warmup, warmed_up = warm_up(lambda: next_step()(), clock)
    record_step(next_step(), ownership, clock)  # the first marks create events and caches
    plain: list[float] = []
    steps: list[tuple[Span, ...]] = []
    start = time.monotonic()
    while not rule.is_over(plain, time.monotonic() - start):
        step = next_step()
        if len(plain) % 2:  # which of the two goes first alternates
            steps.append(record_step(step, ownership, clock))
            plain.append(time_once(step, clock))
        else:
            plain.append(time_once(step, clock))
            steps.append(record_step(step, ownership, clock))
        say(len(plain), spread(plain))
    parts, samples = _columns(steps)
    return Breakdown(parts, samples, np.asarray(plain), n_warmup, warmed_up)


def _columns(steps: list[tuple[Span, ...]]) -> tuple[tuple[tuple[str, str], ...], np.ndarray]:
    """The parts of all steps and the time of each in each step, (n_steps, n_parts).

    Without MARKS: a plain step does nothing there, and on a GPU nothing is queued meanwhile.
    """
    steps = [tuple(s for s in spans if s.owner != MARKS) for spans in steps]
    column: dict[tuple[str, str], int] = {}
    for spans in steps:
        for span in spans:
            column.setdefault((span.owner, span.phase), len(column))
    samples = np.zeros((len(steps), len(column)))
    for row, spans in enumerate(steps):
        for span in spans:
            samples[row, column[span.owner, span.phase]] += span.duration_ms
    return tuple(column), samples
