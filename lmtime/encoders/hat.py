"""Latencies that HAT (Wang et al. 2020) published, and what follows from them. NumPy only.

Eight tables of 2,000 random encoder-decoder networks each, on three devices, batch 1: the tables
lie in LMTIME_DATA/hat_latency; what follows is committed, `data/published/README.md` says how.

*Latency is linear in depth*: the mean over all widths is, within 1.2 % of the line at each depth on
all three devices. How much of a single network's latency depth alone explains (R2) depends on the
device. Raspberry Pi: 0.864 and 0.847, for width takes its part (0.97 and 0.98 with it). Xeon: 0.960
and 0.966. Titan Xp: 0.946 to 0.996, and there width explains nothing more: in three of its four
tables an eighth to a fifth of the networks were measured while everything took a quarter longer,
the encoder too, whose depth never changes. Without them it is 0.994 to 0.997.

*The best network changes with the device*: the order of all networks hardly does (rank correlations
of 0.91 to 0.98), but the fastest of a size does. A network chosen on the Titan Xp takes up to 27 %
longer on the Raspberry Pi than the best one there, one chosen on the Pi up to 44 % longer on the
Titan Xp; chosen by another half of the same device's networks, at most 3 %. Which networks the two
fronts have in common tells less: on the Titan Xp, where width costs next to nothing, noise decides
which of many equals stands on the front. Two limits: no network was measured on two devices, so
that a sum fitted to each one speaks for it; and size stands for quality, which was not published.
"""

from __future__ import annotations

import csv
from collections.abc import Mapping
from dataclasses import dataclass
from itertools import product
from pathlib import Path

import numpy as np

from lmtime.errors import UsageError
from lmtime.lines import fit_line, fit_sum
from lmtime.metrics import spearman
from lmtime.pareto.dominance import non_dominated
from lmtime.pareto.transfer import excess_latency
from lmtime.records import data_file
from lmtime.sources import data_folder

DEVICES = {
    "cpu_raspberrypi": "Raspberry Pi 4",
    "cpu_xeon": "Xeon E5-2640",
    "gpu_titanxp": "Titan Xp",
}
COMPARED = ("wmt14ende", "wmt14enfr")  # translations that were measured on all three
TABLES = (
    "iwslt14deen_gpu_titanxp",
    *(f"{task}_{device}" for task in COMPARED for device in DEVICES),
    "wmt19ende_gpu_titanxp",
)
FEATURES = (
    "encoder_embed_dim",
    "encoder_layer_num",  # 6 in every network
    "encoder_ffn_embed_dim_avg",
    "encoder_self_attention_heads_avg",
    "decoder_embed_dim",
    "decoder_layer_num",
    "decoder_ffn_embed_dim_avg",
    "decoder_self_attention_heads_avg",
    "decoder_ende_attention_heads_avg",
    "decoder_arbitrary_ende_attn_avg",  # how many of the encoder's layers are attended to
)
TIMES = tuple(
    f"latency_{value}_{half}" for value in ("mean", "std") for half in ("encoder", "decoder")
)
QKV_SIZE = 512  # of queries, keys and values, whatever the heads: HAT's configs
BLOCK, STEADY = 20, 0.10  # networks measured one after the other; how far their median may lie off


