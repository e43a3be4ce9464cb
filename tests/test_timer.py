"""Laws of the clock and of when to stop; what can be is tested with a clock that stands still."""

import itertools
import time
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from fakes import FakeClock
from hypothesis import given
from hypothesis import strategies as st

from lmtime.errors import UsageError
from lmtime.stats import MIN_PAIRS
from lmtime.timing import CudaClock, StopRule, WallClock, clock_for, time_once, time_step, warm_up
from lmtime.timing import timer as timer_module
from lmtime.timing.timer import spread


def taking(clock, durations_ms):
    """A step that takes the next of the durations each time it is called."""
    turn = iter(durations_ms)
    return lambda: clock.take(next(turn))


def noisy(noise, seed=0):
    rng = np.random.default_rng(seed)
    while True:
        yield 10 * (1 + noise * rng.uniform(-1, 1))


@pytest.fixture
def host_time(monkeypatch):
    """The time of the budgets stands still, but for what a test adds to `now`."""
    host = SimpleNamespace(now=1e6)
    host.monotonic = lambda: host.now
    monkeypatch.setattr(timer_module, "time", host)
    return host


# One call


def test_a_call_is_timed_from_an_idle_device_to_an_idle_device():
    clock = FakeClock()

    def step():
        clock.asked.append("step")
        clock.take(2.5)

    clock.take(99)  # what was before is not part of it
    assert time_once(step, clock) == 2.5
    assert clock.asked == ["synchronize", "mark", "step", "mark", "read"]


def test_the_unit_is_milliseconds():
    """Case 23: a known sleep; three orders of magnitude to either side."""
    assert 20 <= time_once(lambda: time.sleep(0.02), WallClock()) < 20_000


def test_an_error_in_the_step_is_the_callers():
    with pytest.raises(ZeroDivisionError):
        time_once(lambda: 1 / 0, FakeClock())


# The clocks


@given(st.integers(0, 2**62), st.lists(st.integers(0, 2**52), min_size=1, max_size=9))
def test_intervals_of_the_wall_clock_are_exact_in_nanoseconds(start, steps_ns):
    marks = list(itertools.accumulate(steps_ns, initial=start))
    intervals = WallClock().intervals_ms(marks)
    assert intervals.shape == (len(steps_ns),)
    assert [round(ms * 1e6) for ms in intervals.tolist()] == steps_ns


def test_the_wall_clock_never_goes_back():
    clock = WallClock()
    marks = [clock.mark() for _ in range(1_000)]
    assert marks == sorted(marks)
    assert all(isinstance(mark, int) for mark in marks)


def test_each_device_has_its_clock():
    assert isinstance(clock_for("cpu"), WallClock)
    assert isinstance(clock_for(torch.device("cpu")), WallClock)


@pytest.mark.parametrize(
    "make", [CudaClock, lambda: clock_for("cuda"), lambda: clock_for("cuda:1")]
)
def test_there_is_no_cuda_clock_without_a_gpu(make, monkeypatch):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    with pytest.raises(UsageError, match=r"torch sees none: use device cpu$"):
        make()


class FakeEvent:
    """Stands for a CUDA event: readable only with timing, once recorded, and behind a wait."""

    made = 0
    device_ms = 0.0
    waited = False

    def __init__(self, enable_timing=False):
        FakeEvent.made += 1
        self.enable_timing, self.at_ms = enable_timing, None

    def record(self):
        self.at_ms, FakeEvent.waited = FakeEvent.device_ms, False

    def elapsed_time(self, end):
        assert self.enable_timing and end.enable_timing
        assert FakeEvent.waited, "read before the device had reached it"
        return end.at_ms - self.at_ms


@pytest.fixture
def fake_cuda(monkeypatch):
    for name, value in (("made", 0), ("device_ms", 0.0), ("waited", False)):
        monkeypatch.setattr(FakeEvent, name, value)
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "Event", FakeEvent)
    monkeypatch.setattr(
        torch.cuda, "synchronize", lambda device: setattr(FakeEvent, "waited", True)
    )


def test_the_cuda_clock_waits_before_it_reads_and_only_then(fake_cuda):
    """Case 34."""
    clock, marks = CudaClock(), []
    for device_ms in (1.0, 4.0, 4.5):
        FakeEvent.device_ms = device_ms
        marks.append(clock.mark())
        assert not FakeEvent.waited, "a mark must not wait"
    assert clock.intervals_ms(marks).tolist() == [3.0, 0.5]


def test_the_cuda_clock_uses_an_event_again_only_after_it_was_read(fake_cuda):
    clock = CudaClock()
    first = [clock.mark() for _ in range(3)]
    second = [clock.mark() for _ in range(2)]
    assert len({id(event) for event in first + second}) == FakeEvent.made == 5
    clock.intervals_ms(first)
    clock.intervals_ms(second)
    again = [clock.mark() for _ in range(5)]
    assert len({id(event) for event in again}) == FakeEvent.made == 5


# Warming up


