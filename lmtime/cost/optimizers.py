"""Traffic of one update by torch's optimizers, as each way of running them executes it. Traceable.

A loop calls every operator for every tensor, as torch does on a CPU unless asked otherwise;
`foreach` calls it once for all of them, as torch does on a GPU; fused is one kernel that reads and
writes each value once. Counted is a step after the first, which makes the states.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

from lmtime.cost.operators import Cost, traffic
from lmtime.errors import unknown

LOOP, FOREACH, FUSED = "loop", "foreach", "fused"
STEP_BYTES = 4  # a count of steps is fp32 whatever the weights are


@dataclass(frozen=True)
class Optimizer:
    """What torch's optimizer of one name reads and writes, in values for each parameter.

    passes: of one operator after the other, not fused. fused: of the one kernel. n_copies: values
    of state for each parameter. kind: of the measured rate that is nearest. decay: of the operator
    that weight decay adds, which a fused kernel does on the way. decays: whether there is any.
    scratch: tensors beside them that a loop makes for one, and one call for all of the parameters.
    way: LOOP, FOREACH or FUSED.
    """

    passes: tuple[int, ...]
    fused: int
    n_copies: int
    kind: str
    decay: int = 3
    decays: bool = False
    counts_steps: bool = False
    scratch: tuple[int, int] = (0, 0)
    way: str = LOOP

    def update(self, sizes: Sequence[Any], value_bytes: Any) -> list[Cost]:
        """Operators of one update; sizes: of each tensor of parameters, in values."""
        passes = (self.decay, *self.passes) if self.decays else self.passes
        values, launches = sum(passes), len(passes)
        if self.way == FUSED:
            values, launches = self.fused, 1
        elif self.way == LOOP:
            launches *= len(sizes)
        moved = traffic(values * sum(sizes), value_bytes, kind=self.kind, launches=launches)
        return [moved, *self._steps(len(sizes))] if self.counts_steps else [moved]

    def temporary(self, sizes: Sequence[float]) -> float:
        """The most values that an update without decay makes on the way, beside the states."""
        for_one, for_all = self.scratch
        return {LOOP: for_one * max(sizes), FOREACH: for_all * sum(sizes), FUSED: 0}[self.way]

    def _steps(self, n: int) -> list[Cost]:
        """The count of steps of each of n tensors: one more, then read.

        A loop adds a number and reads each count once. In one call the number is a tensor, and
        each count is read twice, once for each of the two corrections.
        """
        values, launches = {
            LOOP: (3 * n, 2 * n),
            FOREACH: (2 * n + 1 + 2 * n, 1 + 2 * n),
            FUSED: (3 * n, 1),
        }[self.way]
        return [traffic(values, STEP_BYTES, launches=launches)]


_ADAM = (3, 2, 3, 2, 2, 2, 4)  # mean; square, scaled and added to; root, two scalings; update
OPTIMIZERS = {
    "sgd": Optimizer((3,), 3, 0, "sgd_nesterov"),
    # Scale, add the gradient; look ahead where it does; update.
    "momentum": Optimizer((2, 3, 3), 5, 1, "sgd_nesterov"),
    "nesterov": Optimizer((2, 3, 3, 3), 5, 1, "sgd_nesterov", scratch=(1, 0)),
    "adam": Optimizer(_ADAM, 7, 2, "adamw", counts_steps=True, scratch=(2, 1)),
}
OPTIMIZERS["adamw"] = replace(OPTIMIZERS["adam"], decay=2, decays=True)
NAMES = (*OPTIMIZERS, *(f"{name}-{FUSED}" for name in OPTIMIZERS))


def find_optimizer(name: str, *, unfused: str = LOOP) -> Optimizer:
    """By a name such as `adamw` or `adamw-fused`; unfused: how one runs that is not fused."""
    if name not in NAMES:
        raise unknown("optimizer", name, list(NAMES))
    plain = name.removesuffix(f"-{FUSED}")
    return replace(OPTIMIZERS[plain], way=unfused if plain == name else FUSED)
