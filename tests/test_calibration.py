"""The laws of the file that holds a calibration, and of rates between the sizes measured."""

import dataclasses
import itertools
import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lmtime.calibration import (
    Calibration,
    Pass,
    Product,
    interpolate,
    read_calibration,
    write_calibration,
)
from lmtime.errors import UsageError
from lmtime.hardware import ridge


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


# Tables of rates by size


def product(rows, inner, columns, rate, dtype="fp32", cache="hot"):
    return Product(dtype, rows, inner, columns, rate, 1.1 * rate, 5, cache)


FULL = Calibration(
    device="cpu",
    device_name="Prüfgerät",
    n_threads=2,
    matmul_flops_per_s={"fp32": 4e11, "bf16": 7e10},
    bytes_per_s=1e10,
    gemm=(
        product(16, 16, 16, 1e9),
        product(16, 16, 256, 3e9),
        product(256, 16, 16, 5e9),
        product(256, 256, 256, 9e9),
        product(256, 256, 256, 7e9, cache="cold"),
    ),
    copies=(
        Pass("copy", 2**14, 8e10, 9e10, 30),
        Pass("copy", 2**20, 4e10, 5e10, 30),
        Pass("copy", 2**29, 1e10, 2e10, 3),
        Pass("sum", 2**20, 6e10, 7e10, 30),
    ),
    passes=(Pass("glu", 2**20, 2e10, 3e10, 30), Pass("glu", 2**24, 1e10, 2e10, 30)),
    launch_s=5e-6,
    host_s_per_operator=6e-6,
    sync_s=1e-5,
)


def test_a_full_calibration_comes_back_as_it_was():
    assert Calibration.from_json(FULL.to_json()) == FULL


def test_what_an_older_version_wrote_still_reads():
    old = {
        "schema": "lmtime/1", "command": "calibrate", "provenance": {}, "device": "cpu",
        "device_name": "A processor", "n_threads": 2, "bytes_per_s": 1e10,
        "rows": [{"dtype": "fp32", "flops_per_s": 1e11}],
    }  # fmt: skip
    read = Calibration.from_json(json.dumps(old))
    assert (read.gemm, read.copies, read.passes, read.launch_s, read.sync_s) == (
        (),
        (),
        (),
        None,
        None,
    )
    assert json.loads(read.to_json()) == old, "and a quick one is written as ever"


def test_without_tables_the_rates_of_large_calls_stand_for_all():
    quick = dataclasses.replace(FULL, gemm=(), copies=(), passes=())
    assert quick.gemm_flops_per_s("bf16", 16, 16, 16) == 7e10
    assert quick.copy_bytes_per_s(2**14) == 1e10
    assert quick.pass_bytes_per_s("glu", 2**14) == 1e10
    with pytest.raises(UsageError, match="no tf32 rate"):
        quick.gemm_flops_per_s("tf32", 16, 16, 16)


def test_a_size_that_was_measured_has_its_own_rate():
    for row in FULL.gemm[:-1]:
        sizes = row.rows, row.inner, row.columns
        assert FULL.gemm_flops_per_s("fp32", *sizes) == row.flops_per_s
    assert [FULL.copy_bytes_per_s(2**k) for k in (14, 20, 29)] == [8e10, 4e10, 1e10]
    assert FULL.pass_bytes_per_s("sum", 2**20) == 6e10


def test_a_rate_between_is_linear_in_the_logarithm():
    assert FULL.gemm_flops_per_s("fp32", 16, 16, 64) == pytest.approx(2e9)
    assert FULL.gemm_flops_per_s("fp32", 64, 16, 16) == pytest.approx(3e9)
    assert FULL.gemm_flops_per_s("fp32", 64, 64, 16) == pytest.approx((1e9 + (5e9 + 9e9) / 2) / 2)
    assert FULL.copy_bytes_per_s(2**17) == pytest.approx(6e10)
    assert FULL.pass_bytes_per_s("glu", 2**22) == pytest.approx(1.5e10)


def test_beyond_the_sizes_measured_the_rate_stays():
    assert FULL.gemm_flops_per_s("fp32", 1, 1, 1) == 1e9
    assert FULL.gemm_flops_per_s("fp32", 0, 0.5, 1) == 1e9, "a cluster may have no tokens"
    assert FULL.gemm_flops_per_s("fp32", 1e9, 1e9, 1e9) == 9e9
    assert FULL.copy_bytes_per_s(1) == 8e10
    assert FULL.copy_bytes_per_s(1e15) == 1e10


def test_an_operator_without_rows_moves_like_a_copy():
    assert FULL.pass_bytes_per_s("gelu", 2**20) == 4e10


