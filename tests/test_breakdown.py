"""Laws of the breakdown: the parts are the step, and a spoilt measurement says so.

The clock stands still but for what layers take, so every number is exact.
"""

import itertools
from dataclasses import replace
from functools import partial

import numpy as np
import pytest
import torch
from fakes import FakeClock
from torch import nn

from lmtime.timing import OUTSIDE, Breakdown, Ownership, StopRule, measure, record_step, region
from lmtime.timing.counters import Counts
from lmtime.timing.flops import Work

FORWARD_MS = {"a": 3.0, "b": 0.5}
BACKWARD_MS = {"a": 7.0, "b": 1.25}
OUTSIDE_MS = {"before": 0.125, "between": 2.0, "after": 0.0625}


class Taking(torch.autograd.Function):
    """Identity for which the clock moves, forward and backward."""

    @staticmethod
    def forward(ctx, x, label, clock):
        ctx.label, ctx.clock = label, clock
        clock.take(FORWARD_MS[label])
        return x.clone()

    @staticmethod
    def backward(ctx, grad):
        ctx.clock.take(BACKWARD_MS[ctx.label])
        return grad, None, None


class Layer(nn.Module):
    def __init__(self, label, clock):
        super().__init__()
        self.label, self.clock = label, clock

    def forward(self, x):
        return Taking.apply(x, self.label, self.clock)


class Net(nn.Module):
    """Two layers; the second may be skipped."""

    def __init__(self, clock):
        super().__init__()
        self.clock = clock
        self.a, self.b = Layer("a", clock), Layer("b", clock)

    def step(self, with_b=True):
        self.clock.take(OUTSIDE_MS["before"])
        hidden = self.a(torch.ones(2, requires_grad=True))
        self.clock.take(OUTSIDE_MS["between"])
        if with_b:
            hidden = self.b(hidden)
        hidden.sum().backward()
        self.clock.take(OUTSIDE_MS["after"])

    @property
    def is_watched(self):
        return bool(self.a._forward_pre_hooks)


@pytest.fixture
def clock():
    return FakeClock()


@pytest.fixture
def net(clock):
    return Net(clock)


def owned(net):
    return Ownership(net, {"a": "a", "b": "b"})


THREE = StopRule(n_min=3, n_max=3)


# One step


def test_spans_follow_each_other_and_their_sum_is_the_step(clock, net):
    clock.take(1234.5)  # when the step began does not matter
    spans = record_step(net.step, owned(net), clock)
    assert spans[0].start_ms == 0
    for before, after in itertools.pairwise(spans):
        assert after.start_ms == before.start_ms + before.duration_ms
    whole = sum(FORWARD_MS.values()) + sum(BACKWARD_MS.values()) + sum(OUTSIDE_MS.values())
    assert sum(span.duration_ms for span in spans) == whole


def test_each_owner_has_what_it_took(clock, net):
    spans = record_step(net.step, owned(net), clock)
    found = {}
    for span in spans:
        part = span.owner, span.phase
        found[part] = found.get(part, 0.0) + span.duration_ms
    assert {part: ms for part, ms in found.items() if ms} == {
        (OUTSIDE, "forward"): sum(OUTSIDE_MS.values()),
        ("a", "forward"): FORWARD_MS["a"],
        ("b", "forward"): FORWARD_MS["b"],
        ("a", "backward"): BACKWARD_MS["a"],
        ("b", "backward"): BACKWARD_MS["b"],
    }


def test_marks_are_read_once_and_after_the_step(clock, net):
    record_step(net.step, owned(net), clock)
    assert clock.asked[0] == "synchronize"
    assert clock.asked.count("synchronize") == clock.asked.count("read") == 1
    assert clock.asked[-1] == "read"


def test_a_step_that_does_nothing_is_outside(clock, net):
    (span,) = record_step(lambda: clock.take(4.0), owned(net), clock)
    assert (span.owner, span.phase, span.duration_ms) == (OUTSIDE, "forward", 4.0)


# Many steps


