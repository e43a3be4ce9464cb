"""FLOPs and bytes of the operators that are really executed, owned by the same rule as time.

The conventions stand in `flops.py` and `traffic.py`. An operator that may hide products and has no
formula is listed in `Counts.uncounted`, never silently 0; so is the replay of a CUDA graph.

A function of `torch.compile` runs as plain operators while it is counted: its FLOPs are the same,
its bytes are those of eager execution, not of fused kernels. Not seen is what runs in threads that
the step starts itself, and what is fused in the backward pass of a forward pass that was compiled
before the count.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from functools import cache
from inspect import signature

import torch
from torch import Tensor, nn
from torch._ops import HigherOrderOperator
from torch._subclasses.fake_tensor import FakeTensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves
from torch.utils.checkpoint import CheckpointFunction
from torch.utils.flop_counter import flop_registry

from lmtime.timing.flops import Work, arguments, formula_of
from lmtime.timing.ownership import Ownership
from lmtime.timing.timer import Step
from lmtime.timing.traffic import bytes_of, is_view, size

# Operators of torch without products, by the first words of their names, where no tag says so.
WITHOUT_PRODUCTS = """
    adaptive addr alias amp as_strided avg_pool2d avg_pool3d batch_norm bernoulli binary_cross
    bincount bucketize cat cauchy chunk_cat clone col2im constant_pad copy ctc_loss cummax
    cummin cumprod cumsum diag diagonal dist elu embedding empty expand exponential fill flip
    foreach full fused gather geometric glu grid_sampler hardsigmoid hardswish hardtanh has_same
    histc huber im2col index is_same kthvalue leaky_relu lift local_scalar log logcumsumexp
    masked max median mish mode mse_loss multi_margin multilabel multinomial nanmedian
    native_batch native_dropout native_group native_layer native_norm new nll nonzero normal
    ones pack_padded poisson prelu put quantize rand randint randn random reflection renorm
    repeat replication reshape resize roll rot90 rrelu safe_softmax scatter searchsorted segment
    select set slice smooth_l1 soft_margin softmax softplus softshrink sort sparse_coo split
    stack standard_gamma take thnn_fused threshold to topk trace transpose tril triu unfold
    uniform unique unique2 unsafe upsample view weight_norm zero zeros
