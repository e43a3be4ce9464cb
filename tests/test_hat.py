"""HAT's latencies: made-up tables give back what they were made of; the facts are what is told."""

import os
from pathlib import Path

import numpy as np
import pytest

from lmtime.encoders import hat
from lmtime.encoders.hat import FEATURES, TABLES, TIMES, Table, committed
from lmtime.errors import UsageError

DATA = os.environ.get("LMTIME_DATA")
WIDTHS = {"encoder_embed_dim": (512, 640), "decoder_embed_dim": (512, 640)}


def linear(columns):
    """Decoder latency in ms by depth alone."""
    return 20 + 50 * columns["decoder_layer_num"]


def made(name="wmt14ende_cpu_xeon", n=400, seed=0, decoder_ms=linear):
    """A table of random networks whose encoder takes 10 ms each."""
    rng = np.random.default_rng(seed)
    columns = {feature: rng.integers(1, 9, n).astype(float) for feature in FEATURES}
    columns |= {feature: rng.choice(sizes, n) for feature, sizes in WIDTHS.items()}
    columns |= {f: rng.uniform(512, 3072, n) for f in FEATURES if "ffn" in f}
    columns |= {"encoder_layer_num": np.full(n, 6.0)}
    columns |= {"decoder_layer_num": rng.integers(1, 7, n).astype(float)}
    columns |= {time: np.full(n, 10.0) for time in TIMES}
    columns["latency_mean_decoder"] = decoder_ms(columns)
    return Table(name, columns)


def slowed(table, rows, by):
    """The same, measured while the device was slower by a factor."""
    columns = dict(table.columns)
    for time in ("latency_mean_encoder", "latency_mean_decoder"):
        columns[time] = columns[time].copy()
        columns[time][rows] *= by
    return Table(table.name, columns)


def test_weights_are_those_of_a_transformer():
    """HAT's base: 6 and 6 layers of 512 with 2,048: 44 million weights in matrices."""
    sizes = {f: np.array([512.0]) for f in FEATURES} | {
        "encoder_layer_num": np.array([6.0]),
        "decoder_layer_num": np.array([6.0]),
        "encoder_ffn_embed_dim_avg": np.array([2048.0]),
        "decoder_ffn_embed_dim_avg": np.array([2048.0]),
    }
    base = 6 * 12 * 512**2 + 6 * 16 * 512**2
    assert hat.weights(Table("x", sizes)).tolist() == [base]
    wider = sizes | {"encoder_embed_dim": np.array([640.0])}
    more = 6 * 128 * (4 * 512 + 2 * 2048) + 6 * 2 * 128 * 512
    assert hat.weights(Table("x", wider)).tolist() == [base + more]


def test_a_line_is_found_and_width_adds_nothing_to_it():
    row = hat.depth_facts(made())
    assert row["slope_ms"] == pytest.approx(50)
    assert row["intercept_ms"] == pytest.approx(20)
    for name in ("r2_depth", "r2_depth_width", "r2_depth_steady", "r2_layers_steady"):
        assert row[name] == pytest.approx(1)
    assert row["bend"] == pytest.approx(0, abs=1e-9)
    assert (row["slowest_pace"], row["share_steady"]) == (1, 1)
    assert row["device"] == "Xeon E5-2640"


def test_what_bends_is_told_from_a_line():
    row = hat.depth_facts(made(decoder_ms=lambda c: 10 * c["decoder_layer_num"] ** 2))
    assert row["bend"] > 0.1


def test_a_slow_stretch_is_found_by_the_encoder_and_set_apart():
    row = hat.depth_facts(slowed(made(), slice(100, 180), 1.25))
    assert row["slowest_pace"] == pytest.approx(1.25)
    assert row["share_steady"] == pytest.approx(0.8)
    assert row["r2_depth"] < 0.97
    assert row["r2_depth_steady"] == pytest.approx(1)
    assert row["slope_ms_steady"] == pytest.approx(50) != pytest.approx(row["slope_ms"])


def test_one_slow_network_is_no_slow_device():
    assert slowed(made(), slice(7, 8), 3).steady.all()


def three(decoder_ms, pi_ms=None):
    """Tables of one translation on three devices, the first of which may be unlike the others."""
    tables = {}
    for seed, device in enumerate(hat.DEVICES):
        name = f"wmt14ende_{device}"
        own = pi_ms if pi_ms and device == "cpu_raspberrypi" else decoder_ms
        tables[name] = made(name, 300, seed, own)
    return tables


def by_width_too(columns):
    """As `linear`, and so that no two networks are equal."""
    return linear(columns) * (1 + columns["decoder_ffn_embed_dim_avg"] / 1e4)


def test_where_devices_agree_they_choose_the_same():
    rows = hat.device_facts(three(by_width_too), "wmt14ende")
    assert len(rows) == 9
    for row in rows:
        assert row["n"] == 900
        assert row["spearman"] > 0.999
        assert row["excess_max"] < 0.02


def test_where_one_device_minds_width_the_other_chooses_badly():
    tables = three(linear, pi_ms=lambda c: c["encoder_ffn_embed_dim_avg"] + linear(c))
    rows = hat.device_facts(tables, "wmt14ende")
    excess = {(r["chosen_on"], r["run_on"]): r["excess_max"] for r in rows}
    assert excess["Titan Xp", "Raspberry Pi 4"] > 0.2
    assert excess["Raspberry Pi 4", "Titan Xp"] > 0.2
    assert excess["Xeon E5-2640", "Titan Xp"] == pytest.approx(0, abs=1e-9)
    assert excess["Raspberry Pi 4", "Raspberry Pi 4"] < 0.1


