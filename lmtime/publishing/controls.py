"""The controls of a chart: its bound parameters as labelled inputs that we write ourselves."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from dataclasses import dataclass
from html import escape
from math import remainder

from lmtime.errors import UsageError

INPUTS = ("range", "select", "radio", "checkbox")


@dataclass(frozen=True)
class Control:
    """A parameter that the reader sets, and the Vega expression of its value in words."""

    param: str
    label: str
    bind: dict
    value: object
    shown: str

    @property
    def signal(self) -> str:
        """The signal that holds the value in words."""
        return f"lmtime_show_{self.param}"


def bound(spec: dict) -> Iterator[dict]:
    """Parameters that a control sets; selections and their bindings stay with Vega."""
    for param in spec.get("params", []):
        if isinstance(param.get("bind"), dict) and "select" not in param:
            yield param


def controls(spec: dict, show: dict[str, str]) -> list[Control]:
    """The controls of a chart; `show` maps parameters to expressions of their value in words."""
    found = [_control(param, show.get(param["name"])) for param in bound(spec)]
    names = [control.param for control in found]
    for name in show:
        if name not in names:
            raise UsageError(f"show names {name!r}, which is not a control: it may name {names}")
    return found


def _control(param: dict, show: str | None) -> Control:
    name, bind = param["name"], param["bind"]
    if bind.get("input") not in INPUTS:
        raise UsageError(f"parameter {name!r} is bound to {bind}: bind one of {', '.join(INPUTS)}")
    if not _reachable(param):
        raise UsageError(f"parameter {name!r} starts at no position of its control: {param}")
    label, unit = _label_and_unit(bind.get("name") or name)
    shown = show or _value_expression(name, bind)
    if unit:
        shown = f"({shown}) + {json.dumps(' ' + unit)}"
    return Control(name, label, bind, param["value"], shown)


def _reachable(param: dict) -> bool:
    """Whether the control can stand at the parameter's value; a browser would move it silently."""
    bind, value = param["bind"], param.get("value")
    if bind["input"] == "range":
        low, high, step = bind.get("min", 0), bind.get("max", 100), bind.get("step", "any")
        if value is None or not low <= value <= high:
            return False
        return step == "any" or abs(remainder(value - low, step)) < 1e-9 * max(step, abs(value))
    return value in bind.get("options", (True, False))


def _label_and_unit(text: str) -> tuple[str, str]:
    """A label and the unit that it ends in: "Bandwidth (GB/s)" is "Bandwidth", "GB/s"."""
    text = text.strip().rstrip(":").strip()
    match = re.fullmatch(r"(.+?)\s*\(([^()]+)\)", text)
    return (match[1], match[2]) if match else (text, "")


def _value_expression(name: str, bind: dict) -> str:
    """A Vega expression of a control's value in words."""
    if bind["input"] == "checkbox":
        return f'{name} ? "on" : "off"'
    if bind["input"] == "range":
        return f'format({name}, ",")'
    texts = [str(label) for label in _labels(bind)]
    return f"{json.dumps(texts)}[indexof({json.dumps(bind['options'])}, {name})]"


def _labels(bind: dict) -> list:
    return bind.get("labels") or bind["options"]


def controls_html(found: list[Control], texts: dict[str, str]) -> Iterator[str]:
    """Labelled inputs, hidden until the script runs; `texts` holds the value of each signal."""
    if not found:
        return
    yield '<div class="lmtime-controls" hidden>'
    for control in found:
        kind = control.bind["input"]
        yield f'<div class="lmtime-control lmtime-{kind}">'
        yield f"<label><span>{escape(control.label)}</span> {_input_html(control)}</label>"
        if kind in ("range", "checkbox"):
            text = escape(texts[control.signal])
            yield f'<span class="lmtime-value" aria-hidden="true">{text}</span>'
        yield "</div>"
    yield "</div>"


def _input_html(control: Control) -> str:
    bind, param = control.bind, f'data-param="{escape(control.param)}"'
    if bind["input"] == "checkbox":
        return f'<input type="checkbox" {param}{" checked" if control.value else ""}>'
    if bind["input"] == "range":
        limits = f'min="{bind.get("min", 0)}" max="{bind.get("max", 100)}"'
        step = f'step="{bind.get("step", "any")}"'
        return f'<input type="range" {param} {limits} {step} value="{control.value}">'
    options = "".join(
        f'<option value="{escape(json.dumps(option))}"'
        f"{' selected' if option == control.value else ''}>{escape(str(text))}</option>"
        for option, text in zip(bind["options"], _labels(bind), strict=True)
    )
    return f"<select {param}>{options}</select>"
