"""All that is observed of one configuration: sampled times, counted work, a trace, surroundings."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace

from lmtime.timing import gates
from lmtime.timing.breakdown import Breakdown, measure
from lmtime.timing.clock import clock_for
from lmtime.timing.conditions import n_cpus
from lmtime.timing.counters import count
from lmtime.timing.ownership import Ownership
from lmtime.timing.timer import Step, StopRule
from lmtime.timing.trace import Trace, trace


@dataclass(frozen=True)
class Observation:
    """Of the samples every one is kept; one step more was counted, and one was traced.

    parameters: trainable values by owner. spoilt: empty, or what else happened to the device.
    gated: False in the smoke test of a lab, whose rows are no results however quiet it was.
    """

    breakdown: Breakdown
    trace: Trace
    parameters: dict[str, int]
    surroundings: dict[str, object] = field(default_factory=dict)
    spoilt: str = ""
    gated: bool = True

    @property
    def quality(self) -> str:
        """Empty, or why this must not be used as a result."""
        return (self.breakdown.quality or self.spoilt) if self.gated else ""

    @property
    def uncounted(self) -> list[dict[str, object]]:
        """Operators that may hide products and have no formula: calls, share of the traced step."""
        return [
            {"operator": name, "calls": calls, "share": self._share_of(name)}
            for name, calls in self.breakdown.counts.uncounted.items()
        ]

    def _share_of(self, operator: str) -> float:
        """Part of the traced step in which an operator ran; the two passes spell it differently."""
        name = operator.replace(".", "::", 1)
        found = [s for s in self.trace.slices if s.name == name and s.category != "kernel"]
        return sum(s.end_ns - s.start_ns for s in found) / 1e6 / max(self.trace.total_ms, 1e-9)


def observe(
    next_step: Callable[[], Step],
    first: Step,
    ownership: Ownership,
    device: str,
    rule: StopRule,
    say: Callable[[str], None] = lambda text: None,
) -> Observation:
    """Sample steps under the stop rule; then count the work of the step `first`, and trace it."""
    before = gates.state(device)
    breakdown = measure(
        next_step,
        ownership,
        clock_for(device),
        rule,
        say=lambda n, spread: say(f"{n} pairs of steps, spread {100 * spread:.1f} %"),
    )
    after = gates.state(device)
    say("one step to count its work, one to trace it")
    breakdown = replace(breakdown, counts=count(first, ownership))
    traced = trace(first, ownership, device=device)
    spoilt = gates.verdict(before, after, **n_cpus(device))
    surroundings = gates.facts(before, after)
    return Observation(
        breakdown, traced, ownership.parameters, surroundings, spoilt, gated=rule.gated
    )
