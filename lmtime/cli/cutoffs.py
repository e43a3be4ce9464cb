"""`lmtime cutoffs`: the cheapest partitions of a vocabulary, from the counts of its words."""

from __future__ import annotations

import json
import math
from dataclasses import asdict
from fractions import Fraction
from pathlib import Path
from typing import Annotated, Any, Optional

import typer

from lmtime import partition_table
from lmtime.calibration import read_calibration
from lmtime.cli import terminal
from lmtime.cli.documents import command_line, emit, require_folder, say
from lmtime.cost import clusters, partitions
from lmtime.cost.partitions import MOST_TAILS, RANK_FLOORS, RankFloor
from lmtime.errors import UsageError
from lmtime.hardware import find_gpu
from lmtime.records import document

CORPUS = "movie-reviews"


def cutoffs(
    corpus: Annotated[
        Optional[str], typer.Option(help=f"See `lmtime corpus list`; {CORPUS} if absent.")
    ] = None,
    counts: Annotated[
        Optional[Path], typer.Option(help="Counts of words instead: one a line, or a JSON list.")
    ] = None,
    vocab_size: Annotated[
        Optional[int], typer.Option(help="Words of the vocabulary; the rarer ones count as one.")
    ] = None,
    n_tokens: Annotated[int, typer.Option(help="Targets in a step.")] = 1024,
    hidden_size: Annotated[int, typer.Option(help="Width before the output layer.")] = 1024,
    calibration: Annotated[Optional[Path], typer.Option(help="Of `lmtime calibrate`.")] = None,
    gpu: Annotated[Optional[str], typer.Option(help="A GPU by name; FLOPs if absent.")] = None,
    n_clusters: Annotated[
        Optional[int], typer.Option(help=f"Tail clusters; each from 1 to {MOST_TAILS} if absent.")
    ] = None,
    rank_floor: Annotated[
        str, typer.Option(help="Part of torch's default width that each word keeps, as in 1/2.")
    ] = "1",
    min_width: Annotated[int, typer.Option(help="Least width of a tail.")] = partitions.WIDTH_STEP,
    front: Annotated[bool, typer.Option("--front", help="List the floors 1 to 1/8.")] = False,
    json_to: Annotated[
        Optional[str], typer.Option("--json", help="Write JSON to a file; - prints it.")
    ] = None,
    table: Annotated[Optional[Path], typer.Option(help="Write a CSV of many searches.")] = None,
) -> None:
    """Find cutoffs and tail widths with which an adaptive softmax is predicted to cost least."""
    _check_numbers(hidden_size, n_tokens, n_clusters)
    factor = _factor(rank_floor, front)
    if table is not None:
        _check_table(json_to, (hidden_size, n_clusters, factor, min_width, front))
    prices = _prices(calibration, gpu)
    require_folder(json_to, table)
    words = _word_counts(corpus, counts, vocab_size)
    if table is not None:
        partition_table.write(table, partition_table.searched(words, n_tokens, prices))
        say(f"wrote {table}")
        return
    floor = RankFloor(hidden_size, len(words), factor, min_width)
    layer = clusters.Layer(words, hidden_size, n_tokens, prices)
    rows = _rows(layer, floor, n_clusters, front)
    facts = {"basis": prices.basis, "n_tokens": n_tokens, **asdict(floor)}
    conditions = {"command": command_line(), "counts": str(counts or corpus or CORPUS)}
    emit(document("cutoffs", conditions, rows, **facts), json_to, terminal.print_cutoffs)


def _check_numbers(hidden_size: int, n_tokens: int, n_clusters: int | None) -> None:
    for name, value in (("hidden-size", hidden_size), ("n-tokens", n_tokens)):
        if value < 1:
            raise UsageError(f"--{name} {value} must be a whole number of at least 1")
    if n_clusters is not None and not 1 <= n_clusters <= MOST_TAILS:
        raise UsageError(f"--n-clusters {n_clusters} must lie between 1 and {MOST_TAILS}")


def _check_table(json_to: str | None, chosen: tuple[object, ...]) -> None:
    if chosen != (1024, None, 1, partitions.WIDTH_STEP, False):
        raise UsageError(
            "--table has every hidden size, number of clusters and rank floor: leave out "
            "--hidden-size, --n-clusters, --rank-floor, --min-width and --front"
        )
    if json_to is not None:
        raise UsageError("--table is all that is written: leave out --json")


