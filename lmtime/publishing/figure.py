"""A chart's specification to the HTML of its figure: controls, drawing, sentence, data tables.

What the chart's author may declare stands in `usermeta["lmtime"]` of the specification:

    "sentence"  a list whose parts are joined into one sentence below the chart, told anew
                whenever a control moves: a text as it is; {"signal": expression} or
                {"signal": expression, "format": ".1f"} for the value of a Vega expression over
                the parameters; {"show": parameter} for a control's value as it stands beside it
    "show"      {parameter: Vega expression}: how a control's value is shown, for example
                {"k": "pow(2, k)"} for a slider over an exponent

A control's label may end in a unit in brackets, "Bandwidth (GB/s)": the unit follows the value.
"""

from __future__ import annotations

import copy
import json
from collections.abc import Iterator
from html import escape

import vl_convert

from lmtime.errors import UsageError
from lmtime.publishing.controls import Control, bound, controls, controls_html
from lmtime.publishing.tables import Table, tables
from lmtime.publishing.vega_eval import signal_texts

MAX_ROWS = 100
SENTENCE = "lmtime_sentence"  # the signal that holds the sentence


def figure(spec: dict) -> str:
    """The HTML of one chart. A chart that a page cannot mount raises UsageError."""
    check(spec)
    vega = vl_convert.vegalite_to_vega(spec)
    declared = spec.get("usermeta", {}).get("lmtime", {})
    found = controls(spec, declared.get("show", {}))
    data = tables(spec, vega)
    if not data:  # nothing has been measured yet, for example
        return (
            '<figure class="lmtime-empty"><p>There are no rows to draw here yet.</p>'
            f"<figcaption>{escape(spec['description'])}</figcaption></figure>"
        )
    signals = {control.signal: control.shown for control in found}
    if declared.get("sentence"):
        signals[SENTENCE] = sentence_expression(declared["sentence"], found)
    texts = dict(zip(signals, signal_texts(vega, list(signals.values())), strict=True))
    lines = [
        '<figure class="lmtime-chart">',
        *controls_html(found, texts),
        '<div class="lmtime-view"></div>',
        *_sentence_html(texts),
        f"<figcaption>{escape(spec['description'])}</figcaption>",
        *_tables_html(data, moves=bool(spec.get("params"))),
        f'<script type="application/json">{_json(mounted(spec, signals))}</script>',
        "</figure>",
    ]
    return "\n".join(lines)


def check(spec: dict) -> None:
    """Raise UsageError for a chart that nobody could read, or that would load something."""
    if not (spec.get("description") or "").strip():
        raise UsageError(
            "a chart has no description: say what it shows by .properties(description=)"
        )
    if any("url" in data for data in _data(spec)):
        raise UsageError("a chart loads its data from an address: give it the rows themselves")


def _data(part: object) -> Iterator[dict]:
    """Every `data` object of a specification, the data sets left aside."""
    if isinstance(part, list):
        for item in part:
            yield from _data(item)
    elif isinstance(part, dict):
        for key, value in part.items():
            if key == "data" and isinstance(value, dict):
                yield value
            elif key not in ("datasets", "usermeta"):
                yield from _data(value)


def sentence_expression(parts: list, found: list[Control]) -> str:
    """One Vega expression that yields the whole sentence."""
    shown = {control.param: control.shown for control in found}
    return " + ".join(['""', *(_part(part, shown) for part in parts)])


def _part(part: object, shown: dict[str, str]) -> str:
    match part:
        case str():
            return json.dumps(part)
        case {"signal": str(expression), "format": str(form)}:
            return f"format({expression}, {json.dumps(form)})"
        case {"signal": str(expression)}:
            return f"({expression})"
        case {"show": str(param)} if param in shown:
            return f"({shown[param]})"
    raise UsageError(
        f"sentence part {part!r} is not allowed: give a text, {{'signal': expression}}, "
        f"{{'signal': expression, 'format': d3 format}} or {{'show': one of {list(shown)}}}"
    )


def mounted(spec: dict, signals: dict[str, str]) -> dict:
    """The specification as the page draws it: its controls are ours, its width the page's."""
    spec = copy.deepcopy(spec)
    for param in bound(spec):
        del param["bind"]
    faceted = {"row", "column", "facet"} & set(spec.get("encoding", {}))
    if ("mark" in spec or "layer" in spec) and not faceted:
        spec.setdefault("width", "container")
    spec["usermeta"] = {**spec.get("usermeta", {}), "lmtime": {"signals": signals}}
    return spec


def _json(value: object) -> str:
    """JSON that may stand inside a script element."""
    return json.dumps(value, separators=(",", ":"), allow_nan=False).replace("<", "\\u003c")


def _sentence_html(texts: dict[str, str]) -> Iterator[str]:
    if SENTENCE in texts:
        yield f'<p class="lmtime-sentence" aria-live="polite">{escape(texts[SENTENCE])}</p>'


def _tables_html(found: list[Table], *, moves: bool) -> Iterator[str]:
    """The tables, folded away; `moves` says that a control may change what they hold."""
    yield '<details class="lmtime-data"><summary>The data behind this chart</summary>'
    for table in found:
        yield _table_html(table, moves)
    yield "</details>"


def _table_html(table: Table, moves: bool) -> str:
    n_rows = len(table.rows)
    caption = "1 row" if n_rows == 1 else f"{n_rows:,} rows"
    if n_rows > MAX_ROWS:
        caption = f"The first {MAX_ROWS} of {n_rows:,} rows"
    if moves:
        caption += ", at the starting position of the controls"
    kinds = [' class="number"' if c.type == "quantitative" else "" for c in table.columns]
    head = "".join(
        f'<th scope="col"{kind}>{escape(column.title)}</th>'
        for kind, column in zip(kinds, table.columns, strict=True)
    )
    rows = (
        "".join(f"<td{kind}>{escape(text)}</td>" for kind, text in zip(kinds, row, strict=True))
        for row in table.rows[:MAX_ROWS]
    )
    body = "".join(f"<tr>{row}</tr>\n" for row in rows)
    return (
        '<div class="lmtime-scroll" tabindex="0" role="region" aria-label="Data table">'
        f"<table><caption>{caption}.</caption><thead><tr>{head}</tr></thead>"
        f"<tbody>\n{body}</tbody></table></div>"
    )
