"""Checks that every configuration makes when it is built."""

from __future__ import annotations

import dataclasses

from lmtime.errors import UsageError

MAX_SIZE = 2**40  # of any count or width; beyond it products are no exact numbers


def require_positive(config: object, names: tuple[str, ...]) -> None:
    """Whole numbers of at least 1, as plain ints, or an error that names the field."""
    for name in names:
        value = getattr(config, name)
        whole = hasattr(value, "__index__") and not isinstance(value, bool)
        if not whole or value < 1:
            raise UsageError(f"{name}={value!r} must be a whole number of at least 1")
        if value > MAX_SIZE:
            raise UsageError(f"{name} is too large: {MAX_SIZE} is the most")
        object.__setattr__(config, name, int(value))  # NumPy's integers are not JSON's


def whole_fields(config_class: type) -> tuple[str, ...]:
    """Fields of a configuration that are counts or widths."""
    fields = dataclasses.fields(config_class)
    return tuple(f.name for f in fields if isinstance(f.default, int))


def require_learning_rate(config: object) -> None:
    """More than 0 and below 1."""
    if not 0 < config.learning_rate < 1:
        raise UsageError(f"learning_rate={config.learning_rate} must lie between 0 and 1")


def require_dropout(config: object) -> None:
    """A probability below 1, as a plain float."""
    p = config.dropout
    if isinstance(p, bool) or not isinstance(p, int | float) or not 0 <= p < 1:
        raise UsageError(f"dropout={p!r} must be a number of at least 0 and below 1")
    object.__setattr__(config, "dropout", float(p))
