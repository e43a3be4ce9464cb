"""FLOPs and bytes of the operators that are really executed, owned by the same rule as time.

FLOPs come from torch's own formulas, plus those it lacks. Bytes are each operand read once and
each result written once, but for the operators that touch only some rows of an operand. What
moves data and stands in neither table is counted by that default; views cost nothing.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves
from torch.utils.flop_counter import flop_registry

from lmtime.cost.operators import Cost
from lmtime.timing.ownership import Ownership
from lmtime.timing.timer import Step

aten = torch.ops.aten


def _conv_tbc_flops(x, weight, bias, pad=0, *, out_val=None, **_: object) -> int:
    """(time, batch, channels): every output position sees every tap; torch counts 0."""
    taps, d_in, d_out = weight.shape
    return 2 * out_val.shape[0] * x.shape[1] * taps * d_in * d_out


# torch composes the backward of `conv_tbc` of products in place, which its table lacks as well.
EXTRA_FLOPS = {
    aten.conv_tbc: _conv_tbc_flops,
    aten.addmm_: flop_registry[aten.addmm],
    aten.baddbmm_: flop_registry[aten.baddbmm],
}


def _size(*tensors: object) -> int:
    return sum(t.nbytes for t in tensors if isinstance(t, Tensor))


def _conv_backward_bytes(args: tuple, out: tuple) -> int:
    """One kernel for each gradient asked for; all read the incoming one."""
    grad, x, weight = args[:3]
    wants_x, wants_weight, wants_bias = args[-1]
    needed = (
        wants_x * _size(grad, weight) + wants_weight * _size(grad, x) + wants_bias * _size(grad)
    )
    return needed + _size(*out)


# Operators that read or write only some rows of an operand: (arguments, result) -> bytes.
BYTES: dict[object, Callable[[tuple, object], int]] = {
    aten.embedding: lambda args, out: _size(args[1]) + 2 * _size(out),
    aten.embedding_dense_backward: lambda args, out: 3 * _size(args[0]) + _size(args[1], out),
    aten.index_select: lambda args, out: _size(args[2]) + 2 * _size(out),
    aten.gather: lambda args, out: _size(args[2]) + 2 * _size(out),
    aten.index: lambda args, out: _size(*args[1]) + 2 * _size(out),
    aten.index_copy_: lambda args, out: _size(args[2]) + 2 * _size(args[3]),
    aten.index_fill_: lambda args, out: _size(args[2]) + args[2].numel() * args[0].element_size(),
    aten.nll_loss_forward: lambda args, out: _size(args[1]) + 2 * _size(out[0]) + _size(out[1]),
    aten.nll_loss_backward: lambda args, out: _size(args[0], args[2], args[6], out),
    aten.convolution_backward: _conv_backward_bytes,
    aten.new_zeros: lambda args, out: _size(out),
    aten.ones_like: lambda args, out: _size(out),
    aten.zeros_like: lambda args, out: _size(out),
    aten.full_like: lambda args, out: _size(out),
    aten.fill_: lambda args, out: _size(out),
    aten.zero_: lambda args, out: _size(out),
    aten._foreach_zero_: lambda args, out: _size(*args[0]),
    aten.copy_: lambda args, out: _size(args[1], out),
    aten._foreach_copy_: lambda args, out: _size(*args[0], *args[1]),
    aten.new_empty: lambda args, out: 0,
    aten.empty_like: lambda args, out: 0,
    aten.empty: lambda args, out: 0,
    aten._unsafe_view: lambda args, out: 0,
}


@dataclass
class Counts:
    """Work of one step: {(owner, phase): Cost}, and how often each operator ran."""

    by_owner: dict[tuple[str, str], Cost] = field(
        default_factory=lambda: defaultdict(lambda: Cost(0, 0))
    )
    by_operator: dict[str, int] = field(default_factory=lambda: defaultdict(int))

    @property
    def total(self) -> Cost:
        """All owners and phases together."""
        return sum(self.by_owner.values(), Cost(0, 0))


class _Counter(TorchDispatchMode):
    def __init__(self, ownership: Ownership, counts: Counts) -> None:
        super().__init__()
        self._ownership = ownership
        self._counts = counts

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        kwargs = kwargs or {}
        packet = func._overloadpacket
        flops_of = EXTRA_FLOPS.get(packet) or flop_registry.get(packet)
        if flops_of is None:
            with self:  # in inference mode composed operators (`linear`) arrive whole
                out = func.decompose(*args, **kwargs)
            if out is not NotImplemented:
                return out
        out = func(*args, **kwargs)
        flops = flops_of(*args, **kwargs, out_val=out) if flops_of else 0
        moved = _bytes(func, packet, args, kwargs, out)
        if flops or moved:
            self._counts.by_owner[self._ownership.current] += Cost(flops, moved)
            self._counts.by_operator[str(packet)] += 1
        return out


def _bytes(func, packet: object, args: tuple, kwargs: dict, out: object) -> int:
    if packet in BYTES:
        return BYTES[packet](args, out)
    if _is_view(func):
        return 0
    read = _size(*tree_leaves((args, kwargs)))
    written = _size(*tree_leaves(out)) or sum(_size(*tree_leaves(a)) for a in _written(func, args))
    return read + written


def _is_view(func: torch._ops.OpOverload) -> bool:
    """Results that only alias an argument move nothing."""
    returns = func._schema.returns
    return bool(returns) and all(r.alias_info and not r.alias_info.is_write for r in returns)


def _written(func: torch._ops.OpOverload, args: tuple) -> Iterator[object]:
    """Arguments that an in-place operator changes and does not return (`_foreach_...`)."""
    for argument, value in zip(func._schema.arguments, args, strict=False):
        if argument.alias_info is not None and argument.alias_info.is_write:
            yield value


def count(step: Step, ownership: Ownership) -> Counts:
    """Run one step and count what it executes, owner by owner, phase by phase."""
    counts = Counts()
    with ownership.watching(lambda owner, phase: None), _Counter(ownership, counts):
        step()
    return counts