def _rows(
    layer: clusters.Layer, floor: RankFloor, n_clusters: int | None, front: bool
) -> list[dict[str, Any]]:
    """The baseline, then what was found; each with its price over the baseline's."""
    baseline = partitions.baseline_partition(layer, floor)
    most = n_clusters or MOST_TAILS
    if front:
        found = partitions.front(layer, floor.min_width, most)
    else:
        best = partitions.best_partitions(layer, floor, most)
        found = [(p, None) for p in best]
    if n_clusters:
        found = [(p, mark) for p, mark in found if len(p.cutoffs) == n_clusters]
    least = min(p.price for p, _ in found)
    return [
        p.row(layer.prices.in_ms)
        | {"ratio_to_baseline": p.price / baseline.price, "is_cheapest": p.price == least}
        | ({"on_front": mark} if front else {})
        for p, mark in [(baseline, None), *found]
    ]


def _prices(calibration: Path | None, gpu: str | None) -> clusters.Prices:
    if calibration is not None and gpu is not None:
        raise UsageError("--gpu and --calibration were both given: choose one device")
    if calibration is not None:
        return clusters.measured(read_calibration(calibration))
    return clusters.published(find_gpu(gpu)) if gpu is not None else clusters.work()


def _factor(text: str, front: bool) -> float:
    try:
        factor = float(Fraction(text))
    except (ValueError, ZeroDivisionError):
        raise UsageError(
            f"--rank-floor {text!r} is no number: write it as in {', '.join(map(str, _FLOORS))}"
        ) from None
    if front and factor != 1:
        raise UsageError("--front lists every rank floor: leave out --rank-floor")
    return factor


_FLOORS = [Fraction(floor) for floor in RANK_FLOORS]


def _word_counts(corpus: str | None, path: Path | None, vocab_size: int | None) -> list[float]:
    """Counts of a vocabulary, most frequent first."""
    if corpus is not None and path is not None:
        raise UsageError("--corpus and --counts were both given: choose one")
    if vocab_size is not None and vocab_size < 2:
        raise UsageError(f"--vocab-size {vocab_size} must be at least 2")
    if path is not None:
        return _cut(read_counts(path), vocab_size)
    from lmtime import corpora, wordcounts

    name = corpus or CORPUS
    if name in corpora.NAMES and not corpora.NAMES[name].is_text:
        size = vocab_size or corpora.NAMES[name].vocab_size
        return _cut(wordcounts.extended()[1].tolist(), size)
    return sorted(corpora.load(name, vocab_size=vocab_size).counts().tolist(), reverse=True)


def _cut(counts: list[float], vocab_size: int | None) -> list[float]:
    """The most frequent words, and the others as one word."""
    if vocab_size is None or vocab_size >= len(counts):
        return counts
    kept, others = counts[: vocab_size - 1], counts[vocab_size - 1 :]
    return sorted([*kept, math.fsum(others)], reverse=True)


def read_counts(path: Path) -> list[float]:
    """Counts of words in any order, sorted: a JSON list, or a text with one count a line."""
    try:
        text = Path(path).read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise UsageError(f"{path} cannot be read ({error}): give one count a line") from None
    if text.lstrip().startswith("["):
        values = _json_list(path, text)
    else:
        values = [line.strip() for line in text.splitlines() if line.strip()]
    return sorted((_count(path, i, value) for i, value in enumerate(values, 1)), reverse=True)


def _json_list(path: Path, text: str) -> list:
    try:
        return json.loads(text)
    except json.JSONDecodeError as error:
        raise UsageError(f"{path}, line {error.lineno} is not JSON ({error.msg})") from None


def _count(path: Path, place: int, value: Any) -> float:
    try:
        count = math.nan if isinstance(value, bool) else float(value)
    except (TypeError, ValueError, OverflowError):
        count = math.nan
    if not 0 < count < math.inf:
        raise UsageError(
            f"count {place} of {path} is {value!r}: counts are finite numbers greater than 0"
        )
    return count
