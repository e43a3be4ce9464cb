"""Who owns the work that is being done now: a module, a region, or nobody (`outside`).

Forward, a module owns what happens between its pre-hook and its post-hook, less what its
children own. Backward, a node of the autograd graph belongs to whoever owned the moment it was
created (its sequence number tells), and the accumulation of a gradient to the parameter's owner.
No tensor is wrapped, so in-place modules and modules that return dictionaries work, and the
weight gradient of a first layer or an embedding is seen, which module backward hooks miss.
"""

from __future__ import annotations

import threading
from bisect import bisect_right
from collections.abc import Callable, Iterable, Iterator
from contextlib import ExitStack, contextmanager
from functools import partial

import torch
from torch import Tensor, nn

OUTSIDE = "outside"
OPTIMIZER = "optimizer"
MARKS = "marks"  # work that only the measurement does

Listener = Callable[[str, str], None]  # called with the new owner and phase at every change

_active: Ownership | None = None


@contextmanager
def region(name: str, phase: str | None = None) -> Iterator[None]:
    """Give what runs inside to the owner `name`; free when nothing is being measured.

    Autograd nodes created inside belong to it too, so its backward pass shows under its name.
    """
    ownership = _active
    if ownership is None:
        yield
        return
    frame = ownership.enter(name, phase)
    try:
        yield
    finally:
        ownership.leave(frame)


