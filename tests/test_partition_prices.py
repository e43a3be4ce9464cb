"""Laws of what operators of a partition cost: launches, waits, measured rates, who executes it."""

from dataclasses import replace
from pathlib import Path

import pytest

import lmtime
from lmtime.calibration import Calibration, read_calibration
from lmtime.cost import clusters
from lmtime.cost.calibrated import time_ms
from lmtime.cost.clusters import Layer
from lmtime.cost.operators import traffic
from lmtime.cost.partitions import RankFloor, baseline_partition, partition
from lmtime.errors import UsageError
from lmtime.hardware import find_gpu

REFERENCE = Path(lmtime.__file__).parent.parent / "data" / "results" / "amd-epyc-2-threads"
CALIBRATION = read_calibration(REFERENCE / "calibration.json")
QUICK = Calibration("cpu", "a CPU", 1, {"fp32": 1e11}, 2e10)


def zipf(n_words):
    return [1e6 / (rank + 2.7) for rank in range(n_words)]


def test_launches_and_waits_have_their_price():
    slow = replace(QUICK, host_s_per_operator=3e-6, sync_s=7.1e-6)
    launches = {}
    for execution, n_waits in (("torch", 6), ("fused", 1)):
        layers = [
            Layer(zipf(3000), 256, 300, clusters.measured(c), execution) for c in (QUICK, slow)
        ]
        plain, dear = (partition(layer, (100, 700), (64, 16)).price for layer in layers)
        launches[execution] = (1e3 * (dear - plain) - 7.1 * n_waits) / 3
        assert launches[execution] == pytest.approx(round(launches[execution]))
    assert launches["fused"] < launches["torch"]


def test_the_baseline_is_priced_as_torchs_whatever_the_others_are():
    counts, floor = zipf(3000), RankFloor(256, 3000)
    fused, torchs = (
        Layer(counts, 256, 64, clusters.published(find_gpu("v100-sxm2")), e)
        for e in ("fused", "torch")
    )
    baseline = baseline_partition(fused, floor)
    assert baseline == partition(torchs, floor.baseline.cutoffs, floor.baseline.tail_dims)
    assert baseline.price > partition(fused, baseline.cutoffs, baseline.widths).price


def test_an_implementation_that_is_not_known_is_refused():
    with pytest.raises(UsageError, match="unknown execution 'eager': choose one of"):
        Layer(zipf(40), 64, 10, clusters.work(), "eager")


def test_measured_prices_are_those_of_the_table_and_the_host_on_top():
    alone = replace(CALIBRATION, in_step={})
    prices, host_ms = clusters.measured(alone), 1e3 * alone.host_s_per_operator
    large = clusters.matmul(512, 300, 1000, 4)
    assert prices.operator(large) == pytest.approx(host_ms + time_ms([large], alone))
    tiny, smallest = clusters.matmul(0.1, 16, 16, 4), clusters.matmul(16, 16, 16, 4)
    assert prices.operator(tiny) == prices.operator(smallest)


def test_what_steps_were_measured_to_take_has_the_launches_in_it():
    in_step = {"launch": 1e-5, "product": 1.2, "operands": 1e-11, "elementwise": 1e-10}
    known = replace(CALIBRATION, in_step=in_step)
    prices = clusters.measured(known)
    for op in (clusters.matmul(512, 300, 1000, 4), traffic(3000, 4, launches=2, syncs=1)):
        assert prices.operator(op) == time_ms([op], known)
    assert "inside a step" in prices.basis
