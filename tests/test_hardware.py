"""The laws of the table of GPUs, and of what no device can do."""

import math
import subprocess
import sys

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lmtime.errors import UsageError
from lmtime.hardware import (
    GPUS,
    PRECISIONS,
    REPORTED,
    check_rate,
    cpu_peak_flops_per_s,
    find_gpu,
    gpu_of,
    memory_bound,
    ridge,
    utilisation,
)

ROWS = [pytest.param(gpu, id=name) for name, gpu in GPUS.items()]


def peaks(gpu):
    """Every peak the row has, by precision."""
    found = {dtype: getattr(gpu, f"{dtype}_flops_per_s") for dtype in PRECISIONS}
    return {dtype: rate for dtype, rate in found.items() if rate is not None}


def test_keys_are_the_names_and_titles_are_unique():
    assert all(name == gpu.name for name, gpu in GPUS.items())
    assert len({gpu.title for gpu in GPUS.values()}) == len(GPUS) == 19


@pytest.mark.parametrize("gpu", ROWS)
def test_every_row_names_its_source(gpu):
    assert len(gpu.source) > 20


@pytest.mark.parametrize("gpu", ROWS)
def test_rates_are_in_the_range_of_real_gpus(gpu):
    assert all(5e12 <= rate <= 3e15 for rate in peaks(gpu).values())
    assert 2e11 <= gpu.bytes_per_s <= 1e13
    assert gpu.l2_bytes is None or 2**21 <= gpu.l2_bytes <= 2**27


@pytest.mark.parametrize("gpu", ROWS)
def test_a_lower_precision_is_never_slower(gpu):
    rates = list(peaks(gpu).values())
    assert rates == sorted(rates)


# Peak over the fp32 peak, as each architecture builds it: multiply-adds per SM and clock.
# Cards for play accumulate in fp32 at half rate; the clocks of tensor cores differ from the
# others' on the H100, and the published values of the B200 are rounded.
RATIOS = {
    "gtx-1080-ti": {},
    "titan-x-pascal": {},
    "titan-xp": {},
    "p100": {"fp16": 2},
    "v100": {"fp16": 8},
    "t4": {"fp16": 8},
    "rtx-2080-ti": {"fp16": 4},
    "rtx-3090": {"tf32": 1, "fp16": 2, "bf16": 2},
    "rtx-4090": {"tf32": 1, "fp16": 2, "bf16": 2},
    "a100": {"tf32": 8, "fp16": 16, "bf16": 16},
    "l4": {"tf32": 2, "fp16": 4, "bf16": 4},
    "l40s": {"tf32": 2, "fp16": 4, "bf16": 4},
    "h100": {"tf32": 7.4, "fp16": 14.8, "bf16": 14.8},
    "h200": {"tf32": 7.4, "fp16": 14.8, "bf16": 14.8},
    "b200": {"tf32": 15, "fp16": 30, "bf16": 30},
}


@pytest.mark.parametrize("gpu", ROWS)
def test_precisions_keep_the_ratios_of_their_architecture(gpu):
    expected = RATIOS.get(gpu.name) or RATIOS.get(gpu.name.split("-")[0], {})
    ratios = {dtype: rate / gpu.fp32_flops_per_s for dtype, rate in peaks(gpu).items()}
    assert ratios.pop("fp32") == 1
    assert ratios == pytest.approx(expected, rel=0.025)


@pytest.mark.parametrize("name", ["a100-sxm-80gb", "h100-sxm", "h100-pcie", "h200-sxm"])
def test_bf16_is_twice_tf32(name):
    assert GPUS[name].bf16_flops_per_s == 2 * GPUS[name].tf32_flops_per_s


@pytest.mark.parametrize("gpu", ROWS)
def test_no_peak_is_one_with_sparsity(gpu):
    with_sparsity = {"a100": 624e12, "l4": 242e12, "l40s": 733e12, "h100": 1979e12, "h200": 1979e12}
    limit = with_sparsity.get(gpu.name.split("-")[0], 4500e12)
    assert all(rate < 0.55 * limit for rate in peaks(gpu).values())


@pytest.mark.parametrize("gpu", ROWS)
def test_bandwidth_is_decimal(gpu):
    assert gpu.bytes_per_s % 1e9 == 0
    assert gpu.bytes_per_s % 1024**3 != 0


