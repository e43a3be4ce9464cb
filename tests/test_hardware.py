"""The laws of the table of GPUs, and of the file that holds a calibration."""

import dataclasses
import json
import subprocess
import sys

import pytest

from lmtime.errors import UsageError
from lmtime.hardware import (
    GPUS,
    PRECISIONS,
    Calibration,
    find_gpu,
    read_calibration,
    ridge,
    write_calibration,
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


@pytest.fixture
def calibration():
    return Calibration(
        device="cpu",
        device_name="Prüfgerät",
        n_threads=2,
        matmul_flops_per_s={"fp32": 1.25e11, "bf16": 7e10},
        bytes_per_s=1.1e10,
        provenance={"time_utc": "2020-01-01T00:00:00", "versions": {"torch": "2.13.0"}},
    )


def test_a_calibration_comes_back_from_its_file_as_it_was(calibration, tmp_path):
    write_calibration(tmp_path / "deep" / "cpu.json", calibration)
    assert read_calibration(tmp_path / "deep" / "cpu.json") == calibration
    whole = json.loads((tmp_path / "deep" / "cpu.json").read_text(encoding="utf-8"))
    assert (whole["schema"], whole["command"]) == ("lmtime/1", "calibrate")
    assert whole["rows"][0] == {"dtype": "fp32", "flops_per_s": 1.25e11}


def test_a_calibration_answers_as_a_gpu_does(calibration):
    assert ridge(calibration, "fp32") == 1.25e11 / 1.1e10
    with pytest.raises(UsageError, match=r"Prüfgerät has no tf32 rate: choose fp32, bf16"):
        calibration.flops_per_s("tf32")


@pytest.mark.parametrize("rate", [0, -1.0, float("nan"), float("inf"), None, "1e9", True])
def test_a_rate_that_is_no_rate_is_refused(calibration, rate):
    with pytest.raises(UsageError, match="bytes_per_s="):
        dataclasses.replace(calibration, bytes_per_s=rate)
    with pytest.raises(UsageError, match="flops_per_s of fp32="):
        dataclasses.replace(calibration, matmul_flops_per_s={"fp32": rate})


@pytest.mark.parametrize(
    "field, value",
    [
        ("schema", "lmtime/9"),
        ("schema", None),
        ("device", None),
        ("device_name", ""),
        ("n_threads", 0),
        ("n_threads", "two"),
        ("bytes_per_s", float("inf")),
        ("rows", {}),
        ("rows", [3]),
        ("provenance", []),
    ],
)
def test_a_broken_file_is_refused_with_its_name_and_the_field(calibration, tmp_path, field, value):
    path = tmp_path / "broken.json"
    path.write_text(json.dumps({**json.loads(calibration.to_json()), field: value}))
    with pytest.raises(UsageError, match=rf"broken\.json: {field}"):
        read_calibration(path)


@pytest.mark.parametrize(
    "rows, message",
    [
        ([], "flops_per_s is missing"),
        ([{"dtype": "fp32"}], "flops_per_s of fp32=None"),
        ([{"dtype": "fp64", "flops_per_s": 1.0}], "unknown dtype 'fp64'"),
        ([{"dtype": "fp32", "flops_per_s": -5}], "flops_per_s of fp32=-5"),
    ],
)
def test_a_broken_row_is_refused_with_its_field(calibration, rows, message):
    text = json.dumps({**json.loads(calibration.to_json()), "rows": rows})
    with pytest.raises(UsageError, match=rf"my\.json: {message}"):
        Calibration.from_json(text, origin="my.json")


def test_a_file_that_is_no_calibration_is_the_callers_mistake(tmp_path):
    with pytest.raises(UsageError, match=r"absent\.json cannot be read"):
        read_calibration(tmp_path / "absent.json")
    for content in (b"{", b"[1]", b"\xff\xfe\x00"):
        (tmp_path / "bad.json").write_bytes(content)
        with pytest.raises(UsageError, match=r"bad\.json"):
            read_calibration(tmp_path / "bad.json")


def test_the_table_needs_neither_torch_nor_numpy():
    code = "import sys; sys.modules['torch'] = sys.modules['numpy'] = None; import lmtime.hardware"
    subprocess.run([sys.executable, "-c", code], check=True)
