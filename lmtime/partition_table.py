"""The search for partitions at many hidden sizes, as a small table that pages read.

`data/README.md` says with which command the committed one was made. Standard library only.
"""

from __future__ import annotations

import csv
import io
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

from lmtime.cost.clusters import Layer, Prices
from lmtime.cost.partitions import RANK_FLOORS, RankFloor, baseline_partition, best_partitions
from lmtime.errors import UsageError
from lmtime.records import data_file, write_text

HIDDEN_SIZES = (128, 256, 512, 1024, 2048, 4096)


class Found(NamedTuple):
    """The cheapest partition of so many tail clusters under a floor; `cost.partitions` explains.

    ratio_to_torchs: predicted time over that of torch's layer at the baseline's cutoffs.
    """

    hidden_size: int
    n_tokens: int
    vocab_size: int
    rank_floor: float
    n_clusters: int
    cutoffs: tuple[int, ...]
    tail_widths: tuple[int, ...]
    ratio_to_torchs: float
    flops_per_token: int
    mean_rank_per_token: float


def searched(
    counts: Sequence[float],
    n_tokens: int,
    prices: Prices,
    hidden_sizes: Sequence[int] | None = None,
    rank_floors: Sequence[float] = RANK_FLOORS,
) -> Iterator[Found]:
    """One row a hidden size (of HIDDEN_SIZES if not given), floor and number of clusters."""
    for hidden_size in hidden_sizes or HIDDEN_SIZES:
        layer = Layer(counts, hidden_size, n_tokens, prices)
        for factor in rank_floors:
            floor = RankFloor(hidden_size, len(counts), factor)
            torchs = baseline_partition(layer, floor).price
            for p in best_partitions(layer, floor):
                yield Found(
                    hidden_size,
                    n_tokens,
                    p.vocab_size,
                    factor,
                    len(p.cutoffs),
                    p.cutoffs,
                    p.widths,
                    round(p.price / torchs, 4),
                    round(p.flops_per_token),
                    round(p.mean_rank_per_token, 1),
                )


def write(path: Path, rows: Iterable[Found]) -> None:
    """As CSV, the whole file or nothing; the numbers of a list stand with spaces between."""
    text = io.StringIO()
    table = csv.writer(text, lineterminator="\n")
    table.writerow(Found._fields)
    for row in rows:
        table.writerow([_joined(v) if isinstance(v, tuple) else f"{v:.15g}" for v in row])
    write_text(path, text.getvalue())


def read(path: Path | None = None) -> list[Found]:
    """The rows of a table; of `data/partitions.csv` unless another is named."""
    path = path or data_file("partitions.csv")
    try:
        with path.open(encoding="utf-8", newline="") as lines:
            found = [_found(row) for row in csv.DictReader(lines)]
    except OSError as error:
        raise UsageError(f"{path} cannot be read ({error.strerror})") from None
    except (KeyError, TypeError, ValueError, AttributeError):
        found = []
    if not found:
        raise UsageError(f"{path} is no table of partitions: write it with lmtime cutoffs --table")
    return found


def _joined(values: tuple[int, ...]) -> str:
    return " ".join(map(str, values))


def _found(row: dict[str, str]) -> Found:
    kinds = dict.fromkeys(Found._fields, int)
    kinds |= dict.fromkeys(("rank_floor", "ratio_to_torchs", "mean_rank_per_token"), float)
    kinds |= dict.fromkeys(("cutoffs", "tail_widths"), _numbers)
    return Found(**{name: kind(row[name]) for name, kind in kinds.items()})


def _numbers(text: str) -> tuple[int, ...]:
    return tuple(map(int, text.split()))
