"""The formulas of every output layer by its name: of a step's operators, and of weights."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from lmtime.cost.chunked import chunked
from lmtime.cost.fused_adaptive import fused_adaptive, fused_weights
from lmtime.cost.output_layers import Rows, adaptive, adaptive_weights, full, full_weights

OUTPUT_LAYER_COSTS: dict[str, Callable[..., Rows]] = {
    "adaptive": adaptive,
    "fused-adaptive": fused_adaptive,
    "full": full,
    "chunked": chunked,
}
_WEIGHTS: dict[str, Callable[[Any], list[Any]]] = {
    "adaptive": adaptive_weights,
    "fused-adaptive": fused_weights,
    "full": full_weights,
    "chunked": full_weights,
}


def output_layer_weights(shape: Any) -> list[Any]:
    """Size of each tensor of weights that is the output layer's own."""
    return _WEIGHTS[shape.output_layer](shape)
