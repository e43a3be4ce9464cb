"""Vega expressions evaluated by the real Vega, the one inside `vl-convert`.

A page's slider computes in JavaScript. These functions compute the same expression string in the
same runtime with no browser, so that a test can hold it against Python, and a page can say in
words what its chart shows before anybody has moved anything.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence

import vl_convert

_SCHEMA = "https://vega.github.io/schema/vega/v6.json"
_MARK = "lmtime_texts"
# A string literal, or a name that neither continues a word or a number nor follows a dot.
_TOKEN = re.compile(r""""(?:\\.|[^"\\])*"|'(?:\\.|[^'\\])*'|(?<![\w$.])[A-Za-z_$][\w$]*""")


def evaluate(
    expressions: Mapping[str, str], values: Sequence[Mapping[str, float]]
) -> list[dict[str, float]]:
    """Each expression at each point: the numbers that the page would show.

    The names in `expressions` are those of the results, the names in `values` those of the
    parameters. All points go through one call: a thousand take well under a second.
    """
    if not values or not expressions:
        return [{} for _ in values]
    names = frozenset(values[0])
    parts = [_on_datum(text, names) for text in expressions.values()]
    spec = {
        "$schema": _SCHEMA,
        "data": [{"name": "points", "values": [dict(point) for point in values]}],
    }
    rows = table_texts(spec, "points", parts)
    return [dict(zip(expressions, map(_number, row), strict=True)) for row in rows]


def signal_texts(spec: dict, expressions: Sequence[str]) -> list[str]:
    """What expressions over the signals of the Vega `spec` yield at its start, as texts."""
    return _texts(spec, _mark(expressions))[0] if expressions else []


def table_texts(spec: dict, data: str, expressions: Sequence[str]) -> list[list[str]]:
    """Each expression over `datum` for each row of the data set `data` of the Vega `spec`."""
    return _texts(spec, {**_mark(expressions), "from": {"data": data}})


def _on_datum(expression: str, names: frozenset[str]) -> str:
    """The expression with its parameters read from the row of a table."""
    return _TOKEN.sub(
        lambda match: f"datum['{match[0]}']" if match[0] in names else match[0], expression
    )


def _mark(expressions: Sequence[str]) -> dict:
    """A mark that carries the values as its description: text would be measured, which is slow."""
    values = ", ".join(f"toString({text})" for text in expressions)
    encode = {"enter": {"description": {"signal": f"[{values}]"}}}
    return {"type": "symbol", "name": _MARK, "encode": encode}


def _texts(spec: dict, mark: dict) -> list[list[str]]:
    """What `mark` carries, alone in the scene of `spec`: its axes and marks are left away."""
    kept = ("$schema", "data", "signals", "scales", "projections", "config", "width", "height")
    scene = {key: spec[key] for key in kept if key in spec}
    drawn = vl_convert.vega_to_scenegraph({**scene, "marks": [mark]})
    return list(_walk(drawn["scenegraph"]))


def _walk(item: dict) -> Iterator[list[str]]:
    for child in item.get("items", []):
        if item.get("name") == _MARK:
            yield ["" if text is None else text for text in child["description"]]
        else:
            yield from _walk(child)


def _number(text: str) -> float:
    """A number as JavaScript writes it; true and false count as 1 and 0."""
    return float(text == "true") if text in ("true", "false") else float(text)
