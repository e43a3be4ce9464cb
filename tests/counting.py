"""Counting a step of any model or of none."""

from torch import nn

from lmtime.timing import Ownership, region
from lmtime.timing.counters import Counts, count
from lmtime.timing.flops import Work


def counted(step, model=None, owners=None) -> Counts:
    """Without owners, all is `outside`."""
    return count(step, Ownership(model or nn.Module(), owners or {}))


def flops(step) -> int:
    """Executed, with nothing masked, padded, computed again or uncounted."""
    found = counted(step)
    assert found.total == Work(found.total.flops, found.total.bytes, found.total.flops)
    assert not found.uncounted
    return found.total.flops


def counted_training(model, optimizer, tokens, targets) -> Counts:
    """Of a whole step after the first, which makes the optimizer's states."""

    def step():
        with region("optimizer", "optimizer"):
            optimizer.zero_grad()
        model(tokens, targets).backward()
        optimizer.step()

    step()
    return count(step, Ownership(model, model.owners, optimizer))
