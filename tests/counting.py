"""Counting a step of any model or of none."""

from torch import nn

from lmtime.timing import Ownership
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
