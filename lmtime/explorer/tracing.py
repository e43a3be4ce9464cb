"""What the explorers share: traced formulas as expressions, controls, answers by halving."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable
from typing import Any

import altair as alt

from lmtime.cost.operators import Cost
from lmtime.cost.output_layers import Rows
from lmtime.cost.step import group_ms, grouped
from lmtime.hardware import GPUS

N_HALVINGS = 14  # of a range in logarithms: 0.06 % of a range of 1 to 10,000 is left


def expression(formula: Any) -> str:
    """The Vega expression of a traced formula, or a number as it stands."""
    return str(getattr(formula, "expr", formula))


def step_ms(rows: Rows, flops_per_s: Any, bytes_per_s: Any) -> dict[str, Any]:
    """`cost.step.group_ms` of numbers or parameters; what is alike stands in the page once."""
    if isinstance(bytes_per_s, int | float):
        return group_ms(rows, flops_per_s, bytes_per_s)
    merged = {(group, ""): _alike(ops) for group, ops in grouped(rows).items()}
    return group_ms(merged, flops_per_s, bytes_per_s, maximum=alt.expr.max)


def _alike(operators: list[Cost]) -> list[Cost]:
    """Operators of the same work as one that does all of it."""
    found: dict[tuple[str, str], list[Cost]] = {}
    for op in operators:
        found.setdefault((expression(op.flops), expression(op.bytes)), []).append(op)
    return [
        ops[0] if len(ops) == 1 else Cost(ops[0].flops * len(ops), ops[0].bytes * len(ops))
        for ops in found.values()
    ]


def total(ms: dict[str, Any]) -> str:
    """Expression of the whole step."""
    return " + ".join(f"({expression(part)})" for part in ms.values())


def slider(
    name: str, label: str, value: float, ends: tuple[float, float], step: float
) -> alt.Parameter:
    """A parameter that the reader moves."""
    bind = alt.binding_range(min=ends[0], max=ends[1], step=step, name=label)
    return alt.param(name=name, value=value, bind=bind)


def choice(name: str, label: str, value: Any, options: dict[Any, str]) -> alt.Parameter:
    """A parameter that the reader chooses; options: {value: how it is called}."""
    bind = alt.binding_select(options=list(options), labels=list(options.values()), name=label)
    return alt.param(name=name, value=value, bind=bind)


def gpu_control(start: str) -> alt.Parameter:
    """The number of a row of GPUS, chosen by its title."""
    titles = {i: gpu.title for i, gpu in enumerate(GPUS.values())}
    return choice("gpu", "GPU", list(GPUS).index(start), titles)


def signals(texts: dict[str, str]) -> list[alt.Parameter]:
    """Parameters that are computed from those before them."""
    return [alt.param(name=name, expr=text) for name, text in texts.items()]


class Constants:
    """Parts of expressions that only the controls change, each computed once under a short name."""

    def __init__(self, fixed: Iterable[str]) -> None:
        self._fixed = {*fixed, "max", "min", "pow"}
        self._names: dict[str, str] = {}

    @property
    def signals(self) -> dict[str, str]:
        """{name: expression} of those that were met."""
        return {name: text for text, name in self._names.items()}

    def taken_out(self, text: str) -> str:
        """The expression with its constant parts, as large as they are, replaced by names."""
        found, place = [], 0
        for match in _GROUP.finditer(text):
            if match.start() < place:
                continue
            end = _closing(text, match.end())
            whole, inner = text[match.start() : end], text[match.end() : end - 1]
            found.append(text[place : match.start()])
            if set(NAME.findall(whole)) <= self._fixed:
                found.append(self._names.setdefault(whole, f"K{len(self._names)}"))
            else:
                found.append(f"{match[0]}{self.taken_out(inner)})")
            place = end
        return "".join((*found, text[place:]))


_GROUP = re.compile(r"(?:[A-Za-z_]\w*)?\(")
NAME = re.compile(r"(?<![\w.])[A-Za-z_]\w*")


def _closing(text: str, start: int) -> int:
    """Behind the bracket that closes the one before `start`."""
    depth = 1
    for place in range(start, len(text)):
        depth += {"(": 1, ")": -1}.get(text[place], 0)
        if not depth:
            return place + 1
    raise AssertionError(f"brackets do not match in {text}")


def halved(name: str, ends: tuple[str, str], goes_up: Callable[[Any], dict[str, str]]) -> dict:
    """Signals that bisect a range in logarithms; the last, `name`, is where the answer lies.

    goes_up: from a point (a parameter) to signals, of which the last says whether the answer
    lies above the point. What an `inverse` does with a loop, in as many signals as halvings.
    """
    low, high = ends
    found, place = {}, "0.5"
    for k in range(1, N_HALVINGS + 1):
        point = f"{name}{k}"
        found[point] = f"{low} * pow({high} / {low}, {place})"
        *named, (_, above) = goes_up(alt.param(name=point)).items()
        found |= dict(named)
        found[f"{name}_t{k}"] = f"({place}) + (({above}) ? {0.5 ** (k + 1)} : -{0.5 ** (k + 1)})"
        place = f"{name}_t{k}"
    return found | {name: f"{low} * pow({high} / {low}, {place})"}