sizes = st.floats(0.5, 1e6)
grids = st.lists(st.integers(1, 10**5), min_size=1, max_size=4, unique=True)


@st.composite
def tables(draw):
    """Complete ones, of three coordinates."""
    points = list(itertools.product(draw(grids), draw(grids), draw(grids)))
    rates = draw(st.lists(st.floats(1e6, 1e15), min_size=len(points), max_size=len(points)))
    return dict(zip(points, rates, strict=True))


@given(tables())
def test_a_table_holds_at_its_points(table):
    for point, rate in table.items():
        assert interpolate(table, point) == pytest.approx(rate)


@given(tables(), st.tuples(sizes, sizes, sizes))
def test_what_is_interpolated_lies_within_the_table(table, at):
    low, high = min(table.values()), max(table.values())
    assert low * (1 - 1e-9) <= interpolate(table, at) <= high * (1 + 1e-9)


@given(
    st.dictionaries(st.integers(1, 10**9).map(lambda n: (n,)), st.floats(1e6, 1e15), min_size=1),
    st.lists(st.floats(1, 1e9), min_size=2, max_size=8),
)
def test_between_rising_rates_a_larger_size_is_never_slower(points, at):
    table = dict(zip(sorted(points), sorted(points.values()), strict=True))
    found = [interpolate(table, (n,)) for n in sorted(at)]
    assert all(b >= a * (1 - 1e-9) for a, b in itertools.pairwise(found))


@given(tables(), st.data())
def test_a_table_with_gaps_holds_at_its_points_and_lies_within(table, data):
    kept = data.draw(st.sets(st.sampled_from(sorted(table)), min_size=1))
    ragged = {point: table[point] for point in kept}
    for point, rate in ragged.items():
        assert interpolate(ragged, point) == pytest.approx(rate)
    found = interpolate(ragged, data.draw(st.tuples(sizes, sizes, sizes)))
    low, high = min(ragged.values()), max(ragged.values())
    assert low * (1 - 1e-9) <= found <= high * (1 + 1e-9)


@given(tables(), sizes, sizes, st.permutations(range(3)))
def test_axes_of_a_complete_table_are_alike(table, a, b, order):
    turned = {tuple(point[i] for i in order): rate for point, rate in table.items()}
    at = (a, b, 7.0)
    assert interpolate(turned, tuple(at[i] for i in order)) == pytest.approx(interpolate(table, at))


@pytest.mark.parametrize(
    "name, change, message",
    [
        ("gemm", {"rows": 0}, "gemm: rows=0 must be a whole number"),
        ("gemm", {"inner": 1.5}, "gemm: inner=1.5 must be a whole number"),
        ("gemm", {"n": True}, "gemm: n=True must be a whole number"),
        ("gemm", {"flops_per_s": -1.0}, "gemm: flops_per_s=-1.0 must be a finite number"),
        ("gemm", {"best_flops_per_s": None}, "gemm: best_flops_per_s=None"),
        ("gemm", {"dtype": "fp64"}, "gemm: unknown dtype 'fp64'"),
        ("gemm", {"dtype": ["fp32"]}, r"gemm: unknown dtype \['fp32'\]"),
        ("gemm", {"cache": "warm"}, "gemm: unknown cache 'warm'"),
        ("gemm", {"colour": "red"}, "gemm must be rows of best_flops_per_s, cache"),
        ("copies", {"bytes_per_s": float("inf")}, "copies: bytes_per_s=inf"),
        ("copies", {"n_bytes": "many"}, "copies: n_bytes='many'"),
        ("passes", {"operator": ""}, "passes: operator=''"),
    ],
)
def test_a_broken_row_of_a_table_is_refused_with_its_field(name, change, message):
    whole = json.loads(FULL.to_json())
    whole[name][-1] |= change
    with pytest.raises(UsageError, match=rf"^my\.json: {message}"):
        Calibration.from_json(json.dumps(whole), origin="my.json")


@pytest.mark.parametrize("rows", [None, {}, "x", [3], [{}], [None]])
def test_what_is_no_table_is_refused(rows):
    whole = {**json.loads(FULL.to_json()), "gemm": rows}
    with pytest.raises(UsageError, match=r"^my\.json: gemm"):
        Calibration.from_json(json.dumps(whole), origin="my.json")


@pytest.mark.parametrize("name", ["launch_s", "host_s_per_operator", "sync_s"])
@pytest.mark.parametrize("value", [0, -1e-6, "fast", True])
def test_a_time_that_is_no_time_is_refused(name, value):
    whole = {**json.loads(FULL.to_json()), name: value}
    with pytest.raises(UsageError, match=rf"^my\.json: {name}="):
        Calibration.from_json(json.dumps(whole), origin="my.json")
