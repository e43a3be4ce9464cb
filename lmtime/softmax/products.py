"""The matrix products of a softmax: by the BLAS in rows of whole cache lines, or by oneDNN.

`torch.mm` and `F.linear` leave no gap between the rows of their scores. Where these do not begin on
cache lines, as those of 2,002 words, the BLAS of PyTorch's wheels for x86-64 stores them at up to
two thirds of its rate. (The vocabulary of GPT-2 is often padded for this, with words that do not
exist; room at the end of each row does as well, and no weight is added.)

oneDNN, which PyTorch has beside its BLAS, is faster again on the CPU of the reference results, most
where rows are few. It adds up longer runs before it begins a new sum: there a product over 1,024
values errs by 4e-7 of its norm, the BLAS's by 2.5e-7. So it is taken only where that was asked for.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

import torch
from torch import Tensor
from torch.utils.flop_counter import register_flop_formula

from lmtime.cost.folding import room_in_row

Multiply = Callable[..., Tensor]  # as `blas` and `onednn`
LEAST_RESULT = 2**10  # values: for fewer the call itself takes longer than by the BLAS
HAS_ONEDNN = torch.backends.mkldnn.is_available()


def blas(left: Tensor, right: Tensor, bias: Tensor | None = None) -> Tensor:
    """(rows, inner) @ (inner, columns) + (columns,), a new tensor, as torch multiplies."""
    return torch.mm(left, right) if bias is None else torch.addmm(bias, left, right)


def onednn(left: Tensor, right: Tensor, bias: Tensor | None = None) -> Tensor:
    """The same, by oneDNN where it is fp32 on a CPU, and no tiny one. Autograd does not see it."""
    large = left.shape[0] * right.shape[1] >= LEAST_RESULT
    if HAS_ONEDNN and large and left.dtype == torch.float32 and left.device.type == "cpu":
        return torch.ops.mkldnn._linear_pointwise(left, right.t(), bias, "none", [], "")
    return blas(left, right, bias)


def scores_of(
    multiply: Multiply, narrow: Tensor, matrices: Sequence[Tensor], bias: Tensor | None
) -> Tensor:
    """(n, width) -> (n, n_entries) and what room there is in a row, where scores are -inf.

    matrices: each (some entries, width). One that oneDNN multiplies needs no room.
    """
    sizes = [matrix.shape[0] for matrix in matrices]
    if multiply is onednn and len(matrices) == 1:
        return onednn(narrow, matrices[0].t(), bias)
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
    return onednn if fast_products else blas


if HAS_ONEDNN:

    @register_flop_formula(torch.ops.mkldnn._linear_pointwise)
    def _flops(rows: torch.Size, weight: torch.Size, *_: object, **__: object) -> int:
        """Of (..., inner) and (columns, inner)."""
        return 2 * rows.numel() * weight[0]
