"""What an operator of a profile is, told by its name: kind of work, work at all, a host wait."""

from __future__ import annotations

from functools import cache

import torch

from lmtime.timing.traffic import is_view

PRODUCTS = "matrix products"
SOFTMAX = "softmax passes"
INDEXING = "index and scatter"
ELEMENTWISE = "elementwise and copies"
WAITING = "waiting"
NO_OPERATOR = "without an operator"  # on a GPU: kernels of a CUDA graph, or launched from Python
KINDS = (PRODUCTS, SOFTMAX, INDEXING, ELEMENTWISE, WAITING, NO_OPERATOR)


def _words(text: str) -> frozenset[str]:
    return frozenset(text.split())


# First words of names, without namespace and leading underscores.
NAMES = {
    WAITING: "local_scalar_dense item is_nonzero equal allclose",
    SOFTMAX: """log_softmax softmax safe_softmax masked_softmax logsumexp
        nll_loss nll_loss2d cross_entropy""",
    INDEXING: """index gather scatter nonzero argwhere take put masked embedding unique unique2
        unsafe_index unsafe_masked_index unsafe_put one_hot bincount searchsorted bucketize
        repeat_interleave""",
    PRODUCTS: """mm addmm addmv addbmm baddbmm bmm mv dot vdot inner matmul linear addr ger outer
        einsum tensordot bilinear trilinear conv conv1d conv2d conv3d conv_tbc convolution
        mkldnn_convolution mkldnn_linear mkldnn_rnn mkl_linear mkldnn_transpose onednn
        cudnn_convolution cudnn_rnn miopen_convolution thnn_conv2d slow_conv2d slow_conv3d
        slow_conv_dilated2d scaled_dot_product flash_attention efficient_attention
        cudnn_attention native_multi_head_attention scaled_mm int_mm grouped_mm
        scaled_grouped_mm weight_int8pack_mm weight_int4pack_mm lstm gru rnn_tanh rnn_relu""",
}
KIND_OF_WORD = {f"{word}_": kind for kind, words in NAMES.items() for word in words.split()}

# They ask for a value, or for a size that depends on values: on a GPU the host waits for it.
SYNCS = _words(
    """aten::_local_scalar_dense aten::nonzero aten::masked_select aten::equal aten::_unique
    aten::_unique2 aten::unique_dim aten::unique_consecutive aten::unique_dim_consecutive
    aten::bincount"""
)
# On a GPU: the calls of the CUDA runtime and driver in which the host waits for the device.
SYNC_CALLS = _words(
    """cudaStreamSynchronize cudaDeviceSynchronize cudaEventSynchronize cudaMemcpy
    cuStreamSynchronize cuCtxSynchronize cuEventSynchronize cuMemcpyDtoH_v2"""
)

# They make room or change a tensor's description, and no schema says that nothing is moved.
ALLOCATIONS = _words(
    """empty empty_like empty_strided empty_permuted new_empty new_empty_strided resize_
    resize_as_ set_ as_strided_ _resize_output_ _unsafe_view _reshape_alias alias detach_ lift
    record_stream is_pinned _has_compatible_shallow_copy_type"""
)


@cache
def kind_of(name: str) -> str | None:
    """The kind of work an operator's name tells, or None: elementwise, or part of another's."""
    bare = name.rpartition("::")[2].strip("_") + "_"
    # The longest word that fits, `masked_softmax` rather than `masked`.
    fitting = [word for word in KIND_OF_WORD if bare.startswith(word)]
    return KIND_OF_WORD[max(fitting, key=len)] if fitting else None


def is_operator(name: str) -> bool:
    """`aten::mm` is one; `MmBackward0` and `autograd::engine::evaluate_function: ...` are not."""
    namespace, _, bare = name.partition("::")
    return namespace.isidentifier() and bare.isidentifier()


@cache
def does_work(name: str) -> bool:
    """Whether an operator is no view, no allocation and not composed of others.

    Composed are those with no kernel of their own below autograd, as `linear` and `matmul`. The
    profile does not say which overload ran: those that write to an argument `out` do not count.
    """
    namespace, _, bare = name.partition("::")
    if not is_operator(name) or bare in ALLOCATIONS:
        return False
    packet = getattr(getattr(torch.ops, namespace), bare, None)
    overloads = [o for o in packet.overloads() if not o.endswith("out")] if packet else []
    known = [
        f for o in overloads if torch._C._dispatch_has_kernel((f := getattr(packet, o)).name())
    ]
    return not known or not all(is_view(func) or _is_composed(func) for func in known)


def _is_composed(func: torch._ops.OpOverload) -> bool:
    key = torch._C.DispatchKey.CompositeImplicitAutograd
    return torch._C._dispatch_has_kernel_for_dispatch_key(func.name(), key)