@pytest.mark.parametrize(
    "durations_ms, n_expected",
    [
        ([10.0] * 99, 10),  # two windows of five
        ([100.0] * 3 + [10.0] * 99, 11),  # two slow ones are the minority of a window
        ([100.0] * 7 + [10.0] * 99, 15),
        ([10.0, 10.1] * 99, 10),
        ([10.0] * 5 + [10.3] * 99, 13),  # 3 % apart until the later window holds the majority
    ],
)
def test_it_is_warm_when_two_windows_agree(durations_ms, n_expected, host_time):
    clock = FakeClock()
    assert warm_up(taking(clock, durations_ms), clock) == (n_expected, True)


@pytest.mark.parametrize("n_max, n_expected", [(50, 50), (12, 12), (1, 3)])
def test_what_never_gets_steady_is_reported_at_the_cap(n_max, n_expected, host_time):
    clock = FakeClock()
    step = taking(clock, (10 * 1.05**i for i in itertools.count()))
    assert warm_up(step, clock, n_max=n_max) == (n_expected, False)


@pytest.mark.parametrize("call_s, n_expected", [(1.0, 20), (6.0, 4), (1e9, 3)])
def test_warming_up_has_a_budget_but_never_ends_before_three_calls(call_s, n_expected, host_time):
    clock = FakeClock()
    durations = (10 * 1.05**i for i in itertools.count())

    def step():
        clock.take(next(durations))
        host_time.now += call_s

    assert warm_up(step, clock, max_s=20.0) == (n_expected, False)


# When to stop


@pytest.mark.parametrize("noise, n_expected", [(0.0, 20), (0.01, 20), (0.5, 70)])
def test_it_stops_when_steady_and_gives_up_at_n_max(noise, n_expected, host_time):
    clock = FakeClock()
    samples = time_step(taking(clock, noisy(noise)), clock, StopRule(n_max=70))
    assert len(samples) == n_expected


def test_it_goes_on_past_n_min_until_it_is_steady(host_time):
    """Half of the first samples are slow; it stops once they are fewer than a quarter."""
    clock = FakeClock()
    durations = itertools.chain([10.0, 20.0] * 4, itertools.repeat(10.0))
    samples = time_step(taking(clock, durations), clock, StopRule(n_min=5, n_max=99))
    assert len(samples) == 17
    assert spread(samples) <= 0.05 < spread(samples[:-1])


def test_every_sample_is_kept_in_order(host_time):
    clock, durations = FakeClock(), [3.0, 1.0, 200.0, 2.0, 2.0]
    samples = time_step(taking(clock, durations), clock, StopRule(n_min=5, n_max=5))
    assert samples.tolist() == durations


@pytest.mark.parametrize("max_s, n_expected", [(0.0, 6), (2.0, 6), (7.0, 7), (8.5, 9)])
def test_a_budget_ends_it_but_never_before_an_interval_can_be_given(max_s, n_expected, host_time):
    clock, durations = FakeClock(), noisy(0.5)

    def step():
        clock.take(next(durations))
        host_time.now += 1.0

    assert len(time_step(step, clock, StopRule(max_s=max_s))) == n_expected


@given(
    samples=st.lists(st.floats(0.1, 1e3), max_size=40),
    elapsed_s=st.floats(0, 100),
    n_min=st.integers(0, 30),
    n_max=st.integers(0, 30),
)
def test_the_rule_for_any_samples(samples, elapsed_s, n_min, n_max):
    rule = StopRule(n_min=n_min, n_max=n_max, max_s=50.0)
    over, n = rule.is_over(samples, elapsed_s), len(samples)
    if n < max(1, min(MIN_PAIRS, n_max)):
        assert not over
    elif n >= n_max or elapsed_s >= 50:
        assert over
    else:
        assert over == (n >= n_min and spread(samples) <= rule.max_spread)


def test_spread_is_the_middle_half_over_the_median():
    assert spread([5.0, 1.0, 2.0, 4.0, 3.0]) == (4 - 2) / 3
    assert spread([7.0] * 4) == 0


# On a GPU


on_gpu = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")


def long_work():
    """Some milliseconds on any GPU, launched in microseconds."""
    a = torch.randn(4_096, 4_096, device="cuda")
    out = torch.empty_like(a)
    return lambda: [torch.mm(a, a, out=out) for _ in range(20)]


@pytest.mark.cuda
@on_gpu
def test_timing_only_the_launch_is_detectable():
    """Case 28: the host's clock sees the launch, the device's the work."""
    step = long_work()
    for _ in range(3):
        time_once(step, CudaClock())
    torch.cuda.synchronize()
    launched_ms = time_once(step, WallClock())
    assert launched_ms < 0.3 * time_once(step, CudaClock())


@pytest.mark.cuda
@on_gpu
def test_marks_lie_in_the_stream_that_is_current():
    step, clock, side = long_work(), CudaClock(), torch.cuda.Stream()
    time_once(step, clock)
    side.wait_stream(torch.cuda.current_stream())
    outer = [clock.mark()]
    with torch.cuda.stream(side):
        inner = [clock.mark()]
        step()
        inner.append(clock.mark())
    outer.append(clock.mark())
    inner_ms, outer_ms = clock.intervals_ms(inner)[0], clock.intervals_ms(outer)[0]
    assert outer_ms < 0.3 * inner_ms