@pytest.mark.parametrize(
    "name, n_cores, clock_mhz, bus_bits, gbit_per_s",
    [
        ("gtx-1080-ti", 3584, 1582, 352, 11),
        ("titan-x-pascal", 3584, 1531, 384, 10),
        ("titan-xp", 3840, 1582, 384, 11.4),
        ("rtx-2080-ti", 4352, 1545, 352, 14),
    ],
)
def test_peak_is_cores_times_clock_times_two(name, n_cores, clock_mhz, bus_bits, gbit_per_s):
    assert GPUS[name].fp32_flops_per_s == pytest.approx(n_cores * clock_mhz * 1e6 * 2, rel=0.01)
    assert GPUS[name].bytes_per_s == pytest.approx(bus_bits * gbit_per_s * 1e9 / 8, rel=0.01)


@pytest.mark.parametrize(
    "name, dtype, flops_per_byte",
    [
        ("gtx-1080-ti", "fp32", 23),
        ("v100-sxm2", "fp32", 17),
        ("v100-sxm2", "fp16", 139),
        ("a100-sxm-80gb", "fp32", 10),
        ("a100-sxm-80gb", "tf32", 77),
        ("a100-sxm-80gb", "bf16", 153),
        ("l4", "fp32", 101),
        ("l4", "bf16", 403),
        ("h100-sxm", "fp32", 20),
        ("h100-sxm", "tf32", 148),
        ("h100-sxm", "bf16", 295),
        ("h200-sxm", "fp32", 14),
        ("h200-sxm", "tf32", 103),
        ("h200-sxm", "bf16", 206),
    ],
)
def test_ridge_points_are_the_known_ones(name, dtype, flops_per_byte):
    assert ridge(GPUS[name], dtype) == pytest.approx(flops_per_byte, abs=0.6)


def test_ridge_points_agree_where_the_published_values_differ():
    assert ridge(GPUS["l4"], "tf32") == pytest.approx(202, rel=0.015)
    assert ridge(GPUS["b200-sxm"], "fp32") == pytest.approx(10, rel=0.05)
    assert ridge(GPUS["b200-sxm"], "tf32") == pytest.approx(141, rel=0.05)
    assert ridge(GPUS["b200-sxm"], "bf16") == pytest.approx(281, rel=0.05)


@pytest.mark.parametrize("given", ["h100-sxm", "H100 SXM", "h100_sxm", " H100  sxm5 "])
def test_a_gpu_is_found_whatever_the_case_and_the_spaces(given):
    assert find_gpu(given) is GPUS["h100-sxm"]


def test_an_unknown_gpu_is_answered_with_the_known_ones():
    with pytest.raises(UsageError, match=r"unknown GPU 'h300'.*gtx-1080-ti.*b200-sxm"):
        find_gpu("h300")


def test_a_precision_the_hardware_lacks_is_refused_with_those_it_has():
    with pytest.raises(UsageError, match=r"V100 SXM2 has no bf16.*fp32, fp16"):
        GPUS["v100-sxm2"].flops_per_s("bf16")
    with pytest.raises(UsageError, match=r"unknown precision 'fp64'"):
        GPUS["v100-sxm2"].flops_per_s("fp64")


# What a driver reports, as torch.cuda.get_device_name() gives it.
REPORTED_NAMES = {
    "NVIDIA GeForce GTX 1080 Ti": "gtx-1080-ti",
    "NVIDIA TITAN X (Pascal)": "titan-x-pascal",
    "Tesla V100-SXM2-16GB": "v100-sxm2",
    "Tesla T4": "t4",
    "NVIDIA A100-SXM4-80GB": "a100-sxm-80gb",
    "NVIDIA L40S": "l40s",
    "NVIDIA H100 80GB HBM3": "h100-sxm",
    "NVIDIA H100 PCIe": "h100-pcie",
    "NVIDIA H200": "h200-sxm",
}


@pytest.mark.parametrize("reported, name", REPORTED_NAMES.items())
def test_the_name_that_a_driver_reports_finds_the_row(reported, name):
    assert gpu_of(reported) is GPUS[name]


@pytest.mark.parametrize("reported", ["NVIDIA GeForce RTX 3090 Ti", "NVIDIA H100 NVL", "", "AMD"])
def test_a_similar_name_does_not_find_another_gpus_peaks(reported):
    assert gpu_of(reported) is None


def test_every_row_can_be_reported():
    assert set(REPORTED.values()) == set(GPUS)


# What cannot be