def test_parts_sum_to_the_totals_and_to_the_clock(clock, net):
    done = measure(lambda: net.step, owned(net), clock, THREE)
    whole = sum(FORWARD_MS.values()) + sum(BACKWARD_MS.values()) + sum(OUTSIDE_MS.values())
    assert done.totals_ms.tolist() == [whole] * 3
    assert done.plain_ms.tolist() == [whole] * 3
    assert sum(done.part(owner) for owner in ("a", "b", OUTSIDE)).tolist() == [whole] * 3
    assert done.part("a", "backward").tolist() == [BACKWARD_MS["a"]] * 3
    assert done.part("a").tolist() == [FORWARD_MS["a"] + BACKWARD_MS["a"]] * 3
    assert done.part("nobody").tolist() == [0.0] * 3


def test_a_part_that_does_not_occur_in_a_step_is_zero_there(clock, net):
    """The first measured step has no b, so its column comes later and is filled from behind."""
    # Ten steps to get warm and one for the first marks.
    turn = itertools.chain([True] * 11, itertools.cycle([False, True]))
    done = measure(lambda: partial(net.step, next(turn)), owned(net), clock, THREE)
    assert done.part("b", "forward").tolist() == [0.0, FORWARD_MS["b"], 0.0]
    assert done.part("b", "backward").tolist() == [0.0, BACKWARD_MS["b"], 0.0]
    assert done.samples_ms.shape == (3, len(done.parts))
    assert len(set(done.parts)) == len(done.parts)
    more = FORWARD_MS["b"] + BACKWARD_MS["b"]
    assert (done.totals_ms - done.totals_ms[0]).tolist() == [0.0, more, 0.0]


def test_parts_stand_in_the_order_they_first_ran(clock, net):
    done = measure(lambda: net.step, owned(net), clock, THREE)
    named = [part for part in done.parts if part[0] != OUTSIDE]
    assert named == [("a", "forward"), ("b", "forward"), ("b", "backward"), ("a", "backward")]


def test_plain_and_instrumented_steps_take_turns_in_going_first(clock, net):
    """The two of a pair run the same step, and no plain step carries a hook."""
    ran = []
    numbers = itertools.count()

    def next_step():
        number = next(numbers)

        def step():
            ran.append((number, net.is_watched))
            net.step()

        return step

    done = measure(next_step, owned(net), clock, StopRule(n_min=4, n_max=4))
    n = done.n_warmup
    assert ran[:n] == [(i, False) for i in range(n)]
    assert ran[n] == (n, True), "the first marks create events and caches, and do not count"
    pairs = [(n + 1 + i, i % 2 == 1) for i in range(4)]
    assert ran[n + 1 :] == [
        call for number, first in pairs for call in ((number, first), (number, not first))
    ]
    assert not net.is_watched


def test_the_pair_and_the_spread_are_told(clock, net):
    told = []
    measure(lambda: net.step, owned(net), clock, THREE, say=lambda *facts: told.append(facts))
    assert told == [(1, 0.0), (2, 0.0), (3, 0.0)]


def test_warming_up_that_failed_is_told(clock, net):
    slower = itertools.accumulate(itertools.repeat(1.05), lambda a, b: a * b)
    done = measure(lambda: lambda: clock.take(next(slower)), owned(net), clock, THREE)
    assert (done.n_warmup, done.warmed_up) == (50, False)
    steady = measure(lambda: net.step, owned(net), clock, THREE)
    assert (steady.n_warmup, steady.warmed_up) == (10, True)


def test_the_price_of_the_marks_is_the_inflation():
    clock = FakeClock(mark_ms=0.25)
    net = Net(clock)
    done = measure(lambda: net.step, owned(net), clock, THREE)
    spans = record_step(net.step, owned(net), FakeClock())
    spans = [span for span in spans if span.owner != "marks"]
    n_marks = 1 + len(spans)
    work = sum(FORWARD_MS.values()) + sum(BACKWARD_MS.values()) + sum(OUTSIDE_MS.values())
    assert done.plain_ms.tolist() == [work + 0.25] * 3
    assert done.totals_ms.tolist() == [work + 0.25 * (n_marks - 1)] * 3
    assert done.inflation.ratio == done.totals_ms[0] / done.plain_ms[0] > 1.05


# What is no result