@dataclass(frozen=True, eq=False)
class Table:
    """Networks of one table, in the order they were measured. columns: by name, (n,) each."""

    name: str
    columns: Mapping[str, np.ndarray]

    def __getitem__(self, column: str) -> np.ndarray:
        return self.columns[column]

    @property
    def device(self) -> str:
        """Its name, a value of DEVICES."""
        return DEVICES[self.name.split("_", 1)[1]]

    @property
    def latency_ms(self) -> np.ndarray:
        """(n,): encoder and decoder, one sentence."""
        return self["latency_mean_encoder"] + self["latency_mean_decoder"]

    @property
    def pace(self) -> np.ndarray:
        """(n,): the median encoder latency of the network's block over that of the table.

        The encoder has six layers in every network and hardly changes otherwise: what its latency
        says, a block at a time, is how fast the device was.
        """
        latency_ms = self["latency_mean_encoder"]
        blocks = np.array_split(latency_ms, max(1, len(latency_ms) // BLOCK))
        medians = [np.full(len(block), np.median(block)) for block in blocks]
        return np.concatenate(medians) / np.median(latency_ms)

    @property
    def steady(self) -> np.ndarray:
        """(n,) bool: whether the device ran at its usual pace."""
        return np.abs(self.pace - 1) <= STEADY

    def where(self, rows: np.ndarray | slice) -> Table:
        """The same table with some of its networks."""
        return Table(self.name, {name: values[rows] for name, values in self.columns.items()})


def read(name: str) -> Table:
    """One of TABLES, from LMTIME_DATA/hat_latency."""
    path = (data_folder() or Path("FOLDER")) / "hat_latency" / f"{name}_all.csv"
    try:
        with path.open(encoding="utf-8", newline="") as lines:
            rows = list(csv.DictReader(lines))
        columns = {c: np.array([float(row[c]) for row in rows]) for c in (*FEATURES, *TIMES)}
    except OSError:
        raise UsageError(
            f"{path.name} is not at hand: put the files of latency_dataset/ in "
            f"github.com/mit-han-lab/hardware-aware-transformers into {path.parent}"
            + ("" if data_folder() else " and set LMTIME_DATA=FOLDER")
        ) from None
    except (KeyError, TypeError, ValueError) as error:
        raise UsageError(f"{path} is not HAT's table ({error}): put the original there") from None
    return Table(name, columns)


def weights(table: Table) -> np.ndarray:
    """(n,): weights of the products of all layers; neither embeddings nor biases.

    Averages over layers are enough: each product is linear in what was averaged.
    """
    wide, narrow = table["encoder_embed_dim"], table["decoder_embed_dim"]
    encoder_layer = 4 * wide * QKV_SIZE + 2 * wide * table["encoder_ffn_embed_dim_avg"]
    decoder_layer = (
        4 * narrow * QKV_SIZE  # self-attention
        + 2 * narrow * QKV_SIZE  # queries and output of the attention to the encoder,
        + 2 * wide * QKV_SIZE  # and its keys and values
        + 2 * narrow * table["decoder_ffn_embed_dim_avg"]
    )
    return table["encoder_layer_num"] * encoder_layer + table["decoder_layer_num"] * decoder_layer


def _as_published(table: Table) -> np.ndarray:
    """(n, 9): the features as they stand in the table, but for the one that never changes."""
    return np.stack([table[name] for name in FEATURES if name != "encoder_layer_num"], axis=1)


def _by_layer(table: Table) -> np.ndarray:
    """(n, 11): what a sum over layers is linear in: sizes of the products, and heads, of each."""
    wide, narrow, depth = (
        table[name] for name in ("encoder_embed_dim", "decoder_embed_dim", "decoder_layer_num")
    )
    layer = [narrow, wide, narrow * table["decoder_ffn_embed_dim_avg"]]
    layer += [table[name] for name in FEATURES[-3:]]
    encoder = [wide, wide * table["encoder_ffn_embed_dim_avg"], table[FEATURES[3]]]
    return np.stack([*encoder, narrow, depth, *(depth * size for size in layer)], axis=1)


def depth_facts(table: Table) -> dict[str, object]:
    """How the decoder's latency grows with its layers in one table: a row of hat_latency.csv."""
    steady = table.where(table.steady)
    depth, latency_ms = table["decoder_layer_num"], table["latency_mean_decoder"]
    line = fit_line(depth, latency_ms)
    steady_line = fit_line(steady["decoder_layer_num"], steady["latency_mean_decoder"])
    depths = np.unique(depth)
    means = np.array([latency_ms[depth == value].mean() for value in depths])
    widths = ("decoder_layer_num", "decoder_embed_dim", "decoder_ffn_embed_dim_avg")
    with_width = [
        fit_sum(np.stack([t[c] for c in widths], axis=1), t["latency_mean_decoder"]).r2
        for t in (table, steady)
    ]
    return {
        "table": table.name,
        "device": table.device,
        "n": len(depth),
        "slope_ms": line.slope,
        "slope_ms_low": line.slope_low,
        "slope_ms_high": line.slope_high,
        "intercept_ms": line.intercept,
        "r2_depth": line.r2,
        "r2_depth_width": with_width[0],
        "bend": np.abs(means / line.at(depths) - 1).max(),
        "slowest_pace": table.pace.max(),
        "share_steady": table.steady.mean(),
        "slope_ms_steady": steady_line.slope,
        "r2_depth_steady": steady_line.r2,
        "r2_depth_width_steady": with_width[1],
        "r2_layers_steady": fit_sum(_by_layer(steady), steady.latency_ms).r2,
    }


def device_facts(tables: Mapping[str, Table], task: str) -> list[dict[str, object]]:
    """How the choice of a network changes between devices: rows of hat_devices.csv.

    No network was measured on two devices: each device's latencies of all networks of the task's
    three tables are those of a sum fitted to its own. Where the two devices are one, the sums are
    fitted to every other row: so much the choice differs by the noise of a fit alone.
    """
    own = {device: tables[f"{task}_{device}"] for device in DEVICES}
    names = (*FEATURES, *TIMES)
    together = Table(task, {c: np.concatenate([t[c] for t in own.values()]) for c in names})
    plain = {
        device: fit_sum(_as_published(t), t.latency_ms).at(_as_published(together))
        for device, t in own.items()
    }
    steady = {device: t.where(t.steady) for device, t in own.items()}
    halves = {
        device: [_predicted(t.where(slice(first, None, 2)), together) for first in (0, 1)]
        for device, t in steady.items()
    }
    whole = {device: _predicted(t, together) for device, t in steady.items()}
    size = weights(together)
    return [
        {
            "task": task,
            "chosen_on": DEVICES[a],
            "run_on": DEVICES[b],
            "n": len(size),
            "spearman": float(spearman(plain[a], plain[b])),
            **_choice(*((whole[a], whole[b]) if a != b else halves[a]), size),
        }
        for a, b in product(DEVICES, repeat=2)
    ]


def _predicted(fitted_to: Table, of: Table) -> np.ndarray:
    """Latencies in ms of the networks of one table by the sum over layers fitted to another."""
    return fit_sum(_by_layer(fitted_to), fitted_to.latency_ms).at(_by_layer(of))


def _choice(chosen_on: np.ndarray, run_on: np.ndarray, size: np.ndarray) -> dict[str, object]:
    """The fastest networks of each size by two sets of latencies, (n,) each; both fronts.

    front_shared: those on both fronts over those on either. excess_median, excess_max: how much
    longer, as a share, the network chosen by the one takes on the other than the best of at least
    the same size there.
    """
    fronts = [non_dominated(np.stack([t, size], 1), ["min", "max"]) for t in (chosen_on, run_on)]
    excess = excess_latency(chosen_on, run_on, size)
    return {
        "n_front": int(fronts[0].sum()),
        "n_front_run_on": int(fronts[1].sum()),
        "front_shared": float((fronts[0] & fronts[1]).sum() / (fronts[0] | fronts[1]).sum()),
        "excess_median": float(np.median(excess)),
        "excess_max": float(np.max(excess)),
    }


def facts() -> dict[str, list[dict[str, object]]]:
    """Rows of both committed files, by their names, from the tables of LMTIME_DATA."""
    tables = {name: read(name) for name in TABLES}
    return {
        "hat_latency": [depth_facts(table) for table in tables.values()],
        "hat_devices": [row for task in COMPARED for row in device_facts(tables, task)],
    }


def write(folder: Path) -> None:
    """Both files anew, five digits a number."""
    for name, rows in facts().items():
        with (folder / f"{name}.csv").open("w", encoding="utf-8", newline="") as file:
            table = csv.DictWriter(file, list(rows[0]), lineterminator="\n")
            table.writeheader()
            for row in rows:
                table.writerow(
                    {c: f"{v:.5g}" if isinstance(v, float) else v for c, v in row.items()}
                )


def committed(name: str) -> list[dict[str, object]]:
    """Rows of `data/published/<name>.csv`: "hat_latency" or "hat_devices"; numbers as floats."""
    path = data_file("published", f"{name}.csv")
    with path.open(encoding="utf-8", newline="") as lines:
        rows = list(csv.DictReader(lines))
    words = ("table", "device", "task", "chosen_on", "run_on")
    return [{c: v if c in words else float(v) for c, v in row.items()} for row in rows]