def test_the_choice_of_a_size_worked_by_hand():
    """On the other device the best of at least size 1, 2 and 3 take 2, 4 and 4."""
    size = np.array([1, 2, 3, 1])
    found = hat._choice(np.array([3, 2, 5, 1]), np.array([2, 6, 4, 3]), size)
    assert found["n_front"] == 3  # all but the first: the fourth is as large and faster
    assert found["n_front_run_on"] == 2
    assert found["front_shared"] == 1 / 4
    assert found["excess_max"] == pytest.approx(0.5)  # for size 1 the fourth, 3 in place of 2
    assert found["excess_median"] == pytest.approx(0.25)


# What is committed


def rows(name, column, **where):
    return [r[column] for r in committed(name) if where.items() <= r.items()]


def between(values, low, high):
    return low <= min(values) and max(values) <= high


def test_the_facts_are_what_the_module_tells():
    assert rows("hat_latency", "table") == list(TABLES)
    assert max(rows("hat_latency", "bend")) < 0.012
    titan, pi, xeon = (
        {"device": device} for device in ("Titan Xp", "Raspberry Pi 4", "Xeon E5-2640")
    )
    assert between(rows("hat_latency", "r2_depth", **titan), 0.946, 0.996)
    assert between(rows("hat_latency", "r2_depth_steady", **titan), 0.9935, 0.997)
    assert sorted(rows("hat_latency", "r2_depth", **pi)) == pytest.approx([0.847, 0.864], abs=5e-4)
    assert between(rows("hat_latency", "r2_depth_width", **pi), 0.965, 0.985)
    assert sorted(rows("hat_latency", "r2_depth", **xeon)) == pytest.approx(
        [0.960, 0.966], abs=5e-4
    )
    alone, both = (rows("hat_latency", c, **titan) for c in ("r2_depth", "r2_depth_width"))
    assert both == pytest.approx(alone, abs=0.001)
    disturbed = [share for share in rows("hat_latency", "share_steady", **titan) if share < 1]
    assert len(disturbed) == 3
    assert between(disturbed, 0.8, 0.88)


def test_the_rank_correlations_are_those_told_of_english_to_german():
    found = {
        (r["chosen_on"], r["run_on"]): r["spearman"]
        for r in committed("hat_devices")
        if r["task"] == "wmt14ende"
    }
    assert found["Raspberry Pi 4", "Xeon E5-2640"] == pytest.approx(0.984, abs=5e-4)
    assert found["Xeon E5-2640", "Titan Xp"] == pytest.approx(0.981, abs=5e-4)
    assert found["Raspberry Pi 4", "Titan Xp"] == pytest.approx(0.939, abs=5e-4)


def test_a_choice_for_another_device_costs_more_than_the_noise_of_a_fit():
    excess = {}
    for r in committed("hat_devices"):
        pair = r["chosen_on"], r["run_on"]
        excess[pair] = max(excess.get(pair, 0), r["excess_max"])
    assert max(value for (a, b), value in excess.items() if a == b) < 0.035
    assert excess["Titan Xp", "Raspberry Pi 4"] == pytest.approx(0.27, abs=0.005)
    assert excess["Raspberry Pi 4", "Titan Xp"] == pytest.approx(0.44, abs=0.006)


@pytest.fixture(scope="module")
def computed():
    """Both files anew, from the tables."""
    if not DATA or not (Path(DATA) / "hat_latency" / f"{TABLES[0]}_all.csv").is_file():
        pytest.skip(f"LMTIME_DATA holds no hat_latency/{TABLES[0]}_all.csv")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(hat, "data_folder", lambda: Path(DATA))
        return hat.facts()


@pytest.mark.parametrize("name", ["hat_latency", "hat_devices"])
def test_the_committed_facts_follow_from_the_tables(name, computed):
    for row, again in zip(committed(name), computed[name], strict=True):
        for column, value in row.items():
            expected = again[column]
            if not isinstance(expected, str):
                expected = pytest.approx(expected, rel=1e-3, abs=1e-6)
            assert value == expected, column


def test_what_is_written_is_read_back(tmp_path, monkeypatch):
    rows = [{"table": "x", "device": "y", "n": 3, "slope_ms": 1 / 3}]
    monkeypatch.setattr(hat, "facts", lambda: {"hat_latency": rows})
    folder = tmp_path / "data" / "published"
    folder.mkdir(parents=True)
    hat.write(folder)
    monkeypatch.setenv("LMTIME_ROOT", str(tmp_path))
    assert committed("hat_latency") == [rows[0] | {"slope_ms": 0.33333}]


def test_without_the_tables_the_error_says_where_to_put_them(own_folders, tmp_path, monkeypatch):
    with pytest.raises(UsageError, match=r"into FOLDER/hat_latency and set LMTIME_DATA=FOLDER$"):
        hat.read(TABLES[0])
    monkeypatch.setenv("LMTIME_DATA", str(tmp_path))
    with pytest.raises(UsageError, match=f"hardware-aware-transformers into {tmp_path}/hat_lat"):
        hat.read(TABLES[0])
    folder = tmp_path / "hat_latency"
    folder.mkdir()
    (folder / f"{TABLES[0]}_all.csv").write_text("a,b\n1,2\n")
    with pytest.raises(UsageError, match="is not HAT's table"):
        hat.read(TABLES[0])
