"""Laws of the gates: what spoils a measurement is seen, and nothing else is."""

import dataclasses
import time

import pytest

from lmtime.timing.gates import (
    State,
    busy_elsewhere,
    facts,
    parse_gpu_state,
    state,
    verdict,
)

pytestmark = pytest.mark.alone  # it sleeps, or ends what takes too long

BEFORE = State(0.0, 0.0, 0.0, 1500.0, 50.0, 0, 0)


def after(**changes):
    return dataclasses.replace(BEFORE, elapsed_s=10.0, own_cpu_s=20.0, all_cpu_s=20.0, **changes)


def on_cpu(then, *, n_threads=2, n_cpus=2):
    return verdict(BEFORE, then, n_threads=n_threads, n_cpus=n_cpus)


def test_a_quiet_machine_passes():
    assert on_cpu(after()) == ""
    assert busy_elsewhere(BEFORE, after()) == 0


@pytest.mark.parametrize(
    ("all_cpu_s", "n_cpus", "passes"),
    [(29.0, 2, True), (31.0, 2, False), (31.0, 3, True), (39.0, 3, True), (41.0, 3, False)],
)
def test_other_work_counts_where_it_takes_the_threads_own_cpus(all_cpu_s, n_cpus, passes):
    then = dataclasses.replace(after(), all_cpu_s=all_cpu_s)
    assert busy_elsewhere(BEFORE, then) == pytest.approx((all_cpu_s - 20) / 10)
    assert (on_cpu(then, n_cpus=n_cpus) == "") is passes


def test_other_work_on_the_host_does_not_spoil_a_measurement_of_a_gpu():
    then = dataclasses.replace(after(), all_cpu_s=1e3)
    assert verdict(BEFORE, then, n_threads=None, n_cpus=2) == ""


@pytest.mark.parametrize("clock_mhz", [1574.0, 1426.0])
def test_a_clock_may_move_a_little(clock_mhz):
    assert on_cpu(after(sm_clock_mhz=clock_mhz)) == ""


@pytest.mark.parametrize(("clock_mhz", "moved"), [(1350.0, "-10 %"), (1650.0, "+10 %")])
def test_a_clock_that_moved_is_told(clock_mhz, moved):
    assert moved in on_cpu(after(sm_clock_mhz=clock_mhz))


@pytest.mark.parametrize(
    ("reasons", "passes"), [(0x0, True), (0x1, True), (0x4, True), (0x8, False), (0x40, False)]
)
def test_heat_and_hardware_throttle_but_an_idle_gpu_or_its_power_limit_do_not(reasons, passes):
    assert (on_cpu(after(throttle_reasons=reasons)) == "") is passes


def test_an_allocator_that_tried_again_is_told():
    assert "allocator" in on_cpu(after(alloc_retries=1))


def test_what_the_driver_does_not_say_is_unknown():
    assert parse_gpu_state("1980, 41, 0x0000000000000004\n") == (1980.0, 41.0, 4)
    assert parse_gpu_state("[N/A], 41, [N/A]\n") == (None, 41.0, None)
    unknown = dataclasses.replace(after(), all_cpu_s=None, sm_clock_mhz=None)
    assert on_cpu(unknown) == ""
    assert facts(BEFORE, unknown)["cpus_busy_elsewhere"] is None


def test_own_work_is_not_other_work():
    before = state("cpu")
    end = time.monotonic() + 0.3
    while time.monotonic() < end:
        pass
    then = state("cpu")
    assert then.own_cpu_s - before.own_cpu_s > 0.1
    others = then.all_cpu_s - before.all_cpu_s - (then.own_cpu_s - before.own_cpu_s)
    assert busy_elsewhere(before, then) == pytest.approx(
        max(0.0, others / (then.elapsed_s - before.elapsed_s))
    )