class Ownership:
    """Watches one model (and its optimizer) and tells a listener each change of owner or phase.

    owners: module name -> owner; a module without an entry belongs where its parent does, and the
    model itself ("") to whoever calls it. Of tied parameters the first owner counts. Only modules
    whose owner is not their parent's carry hooks, so a module should be called from its parent.
    """

    def __init__(
        self,
        model: nn.Module,
        owners: dict[str, str],
        optimizer: torch.optim.Optimizer | None = None,
    ) -> None:
        self._optimizer = optimizer
        self._modules: list[tuple[nn.Module, str]] = []
        self._parameter_owner: dict[int, str] = {}
        self.parameters: dict[str, int] = {}  # trainable values by owner
        names = {name: _owner_of(name, owners) for name, _ in model.named_modules()}
        for name, module in model.named_modules():
            parent = names.get(name.rpartition(".")[0], OUTSIDE) if name else OUTSIDE
            if names[name] != parent:
                self._modules.append((module, names[name]))
            for parameter in module.parameters(recurse=False):
                if id(parameter) not in self._parameter_owner:
                    self._parameter_owner[id(parameter)] = owner = names[name]
                    self.parameters[owner] = self.parameters.get(owner, 0) + parameter.numel()
        self._reset(lambda owner, phase: None)

    def _reset(self, listener: Listener) -> None:
        self._listener = listener
        self._stack: list[tuple[str, str]] = [(OUTSIDE, "forward")]
        self._timeline: dict[int, tuple[list[int], list[str]]] = {}
        self._node_frames: list[int] = []  # where in the stack each running backward's node stands
        self._handles: list = []
        self._note_sequence()

    @property
    def current(self) -> tuple[str, str]:
        """Owner and phase of this moment."""
        return self._stack[-1]

    def owner_of_parameter(self, parameter: nn.Parameter) -> str:
        """The owner whose gradient accumulation this parameter's is."""
        return self._parameter_owner.get(id(parameter), OUTSIDE)

    @contextmanager
    def watching(self, listener: Listener) -> Iterator[None]:
        """Hooks are in place only inside: a plain step runs untouched."""
        global _active
        if _active is not None:
            raise RuntimeError("another model is being measured: measure one at a time")
        self._reset(listener)
        with ExitStack() as stack:
            for module, owner in self._modules:
                stack.callback(self._hook_module(module, owner))
            if self._optimizer is not None:
                stack.callback(self._hook_optimizer(self._optimizer))
            for name in ("backward", "grad"):
                stack.callback(setattr, torch.autograd, name, getattr(torch.autograd, name))
                wrapped = partial(self._run_backward, getattr(torch.autograd, name))
                setattr(torch.autograd, name, wrapped)
            _active = self
            try:
                yield
            finally:
                _active = None
                for handle in self._handles:
                    handle.remove()

    # -- changes of owner ---------------------------------------------------------------------

    def enter(self, owner: str, phase: str | None = None) -> int:
        """Make `owner` the current one; returns what `leave` needs."""
        before = self._stack[-1]
        self._stack.append((owner, phase or before[1]))
        self._announce(before)
        return len(self._stack) - 1

    def leave(self, frame: int) -> None:
        """Return to the owner before `enter`; frames left open above are closed with it."""
        if frame >= len(self._stack):
            return
        before = self._stack[-1]
        del self._stack[frame:]
        self._announce(before)

    def _announce(self, before: tuple[str, str]) -> None:
        if self._stack[-1] != before:
            self._note_sequence()
            self._listener(*self._stack[-1])

    def _note_sequence(self) -> None:
        starts, owners = self._timeline.setdefault(threading.get_ident(), ([], []))
        starts.append(torch._C._autograd._get_sequence_nr())
        owners.append(self._stack[-1][0])

    # -- forward ------------------------------------------------------------------------------

    def _hook_module(self, module: nn.Module, owner: str) -> Callable[[], None]:
        frames: list[int] = []

        def before(*_: object) -> None:
            frames.append(self.enter(owner))

        def after(*_: object) -> None:
            if frames:
                self.leave(frames.pop())

        # always_call: a recomputed module may end in the exception that stops the recomputation.
        handles = [
            module.register_forward_pre_hook(before),
            module.register_forward_hook(after, always_call=True),
        ]
        return lambda: [handle.remove() for handle in handles]

    def _hook_optimizer(self, optimizer: torch.optim.Optimizer) -> Callable[[], None]:
        frames: list[int] = []
        handles = [
            optimizer.register_step_pre_hook(
                lambda *_: frames.append(self.enter(OPTIMIZER, OPTIMIZER))
            ),
            optimizer.register_step_post_hook(lambda *_: self.leave(frames.pop())),
        ]
        return lambda: [handle.remove() for handle in handles]

    # -- backward -----------------------------------------------------------------------------

    def _run_backward(self, original: Callable, *args: object, **kwargs: object):
        """Runs in place of `torch.autograd.backward`, also when a checkpoint nests one."""
        tensors = args[0] if args else kwargs.get("tensors", kwargs.get("outputs", ()))
        frame = self.enter(MARKS, "backward")
        self._arm(tensors)
        self.leave(frame)
        frame = self.enter(self.current[0], "backward")
        self._node_frames.append(frame)
        try:
            return original(*args, **kwargs)
        finally:
            self._node_frames.pop()
            self.leave(frame)

    def _arm(self, tensors: Tensor | Iterable[Tensor]) -> None:
        """Ask every node reachable from the tensors to say when it starts."""
        roots = [tensors] if isinstance(tensors, Tensor) else list(tensors)
        pending = [root.grad_fn for root in roots if isinstance(root, Tensor)]
        seen = set(pending)
        while pending:
            node = pending.pop()
            if node is None:
                continue
            start = partial(self._start_node, self._owner_of_node(node))
            self._handles.append(node.register_prehook(start))
            for following, _ in node.next_functions:
                if following not in seen:
                    seen.add(following)
                    pending.append(following)

    def _owner_of_node(self, node: torch.autograd.graph.Node) -> str:
        variable = getattr(node, "variable", None)
        if variable is not None:
            return self.owner_of_parameter(variable)
        starts, owners = self._timeline.get(threading.get_ident(), ([], [OUTSIDE]))
        return owners[max(bisect_right(starts, node._sequence_nr()) - 1, 0)]

    def _start_node(self, owner: str, _grads: object) -> None:
        """The node owns all until the next one starts, so what a recomputation left is closed."""
        before = self._stack[-1]
        frame = self._node_frames[-1]
        del self._stack[frame:]
        self._stack.append((owner, "backward"))
        self._announce(before)


def _owner_of(name: str, owners: dict[str, str]) -> str:
    """The entry of the module or of its nearest ancestor."""
    while name not in owners:
        if not name:
            return OUTSIDE
        name = name.rpartition(".")[0]
    return owners[name]