@given(achieved=st.floats(1e6, 1e18), peak=st.floats(1e6, 1e18))
def test_a_rate_passes_exactly_up_to_its_margin(achieved, peak):
    if achieved <= 1.05 * peak:
        check_rate("products", achieved, peak)
    else:
        with pytest.raises(
            RuntimeError, match=r"^measured products: .* is above the published pea"
        ):
            check_rate("products", achieved, peak)


@pytest.mark.parametrize("rate", [0.0, -1.0, math.nan, math.inf])
def test_what_is_no_rate_is_the_timings_fault(rate):
    with pytest.raises(RuntimeError, match="is no rate: the timing is wrong"):
        check_rate("products", rate, math.inf)


def test_a_backward_pass_counted_wrongly_implies_a_rate_that_cannot_be():
    """PyTorch issue 119806: ConvTranspose counted per output position: 6.5e6 TFLOP/s."""
    with pytest.raises(RuntimeError, match=r"bf16 arithmetic: 6\.5e\+18 .* peak of 9\.89e\+14"):
        utilisation(6.5e18, 1.0, GPUS["h100-sxm"], "bf16")


def test_utilisation_is_of_the_dense_peak():
    """Half of it on an H100 is 494.5 TFLOP/s; of the sparse peak (1979) it would be a quarter."""
    assert utilisation(494.5e12, 1.0, GPUS["h100-sxm"], "bf16") == 0.5
    assert utilisation(2 * 989e12, 4.0, GPUS["h100-sxm"], "fp16") == 0.5
    assert utilisation(0, 1.0, GPUS["h100-sxm"], "fp32") == 0
    with pytest.raises(RuntimeError, match="above the published peak"):
        utilisation(1979e12, 1.0, GPUS["h100-sxm"], "bf16")


@pytest.mark.parametrize("seconds", [0, -1.0, math.nan])
def test_utilisation_in_no_time_is_the_callers_mistake(seconds):
    with pytest.raises(UsageError, match="seconds="):
        utilisation(1e12, seconds, GPUS["t4"], "fp16")


def test_cards_for_play_may_exceed_the_clock_that_is_published():
    assert GPUS["gtx-1080-ti"].margin == GPUS["titan-xp"].margin == 1.25
    assert GPUS["h100-sxm"].margin == GPUS["t4"].margin == 1.05


def test_memory_is_bounded_beyond_the_cache_alone():
    assert memory_bound(1e12, 2**20, 2**20) == math.inf
    assert memory_bound(1e12, 2**21, 2**20) == 2e12
    assert memory_bound(1e12, 2**40, 2**20) == pytest.approx(1e12)
    assert memory_bound(1e12, 1, 0) == 1e12


CPUINFO = """
processor\t: 0
cpu MHz\t\t: 2000.000
flags\t\t: fpu sse2 avx avx2 fma {more}

processor\t: 1
cpu MHz\t\t: 2000.000
flags\t\t: fpu sse2 avx avx2 fma {more}
"""


@pytest.mark.parametrize(
    "dtype, more, max_hz, flops_per_s",
    [
        ("fp32", "", 3e9, 2 * 3e9 * 32),
        ("fp32", "avx512f", 3e9, 2 * 3e9 * 64),
        ("fp32", "avx512f", None, 2 * 4e9 * 64),
        ("bf16", "", 3e9, 2 * 3e9 * 32),
        ("bf16", "avx512f avx512_bf16", 3e9, 2 * 3e9 * 128),
        ("bf16", "avx512f avx512_bf16 amx_bf16", 3e9, 2 * 3e9 * 1024),
    ],
)
def test_a_cpu_is_bounded_by_cores_clock_and_vectors(dtype, more, max_hz, flops_per_s):
    text = CPUINFO.format(more=more)
    assert cpu_peak_flops_per_s(dtype, text, 2, max_hz) == flops_per_s


@pytest.mark.parametrize("cpuinfo", ["", "flags : fma", "cpu MHz : 2000.0", "Features : fp asimd"])
def test_a_cpu_that_does_not_tell_is_not_bounded(cpuinfo):
    assert cpu_peak_flops_per_s("fp32", cpuinfo, 2, None) == math.inf


def test_the_table_needs_neither_torch_nor_numpy():
    code = (
        "import sys; sys.modules['torch'] = sys.modules['numpy'] = None; import lmtime.calibration"
    )
    subprocess.run([sys.executable, "-c", code], check=True)
