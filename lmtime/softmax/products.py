"""Matrix products in fp32 on a CPU by oneDNN, which PyTorch has beside its BLAS.

`torch.mm` and `F.linear` call the BLAS. As PyTorch's wheels for x86-64 have it, it writes scores at
up to two thirds of its rate where their rows do not begin on cache lines, as those of 2,002 words,
and it does not use all vectors of processors that are not Intel's. oneDNN does, and is ahead most
where rows are few.

It adds up longer runs before it begins a new sum: a product over 1,024 values errs by 4e-7 of its
norm, the BLAS's by 2.5e-7. The likelihoods do not show that, gradients made by such products do.
So scores are made by oneDNN, and other products where that was asked for.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor
from torch.utils.flop_counter import register_flop_formula

Multiply = Callable[[Tensor, Tensor], Tensor]
HAS_ONEDNN = torch.backends.mkldnn.is_available()


def product(left: Tensor, right: Tensor, bias: Tensor | None = None) -> Tensor:
    """(rows, inner) @ (inner, columns) + (columns,), a new tensor; autograd does not see it.

    By oneDNN where it is fp32 on a CPU, else by `torch.mm`.
    """
    if HAS_ONEDNN and left.dtype == torch.float32 and left.device.type == "cpu":
        return torch.ops.mkldnn._linear_pointwise(left, right.t(), bias, "none", [], "")
    return torch.mm(left, right) if bias is None else torch.addmm(bias, left, right)


if HAS_ONEDNN:

    @register_flop_formula(torch.ops.mkldnn._linear_pointwise)
    def _flops(rows: torch.Size, weight: torch.Size, *_: object, **__: object) -> int:
        """Of (..., inner) and (columns, inner)."""
        return 2 * rows.numel() * weight[0]
