"""Rows of `encoder_scores`: those of one super-network, and what two of them differ by. NumPy only.

One super-network has a row for each sub-network and one for its teacher, the whole network
fine-tuned on the task alone; all are judged on the same examples, so that they can be paired.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from lmtime.config import EncoderConfig, SubNetwork
from lmtime.metrics import difference_interval, score
from lmtime.stats import Difference

FINE_TUNED = "fine-tuned"  # name of the teacher's row, which has no width and no depth
Row = dict[str, object]


def super_network(
    rows: Sequence[Row], network: str, task: str, seed: int | None = None
) -> tuple[Row, list[Row]]:
    """(the teacher's row, those of the sub-networks, deepest and widest first) of one training.

    seed: the least that there is where none is given.
    """
    found = [r for r in rows if (r["network"], r["task"]) == (network, task)]
    if not found:
        raise LookupError(f"no scores of {network} on {task}: run lab_supernet")
    seed = min(r["seed"] for r in found) if seed is None else seed
    one = {r["name"]: r for r in found if r["seed"] == seed}
    teacher = one.pop(FINE_TUNED)
    return teacher, sorted(one.values(), key=lambda r: (-r["depth"], -r["width"]))


def relative_flops(row: Row, full: EncoderConfig, seq_len: int = 128) -> float:
    """Of the layers, as a part of the whole network's."""
    return SubNetwork.of_row(row).config(full).flops(1, seq_len) / full.flops(1, seq_len)


def difference(row: Row, base: Row) -> Difference:
    """Score of a row less that of another, in points, over the same examples drawn anew."""
    if row["labels"] != base["labels"]:
        raise ValueError("rows judged on different examples cannot be paired")
    labels, mine, theirs = (
        values(part) for part in (row["labels"], row["predicted"], base["predicted"])
    )
    return difference_interval(row["metric"], labels, mine, theirs, np.random.default_rng(0))


def values(kept: str | Sequence[float]) -> np.ndarray:
    """Labels or predictions as rows keep them: a digit an example, or numbers."""
    if isinstance(kept, str):
        return np.array([int(digit) for digit in kept], dtype=np.int64)
    return np.array(kept, dtype=np.float64)


def one_answer(row: Row) -> float:
    """Points of the best single answer for every example: what nothing learnt scores."""
    labels = values(row["labels"])
    same = (np.full_like(labels, answer) for answer in np.unique(labels))
    return max(score(row["metric"], labels, answers) for answers in same)


def is_learnt(teacher: Row) -> bool:
    """Whether the network fine-tuned alone is shown to be above one answer for all."""
    return teacher["score_low"] > one_answer(teacher)


def described(
    name: str,
    width: float | None,
    depth: float | None,
    sub: SubNetwork,
    config: EncoderConfig,
) -> Row:
    """The fields that say what a row is of."""
    shape = {field: list(values) for field, values in sub.fields().items()}
    return {"name": name, "width": width, "depth": depth, **shape} | {
        "parameters": sub.config(config).parameters
    }


def digits(values: np.ndarray) -> str | list[float]:
    """Classes as one digit each; numbers as they are."""
    if np.issubdtype(values.dtype, np.integer):
        return "".join(map(str, values))
    return [round(float(value), 4) for value in values]
