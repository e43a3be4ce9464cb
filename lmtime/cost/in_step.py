"""What operators take inside a step: a few coefficients, fitted to steps that were measured.

An operator that is repeated alone finds its operands in the caches; in a step it meets them last
touched by others, behind a launch, in memory that was just allocated. No table of single calls
says what that costs. So a calibration may end with steps of a few shapes, and the time of a group
of operators is then

    seconds of a launch * launches
    + for products, convolutions and attention: a ratio * the time of the same product alone
    + for what moves: seconds a byte * bytes, by kind of pass

linear in coefficients that are never negative. Standard library only.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from lmtime.calibration import Calibration
from lmtime.cost.operators import Cost

Amounts = dict[str, float]
Sample = tuple[Sequence[Cost], float]  # the operators of one group and phase, and their seconds

LAUNCH, UPDATE_LAUNCH = "launch", "update launch"  # seconds of each; updates record no gradient
# To alone; a product by oneDNN is measured against the same by the BLAS.
RATIOS = ("product", "onednn_product", "conv", "conv_backward", "attention", "attention_backward")
UPDATE = "update"
# Kinds of passes that have a coefficient of their own, seconds a byte; all others share one.
PASSES = {
    "log_softmax": "log_softmax",
    "log_softmax_backward": "log_softmax_backward",
    "fill": "log_softmax_backward",  # it always comes before one
    "fused_softmax": "fused_softmax",
    "embedding": "embedding",
    "embedding_backward": "embedding_backward",
    "weight_norm": "weight_norm",
    "weight_norm_backward": "weight_norm",
    "sgd_nesterov": UPDATE,
    "adamw": UPDATE,
}
OTHER, OPERANDS = "elementwise", "operands"  # operands: of products, read and written
N_REWEIGHTED, LEAST_RESIDUAL = 12, 0.03
N_SWEEPS, TOLERANCE = 3000, 1e-9


def amounts(operators: Iterable[Cost], calibration: Calibration, dtype: str = "fp32") -> Amounts:
    """How much there is of what takes time: launches, seconds of products alone, bytes moved."""
    found: Amounts = {}
    for op in operators:
        if not op.bytes > 0:
            continue
        kind = PASSES.get(op.kind, OTHER)
        _add(found, UPDATE_LAUNCH if kind == UPDATE else LAUNCH, op.launches)
        if op.only_moves:
            _add(found, kind, op.bytes)
        else:
            _add(
                found, op.kind if op.kind in RATIOS else RATIOS[0], alone_s(op, calibration, dtype)
            )
            _add(found, OPERANDS, op.bytes)
    return found


def alone_s(operator: Cost, calibration: Calibration, dtype: str = "fp32") -> float:
    """Seconds of a product or convolution that is repeated on the same operands."""
    if operator.shape is None:
        return operator.flops / calibration.flops_per_s(dtype)
    return operator.flops / calibration.gemm_flops_per_s(dtype, *operator.shape)


def seconds(operators: Iterable[Cost], calibration: Calibration, dtype: str = "fp32") -> float:
    """Of operators one after another, by the coefficients of a calibration that has them.

    An amount that no measured step had counts as what is nearest to it.
    """
    known = calibration.in_step
    found = amounts(operators, calibration, dtype)
    return sum(amount * _coefficient(known, name) for name, amount in found.items())


def _coefficient(known: Mapping[str, float], name: str) -> float:
    if name in known:
        return known[name]
    if name in RATIOS:
        return known.get(RATIOS[0], 1.0)
    return known.get(LAUNCH, 0.0) if name == UPDATE_LAUNCH else known[OTHER]


def fit(samples: Iterable[Sample], calibration: Calibration, dtype: str = "fp32") -> Amounts:
    """Coefficients of least absolute relative error over groups of operators that were timed.

    Absolute errors, by least squares reweighted in turn, so that a disturbed step bends nothing.
    """
    measured = [(amounts(ops, calibration, dtype), time_s) for ops, time_s in samples if time_s > 0]
    if not measured:
        raise ValueError("there are no steps to fit coefficients to")
    names = sorted({name for found, _ in measured for name in found} | {OTHER})
    rows = [[found.get(name, 0.0) / time_s for name in names] for found, time_s in measured]
    weights = [1.0] * len(rows)
    for _ in range(N_REWEIGHTED):
        solution = _non_negative(rows, weights)
        told = [sum(x * r for x, r in zip(solution, row, strict=True)) for row in rows]
        weights = [1 / max(abs(value - 1), LEAST_RESIDUAL) for value in told]
    return dict(zip(names, solution, strict=True))


def _add(found: Amounts, name: str, amount: float) -> None:
    found[name] = found.get(name, 0.0) + amount


def _non_negative(rows: Sequence[Sequence[float]], weights: Sequence[float]) -> list[float]:
    """x >= 0 of least sum of weight * (row @ x - 1)**2, one coordinate after the other."""
    columns = list(zip(*rows, strict=True))
    scales = [sum(w * v * v for w, v in zip(weights, c, strict=True)) ** 0.5 for c in columns]
    used = [j for j, scale in enumerate(scales) if scale > 0]
    gram = [
        [_dot(weights, columns[i], columns[j]) / scales[i] / scales[j] for j in used] for i in used
    ]
    aim = [sum(w * v for w, v in zip(weights, columns[j], strict=True)) / scales[j] for j in used]
    x = [0.0] * len(used)
    for _ in range(N_SWEEPS):
        moved = 0.0
        for j, row in enumerate(gram):
            new = max(x[j] + aim[j] - sum(g * v for g, v in zip(row, x, strict=True)), 0.0)
            moved, x[j] = max(moved, abs(new - x[j])), new
        if moved < TOLERANCE:
            break
    solved = dict(zip(used, x, strict=True))
    return [solved.get(j, 0.0) / (scale or 1.0) for j, scale in enumerate(scales)]


def _dot(weights: Mapping | Sequence[float], a: Sequence[float], b: Sequence[float]) -> float:
    return sum(w * x * y for w, x, y in zip(weights, a, b, strict=True))
