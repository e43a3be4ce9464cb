"""The matrix products of a softmax: by the BLAS in rows of whole cache lines, or by oneDNN.

`torch.mm` and `F.linear` leave no gap between the rows of their scores. Where these do not begin on
cache lines, as those of 2,002 words, the BLAS of PyTorch's wheels for x86-64 stores them at up to
two thirds of its rate. (The vocabulary of GPT-2 is often padded for this, with words that do not
exist; room at the end of each row does as well, and no weight is added.)

oneDNN, which PyTorch has beside its BLAS, is faster: by a tenth on one CPU of the reference
results, twice as fast on another. It adds up longer runs before it begins a new sum: a product over
1,024 values errs by 4e-7 of its norm, the BLAS's by 2.5e-7. `careful` takes it on a CPU of the
second kind alone, where it errs no more, and cuts long sums into runs (`runs.py`; the sizes:
`lmtime.cost.products`). A tenth is lost again by a step of few tokens: a second library has its
code to load between the steps of other layers.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

import torch
from torch import Tensor

from lmtime.cost.folding import room_in_row
from lmtime.cost.products import (
    is_gradient_in_runs,
    is_in_runs,
    is_of_few_rows,
    is_short,
    is_short_gradient,
    pays,
)
from lmtime.softmax import runs
from lmtime.softmax.runs import HAS_ONEDNN

Multiply = Callable[..., Tensor]  # as `blas`, `careful` and `onednn`


def blas(left: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
    """(rows, inner) @ (columns, inner) transposed + (columns,), a new tensor, as torch does it."""
    right = weight.t()
    return torch.mm(left, right) if bias is None else torch.addmm(bias, left, right)


def careful(left: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
    """The same, by oneDNN where it is much faster and errs no more. Autograd does not see it."""
    if _leads(left, weight):
        sizes = *left.shape, weight.shape[0]
        if is_short(*sizes) or is_of_few_rows(*sizes):
            return runs.linear(left, weight, bias)
        if bias is None and is_in_runs(*sizes) and weight.t().is_contiguous():
            return runs.in_runs(left, weight.t())
    return blas(left, weight, bias)


def onednn(left: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
    """The same, by oneDNN where it is faster. Autograd does not see it."""
    if pays(*left.shape, weight.shape[0]) and _knows(left, weight):
        return runs.linear(left, weight, bias)
    return blas(left, weight, bias)


def gradient_of_weights(of_scores: Tensor, rows: Tensor, total: Tensor | None = None) -> Tensor:
    """total + (n, n_words) transposed @ (n, width), in place of a total; as exact as torch's."""
    (n_tokens, n_words), width = of_scores.shape, rows.shape[1]
    if rows.is_contiguous() and _leads(of_scores, rows):
        if total is None and is_short_gradient(n_words, n_tokens, width):
            return runs.linear(of_scores.t(), rows.t())
        if is_gradient_in_runs(n_tokens, width):
            return runs.gradient_in_runs(of_scores, rows, total)
    return of_scores.t().mm(rows) if total is None else total.addmm_(of_scores.t(), rows)


def scores_of(
    multiply: Multiply, narrow: Tensor, matrices: Sequence[Tensor], bias: Tensor | None
) -> Tensor:
    """(n, width) -> (n, n_entries) and what room there is in a row, where scores are -inf.

    matrices: each (some entries, width). One that oneDNN multiplies at once needs no room.
    """
    if len(matrices) == 1:
        (weight,) = matrices
        if multiply is onednn:
            return onednn(narrow, weight, bias)
        if is_short(*narrow.shape, weight.shape[0]) and _leads(narrow, weight):
            return runs.linear(narrow, weight, bias)
    return in_lines(narrow, matrices, bias)


def in_lines(narrow: Tensor, matrices: Sequence[Tensor], bias: Tensor | None) -> Tensor:
    """The same, no less exact than the BLAS; each row begins on a cache line."""
    sizes = [matrix.shape[0] for matrix in matrices]
    n_entries = sum(sizes)
    room = room_in_row(n_entries, narrow.dtype.itemsize)
    large = len(matrices) == 1 and is_in_runs(*narrow.shape, n_entries)
    if large and matrices[0].is_contiguous() and _leads(narrow, matrices[0]):
        lines = runs.scores_in_runs(narrow, matrices[0], room)
    else:
        lines = narrow.new_empty(narrow.shape[0], n_entries + room)
        *parts, rest = lines.split_with_sizes([*sizes, room], 1)
        for matrix, out in zip(matrices, parts, strict=True):
            torch.mm(narrow, matrix.t(), out=out)
        if room:
            rest.fill_(-math.inf)
    if bias is not None:
        lines.narrow(1, 0, n_entries).add_(bias)
    return lines


def multiply_by(fast_products: bool) -> Multiply:
    """What a layer with this option takes for all products but the gradients of its weights."""
    return onednn if fast_products else careful


def _leads(left: Tensor, weight: Tensor) -> bool:
    """Whether oneDNN has a product of these, on a CPU where it is much faster."""
    return _knows(left, weight) and runs.pay()


def _knows(left: Tensor, weight: Tensor) -> bool:
    """Whether oneDNN has a product of these; of a matrix with gaps it has a very slow one."""
    if left.dtype is not torch.float32 or left.device.type != "cpu":
        return False
    if not (HAS_ONEDNN and torch.backends.mkldnn.enabled):
        return False
    return weight.is_contiguous() or weight.stride() == (1, weight.shape[0])
