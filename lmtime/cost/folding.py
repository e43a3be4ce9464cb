"""How the fused adaptive softmax lays out its scores, whether it keeps them, else in which pieces.

The layer (`lmtime.softmax.fused`) and its costs decide by these rules, on numbers alone. A piece
is some rows of a band, the head or a tail. Every further piece of a band passes over its weights
and their gradients once more, so pieces are as large as what follows allows: the peak of a step has
the gradients of all bands in it anyway, and until later ones are made, scores may stand in their
room.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

KEPT_AT_MOST = 2**18  # scores of all bands: so few cost less time kept than they take memory
SCORES_AT_ONCE = {"cpu": (2**18, 2**22)}  # least and most that a piece may have in any case
SCORES_AT_ONCE_ELSEWHERE = 2**26, 2**26
WEIGHTS_PER_SCORE = 24  # of all bands; a piece of fewer scores passes over too many for each
LINE_BYTES = 64  # of a cache
MOST_PIECES = 16  # about: a piece has at least this part of all scores


def room_in_row(n_entries: Any, value_bytes: int) -> Any:
    """Values from the end of a row of scores to the next cache line; traceable."""
    line = LINE_BYTES // value_bytes
    return (line - n_entries % line) % line  # of positive numbers, as a page knows the remainder


def folds(n_scores: float) -> bool:
    """Whether so many scores, of all bands, give their products piece by piece and are dropped."""
    return n_scores > KEPT_AT_MOST


def count_scores(n_rows: Sequence[float], n_entries: Sequence[float]) -> float:
    """Of all bands: n_rows tokens meet n_entries words and clusters each."""
    return sum(n * entries for n, entries in zip(n_rows, n_entries, strict=True))


def rows_at_once(
    n_rows: Sequence[float], n_entries: Sequence[float], n_weights: Sequence[float], device: str
) -> list[int]:
    """Of a piece of each band, the last of which may have fewer; one value a band in each list.

    n_rows tokens meet n_entries words and clusters. n_weights: values of all tensors of a band,
    whose gradients come to be with its pieces. Where scores outnumber weights, half of the
    difference may live at once.
    """
    n_scores = count_scores(n_rows, n_entries)
    least, most = SCORES_AT_ONCE.get(device, SCORES_AT_ONCE_ELSEWHERE)
    beyond = (n_scores - sum(n_weights)) // 2
    at_once = max(least, min(beyond, most), sum(n_weights) // WEIGHTS_PER_SCORE)
    at_once = max(at_once, n_scores // MOST_PIECES)
    found = []
    for i, (n, entries) in enumerate(zip(n_rows, n_entries, strict=True)):
        n_pieces = math.ceil(n * entries / (at_once + sum(n_weights[i + 1 :])))
        found.append(max(1, math.ceil(n / max(1, n_pieces))))
    return found
