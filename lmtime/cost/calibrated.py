"""Time as a device was measured to take it: each operator at the rate of its kind and size.

Where the roofline says what a device could do at best, a full calibration knows what it does: the
rate of a product of these sizes, of a pass over so many bytes, with what launching it costs. Two
things differ between a call that is repeated and the same call in a step, and are modelled:

- What an optimizer meets was last met a step ago: it runs at the rate of its largest pass.
- On a CPU the C library gives arrays above a limit back to the system, so that a result above it
  is new memory at every step, page by page: it is made at the rate of the largest pass too.
"""

from __future__ import annotations

import math
from collections.abc import Iterable

from lmtime.calibration import Calibration
from lmtime.cost.operators import Cost

FRESH_BYTES = 2**25  # glibc's limit on 64-bit systems (DEFAULT_MMAP_THRESHOLD_MAX)
COLD = ("sgd_nesterov", "adamw")
ELEMENTWISE = "gelu"  # stands for passes that have no row of their own: it allocates its result
# Part of an operator's traffic that is its result, by kind.
WRITTEN = {
    "log_softmax": 1 / 2,
    "log_softmax_backward": 1 / 3,
    "embedding_backward": 0.9,
    "fill": 1,
}
WRITTEN_ELSE = 1 / 3


def time_ms(
    operators: Iterable[Cost],
    calibration: Calibration,
    dtype: str = "fp32",
    *,
    in_step: float = 1.0,
) -> float:
    """Of operators that run one after another, in ms; nothing else is in it.

    in_step: how much longer products take in a step than repeated on the same operands.
    """
    return 1e3 * sum(
        product_s(operator, calibration, dtype) * in_step
        if not operator.only_moves
        else _pass_s(operator, calibration)
        for operator in operators
        if operator.bytes > 0
    )


def product_s(operator: Cost, calibration: Calibration, dtype: str = "fp32") -> float:
    """Seconds of a product or convolution, repeated on the same operands."""
    if operator.shape is None:
        return operator.flops / calibration.flops_per_s(dtype)
    return operator.flops / calibration.gemm_flops_per_s(dtype, *operator.shape)


def _pass_s(operator: Cost, calibration: Calibration) -> float:
    kind, n_bytes = operator.kind or ELEMENTWISE, operator.bytes
    written = WRITTEN.get(kind, WRITTEN_ELSE) * n_bytes
    is_fresh = calibration.device == "cpu" and written > FRESH_BYTES
    if kind in COLD or is_fresh:
        n_bytes = math.inf  # beyond the largest size its rate is kept
    known = {row.operator for row in calibration.passes}
    rate = calibration.pass_bytes_per_s(kind if kind in known else ELEMENTWISE, n_bytes)
    return operator.bytes / rate
