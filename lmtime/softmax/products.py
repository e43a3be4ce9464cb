"""The matrix products of a softmax: by the BLAS in rows of whole cache lines, or by oneDNN.

`torch.mm` and `F.linear` leave no gap between the rows of their scores. Where these do not begin on
cache lines, as those of 2,002 words, the BLAS of PyTorch's wheels for x86-64 stores them at up to
two thirds of its rate. (The vocabulary of GPT-2 is often padded for this, with words that do not
exist; room at the end of each row does as well, and no weight is added.)

oneDNN, which PyTorch has beside its BLAS, is faster: by a tenth on one CPU of the reference
results, twice as fast on another. It adds up longer runs before it begins a new sum: a product over
1,024 values errs by 4e-7 of its norm, the BLAS's by 2.5e-7. `careful` takes it where it errs no
more, and cuts long sums into runs where that pays (`lmtime.cost.products` has the rules).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

import torch
from torch import Tensor
from torch.utils.flop_counter import register_flop_formula

from lmtime.cost.folding import room_in_row
from lmtime.cost.products import LONGEST_RUN, is_in_runs, is_short, is_short_gradient, pays

Multiply = Callable[..., Tensor]  # as `blas`, `careful` and `onednn`
HAS_ONEDNN = torch.backends.mkldnn.is_available()
if HAS_ONEDNN:  # the overloads, which are called faster than what holds them
    ONEDNN, ONEDNN_ADDING = (
        getattr(torch.ops.mkldnn._linear_pointwise, name) for name in ("default", "binary")
    )
LINE_VALUES = 16  # fp32 values of a cache line
ROWS_AT_ONCE = 256  # of a product in runs: two sums of so many rows live beside its result


def blas(left: Tensor, right: Tensor, bias: Tensor | None = None) -> Tensor:
    """(rows, inner) @ (inner, columns) + (columns,), a new tensor, as torch multiplies."""
    return torch.mm(left, right) if bias is None else torch.addmm(bias, left, right)


def careful(left: Tensor, right: Tensor, bias: Tensor | None = None) -> Tensor:
    """The same, by oneDNN where it is faster and errs no more. Autograd does not see it."""
    sizes = *left.shape, right.shape[1]
    if _knows(left, right):
        if is_short(*sizes):
            return ONEDNN(left, right.t(), bias, "none", [], "")
        if bias is None and is_in_runs(*sizes) and right.is_contiguous():
            return in_runs(left, right)
    return blas(left, right, bias)


def onednn(left: Tensor, right: Tensor, bias: Tensor | None = None) -> Tensor:
    """The same, by oneDNN where it is faster. Autograd does not see it."""
    if _knows(left, right) and pays(*left.shape, right.shape[1]):
        return ONEDNN(left, right.t(), bias, "none", [], "")
    return blas(left, right, bias)


def gradient_of_weights(of_scores: Tensor, rows: Tensor) -> Tensor:
    """(n, n_words) transposed @ (n, width), by oneDNN where it is faster and errs no more."""
    (n_tokens, n_words), width = of_scores.shape, rows.shape[1]
    if _knows(of_scores, rows) and is_short_gradient(n_words, n_tokens, width):
        return ONEDNN(of_scores.t(), rows.t(), None, "none", [], "")
    return of_scores.t().mm(rows)


def _knows(left: Tensor, right: Tensor) -> bool:
    """Whether oneDNN has a product of these; of a matrix with gaps it has a very slow one."""
    if not HAS_ONEDNN or left.dtype != torch.float32 or left.device.type != "cpu":
        return False
    return right.is_contiguous() or right.t().is_contiguous()


@torch.library.custom_op("lmtime::in_runs", mutates_args=(), device_types="cpu")
def in_runs(left: Tensor, right: Tensor) -> Tensor:
    """(rows, inner) @ (inner, columns) by oneDNN, summed in runs no longer than the BLAS's.

    One operator, for the BLAS too reads and writes a result once for each run.
    """
    n_runs = math.ceil(left.shape[1] / LONGEST_RUN)
    step = math.ceil(left.shape[1] / n_runs / LINE_VALUES) * LINE_VALUES
    result = left.new_empty(left.shape[0], right.shape[1])
    weights = [run.t() for run in right.split(step)]
    for rows, out in zip(left.split(ROWS_AT_ONCE), result.split(ROWS_AT_ONCE), strict=True):
        out.copy_(_sum_of_runs(rows.split(step, 1), weights))
    return result


def _sum_of_runs(parts: Sequence[Tensor], weights: Sequence[Tensor]) -> Tensor:
    """Each sum beside the one that it is added to: oneDNN does not add in place."""
    total = ONEDNN(parts[0], weights[0], None, "none", [], "")
    for part, weight in zip(parts[1:], weights[1:], strict=True):
        total = ONEDNN_ADDING(part, total, weight, None, "add")
    return total


@in_runs.register_fake
def _(left: Tensor, right: Tensor) -> Tensor:
    return left.new_empty(left.shape[0], right.shape[1])


def scores_of(
    multiply: Multiply, narrow: Tensor, matrices: Sequence[Tensor], bias: Tensor | None
) -> Tensor:
    """(n, width) -> (n, n_entries) and what room there is in a row, where scores are -inf.

    matrices: each (some entries, width). One that oneDNN multiplies needs no room.
    """
    if len(matrices) == 1 and multiply is not blas:
        right = matrices[0].t()
        sizes = *narrow.shape, right.shape[1]
        if multiply is onednn or (_knows(narrow, right) and is_short(*sizes)):
            return multiply(narrow, right, bias)
    return in_lines(narrow, matrices, bias)


def in_lines(narrow: Tensor, matrices: Sequence[Tensor], bias: Tensor | None) -> Tensor:
    """The same by the BLAS, where each row begins on a cache line."""
    sizes = [matrix.shape[0] for matrix in matrices]
    room = room_in_row(sum(sizes), narrow.dtype.itemsize)
    lines = narrow.new_empty(narrow.shape[0], sum(sizes) + room)
    *parts, rest = lines.split_with_sizes([*sizes, room], 1)
    for matrix, out in zip(matrices, parts, strict=True):
        torch.mm(narrow, matrix.t(), out=out)
    if bias is not None:
        lines.narrow(1, 0, sum(sizes)).add_(bias)
    if room:
        rest.fill_(-math.inf)
    return lines


def multiply_by(fast_products: bool) -> Multiply:
    """What a layer with this option takes for all products but the gradients of its weights."""
    return onednn if fast_products else careful


@register_flop_formula(torch.ops.lmtime.in_runs)
def _in_runs_flops(left: torch.Size, right: torch.Size, *_: object, **__: object) -> int:
    """Of (rows, inner) and (inner, columns)."""
    return 2 * left.numel() * right[1]


if HAS_ONEDNN:

    @register_flop_formula(torch.ops.mkldnn._linear_pointwise)
    def _flops(rows: torch.Size, weight: torch.Size, *_: object, **__: object) -> int:
        """Of (..., inner) and (columns, inner)."""
        return 2 * rows.numel() * weight[0]
