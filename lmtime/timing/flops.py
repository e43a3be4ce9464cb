"""FLOPs of one executed operator, from its arguments and its result.

Only matrix products and convolutions count, a multiply-add as two FLOPs (a bias as none); what
works element by element has 0 FLOPs, its time follows its bytes, and so has an outer product,
which sums nothing. Four numbers are kept apart, none is ever chosen silently:

- flops: what the shapes ask for, masked pairs and padded positions included. A kernel that skips
  blocks which are masked altogether does less, but not less than `useful_flops`.
- useful_flops: without the pairs that a mask removes (causal or given) and without the taps of a
  convolution that fall on padding; equal to `flops` where there is neither. A mask that is an
  operator of its own, as in attention written out, is not seen.
- recomputed_flops: the part of `flops` that was done before: the forward pass of a checkpoint
  that runs again, and the scores that the backward pass of fused attention makes again.
- model_flops: flops - recomputed_flops. So fused attention is 2 products forward; backward 5 are
  executed (2.5 times the forward) and 4 are the model's (2 times).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from math import prod

import torch
from torch import Tensor
from torch._subclasses.fake_tensor import FakeTensor
from torch.utils._pytree import tree_leaves


@dataclass(frozen=True)
class Work:
    """Work of one executed operator, or of several added up."""

    flops: int = 0
    bytes: int = 0
    useful_flops: int = 0
    recomputed_flops: int = 0

    @property
    def model_flops(self) -> int:
        """What the model asks for once, however often it is computed."""
        return self.flops - self.recomputed_flops

    def __add__(self, other: Work) -> Work:
        return Work(
            self.flops + other.flops,
            self.bytes + other.bytes,
            self.useful_flops + other.useful_flops,
            self.recomputed_flops + other.recomputed_flops,
        )


Arguments = dict[str, object]  # of a call, by their names in the operator's schema
# None says that it cannot be told from the arguments: the operator is then uncounted.
Formula = Callable[[Arguments, object], Work | None]


def _dense(flops: int) -> Work:
    return Work(flops=flops, useful_flops=flops)


# Products


def _product(left: str, right: str) -> Formula:
    """(..., rows, inner) @ (..., inner, columns): every value of the left meets each column."""
    return lambda a, out: _dense(2 * a[left].numel() * a[right].shape[-1])


def _vector_product(left: str) -> Formula:
    """(rows, inner) @ (inner), or two vectors."""
    return lambda a, out: _dense(2 * a[left].numel())


def _grouped_product(a: Arguments, out: object) -> Work:
    """One product for each group. Rows, columns or the inner width lie end to end, or none does.

    Columns (groups, rows, inner) @ (inner, columns): each belongs to one group alone.
    """
    left, right = a["self"], a["mat2"]
    by_columns = left.ndim > right.ndim
    return _dense(2 * (left[0] if by_columns else left).numel() * right.shape[-1])


# Convolutions


def _taps_on_data(n: int, n_data: int, *, taps: int, stride: int, pad: int, dilation: int) -> int:
    """Pairs (position, tap) that meet data: 0 <= position * stride - pad + tap * dilation < n_data.

    The other pairs of the n * taps meet padding.
    """
    pairs = 0
    for tap in range(taps):
        shift = pad - tap * dilation
        first, last = max(0, -(-shift // stride)), min(n - 1, (n_data - 1 + shift) // stride)
        pairs += max(0, last - first + 1)
    return pairs


def _conv_products(a: Arguments, result_shape: torch.Size, times: int) -> Work:
    """`times` products between input, weight and result of one convolution: they cost the same.

    Every position of the result meets every tap; transposed, every position of the input does.
    weight: (result channels, input channels / groups, taps...), the two exchanged if transposed.
    """
    x, weight = a["input"].shape, a["weight"]
    positions, data = (x, result_shape) if a["transposed"] else (result_shape, x)
    taps = weight.shape[2:]
    settings = [
        value if len(value) == len(taps) else list(value) * len(taps)  # one for all dimensions
        for value in (a["stride"], a["padding"], a["dilation"])
    ]
    on_data = prod(
        _taps_on_data(n, n_data, taps=tap, stride=stride, pad=pad, dilation=dilation)
        for n, n_data, tap, stride, pad, dilation in zip(
            positions[2:], data[2:], taps, *settings, strict=True
        )
    )
    each = times * 2 * x[0] * weight.shape[0] * weight.shape[1]
    return Work(flops=each * prod(positions[2:]) * prod(taps), useful_flops=each * on_data)


def _conv(a: Arguments, out: Tensor) -> Work:
    return _conv_products(a, out.shape, 1)


def _conv_backward(a: Arguments, out: object) -> Work:
    """One product for each gradient asked for; that of the bias is a sum."""
    wants_input, wants_weight, _ = a["output_mask"]
    return _conv_products(a, a["grad_output"].shape, wants_input + wants_weight)


def _conv_tbc(a: Arguments, out: Tensor) -> Work:
    """(time, batch, channels). torch composes its backward of products without the padding."""
    taps, d_in, d_out = a["weight"].shape
    n_in, batch_size, _ = a["self"].shape
    on_data = _taps_on_data(len(out), n_in, taps=taps, stride=1, pad=a["pad"], dilation=1)
    each = 2 * batch_size * d_in * d_out
    return Work(flops=each * len(out) * taps, useful_flops=each * on_data)


# Attention

_BOTTOM_RIGHT = 2  # torch's code for where the causal diagonal ends; 1 is top left, 0 no mask


def _has_no_values(tensor: Tensor) -> bool:
    return tensor.is_meta or isinstance(tensor, FakeTensor)


def visible_pairs(n_queries: int, n_keys: int, *, bottom_right: bool) -> int:
    """Pairs (query, key) under a causal mask, whose alignment must be said.

    Query i sees keys 0 to i (`is_causal` of torch: aligned top left); bottom_right: the last query
    sees all keys, as in decoding with a cache. The two agree where the lengths are equal.
    """
    ahead = n_keys - n_queries if bottom_right else 0
    return sum(min(max(i + 1 + ahead, 0), n_keys) for i in range(n_queries))


def _attention_work(a: Arguments, pairs: int, visible: int) -> Work:
    """Forward: scores and values. Backward: scores again, and two products for each of both."""
    d_scores, d_values = a["query"].shape[-1], a["value"].shape[-1]
    if "grad_out" not in a and "grad_out_" not in a:
        each, again = 2 * (d_scores + d_values), 0
    else:
        each, again = 2 * (3 * d_scores + 2 * d_values), 2 * d_scores
    return Work(flops=pairs * each, useful_flops=visible * each, recomputed_flops=pairs * again)


def _attention(a: Arguments, out: object) -> Work:
    """(batch, heads, positions, width). Fewer heads of keys serve all heads of queries."""
    *outer, n_queries, _ = a["query"].shape
    n_keys = a["key"].shape[-2]
    n_heads, pairs = prod(outer), prod(outer) * n_queries * n_keys
    mask = a.get("attn_mask", a.get("attn_bias"))
    if a["is_causal"]:
        visible = n_heads * visible_pairs(n_queries, n_keys, bottom_right=False)
    elif mask is None or mask.numel() == 0 or _has_no_values(mask):
        visible = pairs
    else:
        lowest = False if mask.dtype == torch.bool else torch.finfo(mask.dtype).min
        visible = int((mask > lowest).sum()) * pairs // mask.numel()
    return _attention_work(a, pairs, visible)


def _attention_of_sequences(a: Arguments, out: object) -> Work | None:
    """(batch, positions, heads, width), or sequences laid end to end with where each begins.

    The causal diagonal of `flash` ends at the bottom right; `efficient` says which it takes.
    """
    query, key = a["query"], a["key"]
    starts = a.get("cum_seq_q", a.get("cu_seqlens_q")), a.get("cum_seq_k", a.get("cu_seqlens_k"))
    unclear = ("bias", "seqused_k", "seqlen_k", "block_table", "window_size")
    sides = (a.get("window_size_left"), a.get("window_size_right"))
    if any(a.get(name) is not None for name in unclear) or any(s not in (None, -1) for s in sides):
        return None
    if starts[0] is None:
        sequences = [(query.shape[1], key.shape[1])] * query.shape[0]
    elif _has_no_values(starts[0]):
        return None
    else:
        sequences = list(zip(*(start.diff().tolist() for start in starts), strict=True))
    kind = a.get("custom_mask_type", _BOTTOM_RIGHT * bool(a.get("is_causal")))
    n_heads = query.shape[-2]
    pairs = n_heads * sum(q * k for q, k in sequences)
    visible = n_heads * sum(
        visible_pairs(q, k, bottom_right=kind == _BOTTOM_RIGHT) for q, k in sequences
    )
    return _attention_work(a, pairs, visible if kind else pairs)


# Recurrent layers in one operator


def _recurrent(times: int) -> Formula:
    """Every matrix of weights meets every position once; backward twice."""

    def formula(a: Arguments, out: object) -> Work:
        weights = tree_leaves([value for name, value in a.items() if name.startswith("weight")])
        matrices = [w for w in weights if isinstance(w, Tensor) and w.ndim == 2]
        positions = a["input"].numel() // a["input"].shape[-1]
        return _dense(times * 2 * positions * sum(w.numel() for w in matrices))

    return formula


_FORMULAS: dict[str, Formula] = {
    "mm": _product("self", "mat2"),
    "bmm": _product("self", "mat2"),
    "_int_mm": _product("self", "mat2"),
    "_scaled_mm": _product("self", "mat2"),
    "_grouped_mm": _grouped_product,
    "_scaled_grouped_mm": _grouped_product,
    "addmm": _product("mat1", "mat2"),
    "_addmm_activation": _product("mat1", "mat2"),
    "addbmm": _product("batch1", "batch2"),
    "baddbmm": _product("batch1", "batch2"),
    "mv": _vector_product("self"),
    "addmv": _vector_product("mat"),
    "dot": _vector_product("self"),
    "vdot": _vector_product("self"),
    "convolution": _conv,
    "_convolution": _conv,
    "convolution_overrideable": _conv,
    "convolution_backward": _conv_backward,
    "convolution_backward_overrideable": _conv_backward,
    "conv_tbc": _conv_tbc,
    "mkldnn_rnn_layer": _recurrent(1),
    "mkldnn_rnn_layer_backward": _recurrent(2),
    "_cudnn_rnn": _recurrent(1),
    "_cudnn_rnn_backward": _recurrent(2),
}
for _kind in ("flash_attention_for_cpu", "flash_attention", "efficient_attention",
              "cudnn_attention", "fused_attention_overrideable"):  # fmt: skip
    _FORMULAS[f"_scaled_dot_product_{_kind}"] = _attention
    _FORMULAS[f"_scaled_dot_product_{_kind}_backward"] = _attention
for _kind in ("flash", "efficient"):
    _FORMULAS[f"_{_kind}_attention_forward"] = _attention_of_sequences
    _FORMULAS[f"_{_kind}_attention_backward"] = _attention_of_sequences


def formula_of(func: torch._ops.OpOverload) -> Formula | None:
    """The formula of one of torch's operators; in place it is that of the same name without _."""
    if func.namespace != "aten":
        return None
    name = func._schema.name.removeprefix("aten::")
    return _FORMULAS.get(name) or _FORMULAS.get(name.removesuffix("_"))


def arguments(func: torch._ops.OpOverload, args: tuple, kwargs: dict) -> Arguments:
    """All arguments of a call by name, defaults filled in."""
    named = {
        argument.name: argument.default_value
        for argument in func._schema.arguments
        if argument.has_default_value()
    }
    named |= {a.name: value for a, value in zip(func._schema.arguments, args, strict=False)}
    return named | kwargs