"""


@dataclass
class Counts:
    """Work of one step.

    by_owner: {(owner, phase): Work}. by_operator: how often each operator ran. uncounted: how
    often each of those ran that may hide products and has no formula; their bytes are counted.
    """

    by_owner: dict[tuple[str, str], Work] = field(default_factory=lambda: defaultdict(Work))
    by_operator: dict[str, int] = field(default_factory=lambda: defaultdict(int))
    uncounted: dict[str, int] = field(default_factory=lambda: defaultdict(int))

    @property
    def total(self) -> Work:
        """All owners and phases together."""
        return sum(self.by_owner.values(), Work())


class _Counter(TorchDispatchMode):
    supports_higher_order_operators = True

    def __init__(self, ownership: Ownership, counts: Counts) -> None:
        super().__init__()
        self._ownership = ownership
        self._counts = counts
        self._builds_graph: list[bool] = []  # of each running backward pass: `create_graph`
        self._checkpoints: list[bool] = []  # one for each checkpoint whose forward pass runs

    @contextmanager
    def watching(self) -> Iterator[None]:
        """Learn what a backward pass and a checkpoint's forward pass are asked for."""

        def running(original: Callable, stack: list[bool], option: str) -> Callable:
            def run(*args: object, **kwargs: object) -> object:
                called = signature(original).bind(*args, **kwargs).arguments
                stack.append(bool(called.get(option)))
                try:
                    return original(*args, **kwargs)
                finally:
                    stack.pop()

            return run

        def replay(graph: torch.cuda.CUDAGraph) -> None:
            self._counts.uncounted["CUDAGraph.replay"] += 1
            graphs(graph)

        backward, grad = torch.autograd.backward, torch.autograd.grad
        forward, graphs = CheckpointFunction.forward, torch.cuda.CUDAGraph.replay
        torch.autograd.backward = running(backward, self._builds_graph, "create_graph")
        torch.autograd.grad = running(grad, self._builds_graph, "create_graph")
        CheckpointFunction.forward = staticmethod(running(forward, self._checkpoints, "args"))
        torch.cuda.CUDAGraph.replay = replay
        try:
            yield
        finally:
            torch.autograd.backward, torch.autograd.grad = backward, grad
            CheckpointFunction.forward = staticmethod(forward)
            torch.cuda.CUDAGraph.replay = graphs

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        kwargs = kwargs or {}
        if any(not issubclass(t, nn.Parameter | FakeTensor) and t is not Tensor for t in types):
            return NotImplemented  # the subclass first: what it is made of comes back here
        if isinstance(func, HigherOrderOperator):
            out = func(*args, **kwargs)
            moved = size(*tree_leaves((args, kwargs, out)))
            self._note(str(func), _flops_by_torch(func, args, kwargs, out), moved)
            return out
        if func.namespace == "prim":
            return func(*args, **kwargs)
        if formula_of(func) is None and not any(t.is_nested for t in _tensors(args)):
            with self:  # in inference mode composed operators (`linear`) arrive whole
                out = func.decompose(*args, **kwargs)
            if out is not NotImplemented:
                return out
        out = func(*args, **kwargs)
        moved = bytes_of(func, args, kwargs, out)
        self._note(str(func._overloadpacket), _flops(func, args, kwargs, out), moved)
        return out

    def _note(self, name: str, work: Work | None, moved: int) -> None:
        if work is None:
            self._counts.uncounted[name] += 1
            work = Work()
        if work.flops and self._runs_again:
            work = replace(work, recomputed_flops=work.flops)
        if work.flops or moved:
            self._counts.by_owner[self._ownership.current] += replace(work, bytes=moved)
            self._counts.by_operator[name] += 1

    @property
    def _runs_again(self) -> bool:
        """Whether a forward pass runs inside a backward pass.

        It records gradients anew, but for that of a checkpoint in one (`use_reentrant=True`). Of a
        backward pass that records a graph itself (`create_graph`) this cannot be told.
        """
        in_backward = torch._C._current_graph_task_id() != -1
        forward = torch.is_grad_enabled() or bool(self._checkpoints)
        return in_backward and forward and not any(self._builds_graph)


def _tensors(*values: object) -> list[Tensor]:
    return [t for t in tree_leaves(values) if isinstance(t, Tensor)]


def _flops(func: torch._ops.OpOverload, args: tuple, kwargs: dict, out: object) -> Work | None:
    """None of what may hide products and has no formula."""
    tensors = _tensors(args, kwargs)
    formula = formula_of(func)
    if formula is not None:
        plain = (t.layout in (torch.strided, torch._mkldnn) and not t.is_nested for t in tensors)
        if not all(plain) or any(t.is_complex() for t in tensors):
            return None
        return formula(arguments(func, args, kwargs), out)
    if not any(t.is_floating_point() or t.is_complex() for t in tensors) or is_view(func):
        return Work()  # nothing, ids or a new tensor
    namespace, _, name = func._schema.name.partition("::")
    if namespace in ("aten", "prims") and _has_no_products(name):
        return Work()
    return _flops_by_torch(func._overloadpacket, args, kwargs, out)


@cache
def _has_no_products(name: str) -> bool:
    packet = getattr(torch.ops.aten, name, None)
    overloads = [getattr(packet, overload) for overload in packet.overloads()] if packet else []
    if any({torch.Tag.pointwise, torch.Tag.reduction} & set(o.tags) for o in overloads):
        return True
    return f"{name.strip('_')}_".startswith(tuple(f"{w}_" for w in WITHOUT_PRODUCTS.split()))


def _flops_by_torch(operator: object, args: tuple, kwargs: dict, out: object) -> Work | None:
    """What is registered with torch's counter, also by the user (`register_flop_formula`)."""
    if operator not in flop_registry:
        return None
    flops = flop_registry[operator](*args, **kwargs, out_val=out)
    return Work(flops=flops, useful_flops=flops)


def count(step: Step, ownership: Ownership) -> Counts:
    """Run one step and count what it executes, owner by owner, phase by phase."""
    counts = Counts()
    counter = _Counter(ownership, counts)
    with (
        torch.compiler.set_stance("force_eager"),  # a mode and `fullgraph=True` exclude each other
        counter.watching(),
        ownership.watching(lambda owner, phase: None),
        counter,
    ):
        step()
    return counts
