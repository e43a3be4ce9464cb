"""Profile a step that the user wrote, of any PyTorch model."""

from __future__ import annotations

from collections.abc import Callable

from torch import nn
from torch.optim import Optimizer

from lmtime.errors import UsageError
from lmtime.timing.breakdown import Breakdown, measure
from lmtime.timing.clock import clock_for
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

    step: runs one whole step, as in training; it is called some dozens of times. Code outside of
    modules gets an owner by `with lmtime.timing.region("name"):`. groups: {module name: owner};
    by default each child of the model owns its time, those of a list or sequence one by one.
    A model compiled by `torch.compile` runs no hooks: profile the one it was made from.
    """
    if hasattr(model, "_orig_mod"):
        raise UsageError(
            "the model is compiled by torch.compile and runs no hooks: profile the model itself, "
            "or mark parts of the step by lmtime.timing.region"
        )
    names = dict(model.named_modules())
    if groups is None:
        groups = default_groups(model)
    for name in groups:
        if name not in names:
            raise UsageError(f"groups names the module {name!r}, which the model does not have")
    device = next((p.device.type for p in model.parameters()), "cpu")
    ownership = Ownership(model, groups, optimizer)
    return measure(lambda: step, ownership, clock_for(device), rule, say=say)


def default_groups(model: nn.Module) -> dict[str, str]:
    """Each child of the model under its own name; a list's or a sequence's members one by one."""
    owners = {}
    for name, child in model.named_children():
        if isinstance(child, nn.ModuleList | nn.Sequential | nn.ModuleDict):
            owners |= {f"{name}.{key}": f"{name}.{key}" for key, _ in child.named_children()}
        else:
            owners[name] = name
    return owners