def made(ratios, plain_ms=(10.0,) * 20):
    totals = np.asarray(plain_ms) * ratios
    samples = np.stack([0.25 * totals, 0.75 * totals], axis=1)
    parts = (("a", "forward"), ("a", "backward"))
    return Breakdown(parts, samples, np.asarray(plain_ms), n_warmup=10, warmed_up=True)


@pytest.mark.parametrize("ratio", [0.9, 1.0, 1.05, 1.2, 1.25])
def test_marks_that_cost_up_to_a_quarter_leave_a_result(ratio):
    assert made(ratio).quality == ""
    assert made(ratio).inflation.ratio == pytest.approx(ratio)


@pytest.mark.parametrize("ratio", [1.26, 1.5, 40.0])
def test_marks_that_cost_more_than_a_quarter_leave_none(ratio):
    assert made(ratio).quality == f"the marks slow the step {ratio:.2f} times"


def test_one_slow_step_is_no_reason_to_refuse():
    ratios = np.ones(20)
    ratios[7] = 90.0
    assert made(ratios).quality == ""
    assert made(ratios).inflation.ratio == 1.0


def test_inflation_is_that_of_pairs():
    """A drift that both of a pair share is no price of the marks."""
    drifting = np.linspace(10, 11, 20)
    assert made(1.03, drifting).inflation.low == pytest.approx(1.03)
    assert made(1.03, drifting).inflation.high == pytest.approx(1.03)


@pytest.mark.parametrize("width, refused", [(2.4, False), (2.6, True)])
def test_plain_steps_that_spread_over_a_quarter_leave_none(width, refused):
    plain = [10 - width / 2, 10.0, 10 + width / 2, 10 - width / 2, 10 + width / 2] * 4
    wanted = f"the plain step spreads {10 * width:.0f} % (IQR / median)" if refused else ""
    assert made(1.0, plain).quality == wanted


@pytest.mark.parametrize(
    ("last", "n", "refused"),
    [(11.9, 21, False), (12.1, 21, True), (8.2, 21, True), (12.1, 12, False)],
)
def test_steps_that_drift_over_a_fifth_leave_none(last, n, refused):
    """Few steps cannot tell drift from chance."""
    plain = np.linspace(10.0, 10.001, n)
    plain[-n // 3 :] = last
    found = made(1.0, plain)
    assert found.drift == pytest.approx(last / 10, rel=1e-3)
    assert ("drifts" in found.quality) is refused


# Work beside time


def counted(net, clock):
    done = measure(lambda: net.step, owned(net), clock, THREE)
    work = {done.parts[0]: Work(2_000_000, 8_000, 2_000_000), ("never timed", "forward"): Work(1)}
    return replace(done, counts=Counts(work, uncounted={"op": 2}))


def test_work_stands_in_the_row_of_its_owner(clock, net):
    rows = counted(net, clock).rows()
    assert [row["flops"] for row in rows] == [2_000_000, *[0] * (len(rows) - 2), 2_000_001]
    assert (rows[0]["bytes"], rows[-1]["bytes"]) == (8_000, 8_000)


def test_the_table_shows_rates_and_what_has_no_formula(clock, net):
    done = counted(net, clock)
    (line,) = [x for x in done.table().splitlines() if "0.002 GFLOP " in x and "step" not in x]
    rate = 2e-3 / (done.rows()[0]["latency_ms"] / 1e3)
    assert f"{rate:.1f} GFLOP/s" in line
    assert done.table().endswith("No formula, so FLOPs are missing for: op (2)")


def test_the_chart_has_a_bar_for_each_part(clock, net):
    done = measure(lambda: net.step, owned(net), clock, THREE)
    values = done.chart().to_dict()["data"]["values"]
    assert {(v["owner"], v["phase"]) for v in values} == set(done.parts)


# Regions


def test_the_optimizer_is_a_phase_between_its_marks(clock, net):
    def step():
        with region("optimizer", "optimizer"):
            clock.take(6.0)
        net.step()

    done = measure(lambda: step, owned(net), clock, THREE)
    assert done.part("optimizer", "optimizer").tolist() == [6.0] * 3
    assert done.part("optimizer", "forward").tolist() == [0.0] * 3
