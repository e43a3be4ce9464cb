"""When the fused adaptive softmax takes its products in the forward pass, and in which pieces.

The layer (`lmtime.softmax.fused`) and its costs decide by these rules, on numbers alone. A piece
is some rows of a band, the head or a tail. Every further piece of a band passes over the gradients
of its weights once more, so pieces are as large as what follows allows: the peak of a step has the
gradients of all bands in it anyway, and until later ones are made, scores may stand in their room.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

# Scores, and scores for each weight: below either, further passes over the gradients of the
# weights cost more time than dropping the scores saves.
FOLD_ABOVE, FOLD_ABOVE_WEIGHTS = 2**21, 2

# Scores whose softmax is taken at once: on a CPU they stay in the cache between two passes.
SCORES_AT_ONCE = {"cpu": 2**18}
SCORES_AT_ONCE_ELSEWHERE = 2**26
MOST_PIECES = 16  # about: a piece has at least this part of all scores


def folds(n_scores: float, n_weights: float) -> bool:
    """Whether so many scores, of all bands, give their products piece by piece and are dropped."""
    return n_scores > max(FOLD_ABOVE, FOLD_ABOVE_WEIGHTS * n_weights)


def count_scores(n_rows: Sequence[float], n_entries: Sequence[float]) -> float:
    """Of all bands: n_rows tokens meet n_entries words and clusters each."""
    return sum(n * entries for n, entries in zip(n_rows, n_entries, strict=True))


def scores_at_once(device: str) -> int:
    """Whose softmax is taken at once on a kind of device."""
    return SCORES_AT_ONCE.get(device, SCORES_AT_ONCE_ELSEWHERE)


def rows_at_once(
    n_rows: Sequence[float], n_entries: Sequence[float], n_weights: Sequence[float], device: str
) -> list[int]:
    """Of a piece of each band, the last of which may have fewer; one value a band in each list.

    n_weights: values of all tensors of a band, whose gradients come to be with its pieces.
    """
    at_once = max(scores_at_once(device), count_scores(n_rows, n_entries) // MOST_PIECES)
    found = []
    for i, (n, entries) in enumerate(zip(n_rows, n_entries, strict=True)):
        n_pieces = math.ceil(n * entries / max(at_once, sum(n_weights[i + 1 :])))
        found.append(max(1, math.ceil(n / max(1, n_pieces))))
    return found
