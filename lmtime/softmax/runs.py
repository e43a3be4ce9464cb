"""Products by oneDNN whose sums are cut into runs, so that they err no more than the BLAS's.

Each run is a product, added to what is there: that costs passes over the result, which the BLAS
makes too, and calls. Where oneDNN is twice as fast as the BLAS it pays, elsewhere it does not, as
little as short products by oneDNN do: `pay` asks the device. Words are taken in blocks whose
results stay in the cache.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.utils._python_dispatch import _disable_current_modes
from torch.utils.benchmark import Timer
from torch.utils.flop_counter import register_flop_formula

from lmtime.cost.folding import LINE_BYTES
from lmtime.cost.products import LONGEST_RUN

HAS_ONEDNN = torch.backends.mkldnn.is_available()
if HAS_ONEDNN:  # the overloads, which are called faster than what holds them
    ONEDNN, ONEDNN_ADDING = (
        getattr(torch.ops.mkldnn._linear_pointwise, name) for name in ("default", "binary")
    )
LINE_VALUES = LINE_BYTES // 4  # fp32
AT_ONCE = 2**18  # values of a result
COPIED_AT_ONCE = 2**19  # values of a run of words
LEAST_WORDS = 256  # of a block
TURNED_WIDTHS = 16  # values of a row, for each row
WORTH = 1.4  # times faster than the BLAS
TRIALS = 20


LIBRARY = torch.library.Library("lmtime", "FRAGMENT")  # `torch.library.custom_op` takes 5 us more


def operator(schema: str) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """The function as an operator of a CPU, which counters and compilers see as one."""

    def define(function: Callable[..., Any]) -> Callable[..., Any]:
        name = schema.partition("(")[0]
        LIBRARY.define(schema)
        LIBRARY.impl(name, function, "CPU")
        return getattr(torch.ops.lmtime, name).default

    return define


@functools.cache
def pay() -> bool:
    """Whether oneDNN is so much faster on this CPU; measured once, in some 0.1 s."""
    if not HAS_ONEDNN:
        return False
    with _disable_current_modes(), torch.no_grad():  # real tensors, which nobody counts
        rows, words = (torch.ones(n, 512, dtype=torch.float32, device="cpu") for n in (64, 2_048))
        names = {"rows": rows, "words": words, "linear": linear}
        ways = [
            Timer(way, globals=names, num_threads=torch.get_num_threads())
            for way in ("rows @ words.t()", "linear(rows, words)")
        ]
        taken = [[way.timeit(1).median for way in ways] for _ in range(TRIALS)]
    blas_s, onednn_s = map(min, zip(*taken, strict=True))
    return blas_s >= WORTH * onednn_s


def linear(rows: Tensor, words: Tensor, bias: Tensor | None = None) -> Tensor:
    """(n, width) @ (n_words, width) transposed, in fp32 on a CPU."""
    return ONEDNN(rows, words, bias, "none", [], "")


@operator("in_runs(Tensor left, Tensor right) -> Tensor")
def in_runs(left: Tensor, right: Tensor) -> Tensor:
    """(n, inner) @ (inner, columns); right is contiguous."""
    step = run_length(left.shape[1])
    result = left.new_empty(left.shape[0], right.shape[1])
    weights = [run.t() for run in right.split(step)]
    at_once = max(LEAST_WORDS, AT_ONCE // right.shape[1])
    for rows, out in zip(left.split(at_once), result.split(at_once), strict=True):
        out.copy_(_sum_of_runs(None, rows.split(step, 1), weights))
    return result


@operator("scores_in_runs(Tensor rows, Tensor words, int room) -> Tensor")
def scores_in_runs(rows: Tensor, words: Tensor, room: int) -> Tensor:
    """(n, width) and (n_words, width) -> (n, n_words + room), -inf in the room.

    oneDNN wants its weights without gaps, so runs of the words are copied. Beside few rows it costs
    less to take the words for the rows, which may have gaps, and to turn the result.
    """
    n_rows, width = rows.shape
    lines = rows.new_empty(n_rows, words.shape[0] + room)
    lines.narrow(1, words.shape[0], room).fill_(-math.inf)
    step = run_length(width)
    turns = width >= TURNED_WIDTHS * n_rows
    parts = [run.contiguous() for run in rows.split(step, 1)]
    at_once = AT_ONCE // max(1, n_rows)
    at_once = max(LEAST_WORDS, at_once if turns else min(at_once, COPIED_AT_ONCE // step))
    for block, out in zip(words.split(at_once), _blocks(lines, words, at_once), strict=True):
        of_words = block.split(step, 1)
        if turns:
            out.copy_(_sum_of_runs(None, of_words, parts).t())
        else:
            out.copy_(_sum_of_runs(None, parts, (run.contiguous() for run in of_words)))
    return lines


def gradient_in_runs(of_scores: Tensor, rows: Tensor, total: Tensor | None) -> Tensor:
    """total + (n, n_words) transposed @ (n, width), in place of a total; rows are contiguous."""
    if total is None:
        return _gradient(of_scores, rows)
    _add_gradient(total, of_scores, rows)
    return total


@operator("gradient_in_runs(Tensor of_scores, Tensor rows) -> Tensor")
def _gradient(of_scores: Tensor, rows: Tensor) -> Tensor:
    result = rows.new_empty(of_scores.shape[1], rows.shape[1])
    _gradient_into(result, of_scores, rows, adds=False)
    return result


@operator("add_gradient_in_runs(Tensor(a!) total, Tensor of_scores, Tensor rows) -> ()")
def _add_gradient(total: Tensor, of_scores: Tensor, rows: Tensor) -> None:
    _gradient_into(total, of_scores, rows, adds=True)


def run_length(inner: int) -> int:
    """Values of a run, whole cache lines, all runs about alike."""
    n_runs = math.ceil(inner / LONGEST_RUN)
    return max(1, math.ceil(inner / max(1, n_runs) / LINE_VALUES)) * LINE_VALUES


def _gradient_into(total: Tensor, of_scores: Tensor, rows: Tensor, *, adds: bool) -> None:
    step = run_length(rows.shape[0])
    weights = [run.t() for run in rows.split(step)]
    at_once = max(LEAST_WORDS, AT_ONCE // rows.shape[1])
    blocks = _blocks(of_scores, total, at_once)
    for out, block in zip(total.split(at_once), blocks, strict=True):
        parts = [run.t() for run in block.split(step)]
        out.copy_(_sum_of_runs(out if adds else None, parts, weights))


def _blocks(scores: Tensor, words: Tensor, at_once: int) -> Sequence[Tensor]:
    """Columns of the scores of so many words each."""
    return scores.narrow(1, 0, words.shape[0]).split(at_once, 1)


def _sum_of_runs(
    total: Tensor | None, parts: Sequence[Tensor], weights: Iterable[Tensor]
) -> Tensor:
    """Each sum beside the one that it is added to: oneDNN does not add in place."""
    for part, weight in zip(parts, weights, strict=True):
        if total is None:
            total = linear(part, weight)
        else:
            total = ONEDNN_ADDING(part, total, weight, None, "add")
    return total


@torch.library.register_fake("lmtime::in_runs", lib=LIBRARY)
def _(left: Tensor, right: Tensor) -> Tensor:
    return left.new_empty(left.shape[0], right.shape[1])


@torch.library.register_fake("lmtime::scores_in_runs", lib=LIBRARY)
def _(rows: Tensor, words: Tensor, room: int) -> Tensor:
    return rows.new_empty(rows.shape[0], words.shape[0] + room)


@torch.library.register_fake("lmtime::gradient_in_runs", lib=LIBRARY)
def _(of_scores: Tensor, rows: Tensor) -> Tensor:
    return rows.new_empty(of_scores.shape[1], rows.shape[1])


@torch.library.register_fake("lmtime::add_gradient_in_runs", lib=LIBRARY)
def _(total: Tensor, of_scores: Tensor, rows: Tensor) -> None:
    return None


@register_flop_formula([torch.ops.lmtime.in_runs, torch.ops.lmtime.gradient_in_runs])
def _flops(left: torch.Size, right: torch.Size, **_: object) -> int:
    """A transposed left has as many values."""
    return 2 * left.numel() * right[1]


@register_flop_formula(torch.ops.lmtime.scores_in_runs)
def _scores_flops(rows: torch.Size, words: torch.Size, room: int, **_: object) -> int:
    return 2 * rows.numel() * words[0]


@register_flop_formula(torch.ops.lmtime.add_gradient_in_runs)
def _added_flops(total: torch.Size, of_scores: torch.Size, rows: torch.Size, **_: object) -> int:
    return 2 * of_scores.numel() * rows[1]


if HAS_ONEDNN:

    @register_flop_formula(torch.ops.mkldnn._linear_pointwise)
    def _onednn_flops(rows: torch.Size, weight: torch.Size, *_: object, **__: object) -> int:
        """Of (..., inner) and (columns, inner)."""
        return 2 * rows.numel() * weight[0]
