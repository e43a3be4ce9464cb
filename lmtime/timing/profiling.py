"""Profile a step that the user wrote, of any PyTorch model."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from dataclasses import replace

from torch import nn
from torch.optim import Optimizer

from lmtime.errors import UsageError
from lmtime.timing.breakdown import Breakdown, measure
from lmtime.timing.clock import clock_for
from lmtime.timing.counters import count
from lmtime.timing.ownership import Ownership
from lmtime.timing.timer import Step, StopRule


def profile(
    step: Step,
    *,
    model: nn.Module,
    optimizer: Optimizer | None = None,
    groups: dict[str, str] | None = None,
    rule: StopRule | None = None,
    say: Callable[[int, float], None] = lambda n, spread: None,
) -> Breakdown:
    """Where the time of `step()` goes: forward, backward and update, exactly summed.

    step: runs one whole step, as in training; it is called some dozens of times, and once more to
    count its FLOPs and bytes. Code outside of modules gets an owner by `with
    lmtime.timing.region("name"):`. groups: {module name: owner}; by default each child of the
    model owns its time, those of a list or sequence one by one. A module that `torch.compile` made
    runs no hooks inside: it is one row, and a warning says so.
    """
    names = dict(model.named_modules())
    if groups is None:
        groups = default_groups(model)
    for name in groups:
        if name not in names:
            raise UsageError(f"groups names the module {name!r}, which the model does not have")
    groups = _without_compiled(names, groups)
    device = next((p.device.type for p in model.parameters()), "cpu")
    ownership = Ownership(model, groups, optimizer)
    found = measure(lambda: step, ownership, clock_for(device), rule, say=say)
    return replace(found, counts=count(step, ownership))


def _without_compiled(names: dict[str, nn.Module], groups: dict[str, str]) -> dict[str, str]:
    """The groups that hooks can tell apart: none lies inside a compiled module."""
    compiled = [name for name, module in names.items() if hasattr(module, "_orig_mod")]
    if not compiled:
        return groups
    shown = ", ".join(name or "the model" for name in compiled)
    warnings.warn(
        f"compiled by torch.compile: {shown}. What runs inside runs no hooks and is one row; "
        f"mark other parts of the step by lmtime.timing.region",
        stacklevel=3,
    )
    inside = tuple(f"{name}." if name else "" for name in compiled)
    kept = {name: owner for name, owner in groups.items() if not name.startswith(inside)}
    return {name: name or "compiled model" for name in compiled} | kept


def default_groups(model: nn.Module) -> dict[str, str]:
    """Each child of the model under its own name; a list's or a sequence's members one by one."""
    owners = {}
    for name, child in model.named_children():
        if isinstance(child, nn.ModuleList | nn.Sequential | nn.ModuleDict):
            owners |= {f"{name}.{key}": f"{name}.{key}" for key, _ in child.named_children()}
        else:
            owners[name] = name
    return owners
