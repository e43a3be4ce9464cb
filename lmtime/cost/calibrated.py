"""Time as a device was measured to take it: each operator at the rate of its kind and size.

Where the roofline says what a device could do at best, a full calibration knows what it does: the
rate of a product of these sizes, of a pass over so many bytes, with what launching it costs. One
that ended with steps also knows what operators take inside a step (`in_step`).
"""

from __future__ import annotations

from collections.abc import Iterable

from lmtime.calibration import Calibration
from lmtime.cost import in_step
from lmtime.cost.operators import Cost

ELEMENTWISE = "gelu"  # stands for passes that have no row of their own: it allocates its result


def time_ms(operators: Iterable[Cost], calibration: Calibration, dtype: str = "fp32") -> float:
    """Of operators that run one after another, in ms; nothing else is in it."""
    if calibration.in_step:
        return 1e3 * in_step.seconds(operators, calibration, dtype)
    return 1e3 * sum(
        _pass_s(operator, calibration)
        if operator.only_moves
        else in_step.alone_s(operator, calibration, dtype)
        for operator in operators
        if operator.bytes > 0
    )


def _pass_s(operator: Cost, calibration: Calibration) -> float:
    kind = operator.kind if calibration.has_pass(operator.kind) else ELEMENTWISE
    return operator.bytes / calibration.pass_bytes_per_s(kind, operator.bytes)
