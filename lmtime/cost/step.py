"""A training step in groups of owners, and what launching its operators takes. Traceable."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from lmtime.cost.operators import Cost
from lmtime.cost.output_layers import Rows
from lmtime.cost.roofline import band_ms
from lmtime.records import group_of

GROUPS = ("embedding", "body", "output layer", "optimizer")
LAUNCH_S = 5e-6  # of one operator on a GPU at best; an estimate, hosts need 5 to 10


def grouped(rows: Rows) -> dict[str, list[Cost]]:
    """{group: operators}; what nobody owns, one value of traffic, is left out."""
    found: dict[str, list[Cost]] = {name: [] for name in GROUPS}
    for (owner, _), operators in rows.items():
        if owner != "outside":
            found[group_of(owner)] += operators
    return found


def group_ms(
    rows: Rows, flops_per_s: Any, bytes_per_s: Any, *, maximum: Callable[[Any, Any], Any] = max
) -> dict[str, Any]:
    """Middle of the roofline band of each group in ms, of numbers or parameters."""
    return {
        name: band_ms(operators, flops_per_s, bytes_per_s, maximum=maximum).middle
        for name, operators in grouped(rows).items()
    }


def n_operators(rows: Rows) -> int:
    """How many operators of torch the step launches."""
    return sum(op.launches for operators in grouped(rows).values() for op in operators)


def launch_ms(rows: Rows) -> float:
    """The least time in which a host launches them one after another: an estimate."""
    return 1e3 * LAUNCH_S * n_operators(rows)
