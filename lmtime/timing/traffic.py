"""Bytes that one executed operator moves: each operand read once, each result written once.

Operators that touch only some rows of an operand stand in a table; views cost nothing.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

import torch
from torch import Tensor
from torch.utils._pytree import tree_leaves

aten = torch.ops.aten


def size(*tensors: object) -> int:
    """Bytes of those that are tensors."""
    return sum(_stored(t) for t in tensors if isinstance(t, Tensor))


def _stored(tensor: Tensor) -> int:
    """Bytes; of a sparse tensor those of the values that it has and of their places."""
    if tensor.layout == torch.sparse_coo:
        return tensor._indices().nbytes + tensor._values().nbytes
    if tensor.layout in (torch.sparse_csr, torch.sparse_bsr):
        return sum(t.nbytes for t in (tensor.crow_indices(), tensor.col_indices(), tensor.values()))
    return tensor.numel() * tensor.element_size()


def _conv_backward_bytes(args: tuple, out: tuple) -> int:
    """One kernel for each gradient asked for; all read the incoming one."""
    grad, x, weight = args[:3]
    wants_x, wants_weight, wants_bias = args[-1]
    needed = wants_x * size(grad, weight) + wants_weight * size(grad, x) + wants_bias * size(grad)
    return needed + size(*out)


def _row(table: Tensor) -> int:
    return table.shape[-1] * table.element_size()


def _embedding_bag_bytes(args: tuple, out: tuple) -> int:
    """One row of the table for each id, and what is written: the bags and where they are."""
    return size(*args[1:3], *out) + args[1].numel() * _row(args[0])


def _index_put_bytes(args: tuple, out: object) -> int:
    """The values are read and written into their places, and added to what is there if asked."""
    accumulates = len(args) > 3 and bool(args[3])
    return size(*args[1]) + (2 + accumulates) * size(args[2])


def _scatter_bytes(args: tuple, out: object) -> int:
    """The values, of which a number is none, are read and written into their places."""
    ids, values = args[2], args[3]
    read = size(values) if isinstance(values, Tensor) else 0
    return size(ids) + ids.numel() * args[0].element_size() + read


# Operators that read or write only some rows of an operand: (arguments, result) -> bytes.
BYTES: dict[object, Callable[[tuple, object], int]] = {
    aten.embedding: lambda args, out: size(args[1]) + 2 * size(out),
    aten.embedding_dense_backward: lambda args, out: 3 * size(args[0]) + size(args[1], out),
    aten._embedding_bag: _embedding_bag_bytes,
    aten._embedding_bag_forward_only: _embedding_bag_bytes,
    aten._embedding_bag_dense_backward: lambda args, out: (
        size(args[1], args[2], out) + 3 * args[1].numel() * _row(out)
    ),
    aten.index_select: lambda args, out: size(args[2]) + 2 * size(out),
    aten.gather: lambda args, out: size(args[2]) + 2 * size(out),
    aten.index: lambda args, out: size(*args[1]) + 2 * size(out),
    aten.index_put_: _index_put_bytes,
    aten._index_put_impl_: _index_put_bytes,
    aten.index_copy_: lambda args, out: size(args[2]) + 2 * size(args[3]),
    aten.index_fill_: lambda args, out: size(args[2]) + args[2].numel() * args[0].element_size(),
    aten.scatter_: _scatter_bytes,
    aten.nll_loss_forward: lambda args, out: size(args[1]) + 2 * size(out[0]) + size(out[1]),
    aten.nll_loss_backward: lambda args, out: size(args[0], args[2], args[6], out),
    aten.convolution_backward: _conv_backward_bytes,
    aten.new_zeros: lambda args, out: size(out),
    aten.ones_like: lambda args, out: size(out),
    aten.zeros_like: lambda args, out: size(out),
    aten.full_like: lambda args, out: size(out),
    aten.fill_: lambda args, out: size(out),
    aten.zero_: lambda args, out: size(out),
    aten.bernoulli_: lambda args, out: size(out),  # drawn over what was there
    aten.normal_: lambda args, out: size(out),
    aten.uniform_: lambda args, out: size(out),
    aten._foreach_zero_: lambda args, out: size(*args[0]),
    aten.copy_: lambda args, out: size(args[1], out),
    aten._foreach_copy_: lambda args, out: size(*args[0], *args[1]),
    aten.new_empty: lambda args, out: 0,
    aten.empty_like: lambda args, out: 0,
    aten.empty: lambda args, out: 0,
    aten.new_empty_strided: lambda args, out: 0,
    aten.empty_strided: lambda args, out: 0,
    aten._unsafe_view: lambda args, out: 0,
}


def bytes_of(func: torch._ops.OpOverload, args: tuple, kwargs: dict, out: object) -> int:
    """By the table, or each operand read and each result written."""
    packet = func._overloadpacket
    if packet in BYTES:
        return BYTES[packet](args, out)
    if is_view(func):
        return 0
    read = size(*_once(tree_leaves((args, _inputs(func, kwargs)))))
    written = size(*tree_leaves(out)) or size(*tree_leaves(list(_written(func, args, kwargs))))
    return read + written


def _inputs(func: torch._ops.OpOverload, kwargs: dict) -> list[object]:
    """What is given by name and not only written, as `out` is."""
    results = {argument.name for argument in func._schema.arguments if argument.is_out}
    return [value for name, value in kwargs.items() if name not in results]


def _once(values: list) -> list:
    """What is given twice is read once, as the gradient that Adam squares."""
    tensors = [t for t in values if isinstance(t, Tensor)]
    return list({_place(t): t for t in tensors}.values())


def _place(tensor: Tensor) -> object:
    """The same of tensors that are the same values in memory."""
    if tensor.layout != torch.strided or tensor.is_nested:
        return id(tensor)
    start = tensor.untyped_storage()._cdata, tensor.storage_offset()
    return start, tensor.shape, tensor.stride()


def is_view(func: torch._ops.OpOverload) -> bool:
    """Results that only alias an argument move nothing, nor does a new shape in place."""
    if torch.Tag.inplace_view in func.tags:
        return True
    returns = func._schema.returns
    return bool(returns) and all(r.alias_info and not r.alias_info.is_write for r in returns)


def _written(func: torch._ops.OpOverload, args: tuple, kwargs: dict) -> Iterator[object]:
    """Arguments that an in-place operator changes and does not return (`_foreach_...`).

    A fused update writes the gradients only where a scale is to be taken out of them.
    """
    is_update = func._schema.name.startswith("aten::_fused_")
    keeps_gradients = is_update and kwargs.get("grad_scale") is None
    for argument, value in zip(func._schema.arguments, args, strict=False):
        if keeps_gradients and argument.name == "grads":
            continue
        if argument.alias_info is not None and argument.alias_info.is_write:
            yield value
