"""The data behind a chart, as tables: the rows that Vega draws before a control is moved."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from math import isfinite

from lmtime.publishing.vega_eval import table_texts

_DISCRETE = ("nominal", "ordinal")


@dataclass(frozen=True)
class Column:
    """One field that the chart encodes."""

    field: str
    title: str
    type: str  # of Vega-Lite: quantitative, nominal, ordinal or temporal
    format: str  # of d3, or nothing

    @property
    def expression(self) -> str:
        """The Vega expression of this column's text in one row."""
        value = f"datum[{self.field!r}]"
        if self.type == "temporal":
            return f"{value} == null ? '' : timeFormat({value}, '%Y-%m-%d')"
        if self.format:
            return f"isNumber({value}) ? format({value}, {self.format!r}) : {value}"
        return f"{value} == null ? '' : {value}"

    def shown(self, text: str) -> str:
        """A number that no format was asked for with as many digits as a reader wants."""
        if self.type != "quantitative" or self.format:
            return text
        try:
            number = float(text)
        except ValueError:
            return text
        if not isfinite(number):
            return text
        whole = number == int(number) or abs(number) >= 10_000
        return f"{number:,.0f}" if whole else f"{number:.4g}"


@dataclass(frozen=True)
class Table:
    """The rows of one data set that the chart draws."""

    columns: tuple[Column, ...]
    rows: tuple[tuple[str, ...], ...]

    def holds(self, other: Table) -> bool:
        """Whether every row of `other` can be read from this table."""
        if not set(other.columns) <= set(self.columns):
            return False
        places = [self.columns.index(column) for column in other.columns]
        own = {tuple(row[place] for place in places) for row in self.rows}
        return own.issuperset(other.rows)


def tables(spec: dict, vega: dict) -> list[Table]:
    """The tables behind a Vega-Lite `spec`, compiled to `vega`; none that another one holds."""
    known = {data["name"] for data in vega.get("data", [])}
    found = []
    for view, group in _views(spec, vega):
        columns = _columns(view)
        for name in dict.fromkeys(_sources(group)):
            if columns and name in known:
                found.append(_table(vega, name, columns))
    kept: list[Table] = []
    for table in sorted(found, key=lambda t: (-len(t.columns), -len(t.rows))):
        lone = len(table.rows) * len(table.columns) <= 1  # a rule or a label, not data
        if not any(lone or other.holds(table) for other in kept):
            kept.append(table)
    return [table for table in found if table in kept and table.rows]


def _views(spec: dict, group: dict, prefix: str = "") -> Iterator[tuple[dict, dict]]:
    """Panels of a chart, each with the group of Vega's marks that draws it."""
    keys = [key for key in ("hconcat", "vconcat", "concat") if key in spec]
    if not keys:
        yield spec, group
        return
    named = {mark.get("name"): mark for mark in group.get("marks", [])}
    for number, part in enumerate(spec[keys[0]]):
        name = part.get("name") or f"{prefix}concat_{number}"
        yield from _views(part, named.get(f"{name}_group", group), f"{name}_")


def _table(vega: dict, data: str, columns: list[Column]) -> Table:
    texts = table_texts(vega, data, [column.expression for column in columns])
    used = [i for i in range(len(columns)) if any(row[i] for row in texts)]
    rows = [tuple(columns[i].shown(row[i]) for i in used) for row in texts]
    return Table(tuple(columns[i] for i in used), tuple(dict.fromkeys(rows)) if used else ())


def _sources(group: dict) -> Iterator[str]:
    """Names of the data sets that marks are drawn from, in the order of the marks."""
    for mark in group.get("marks", []):
        source = mark.get("from", {})
        yield source.get("data") or source.get("facet", {}).get("data", "")
        yield from _sources(mark)


def _columns(spec: dict) -> list[Column]:
    """Fields in the order that a reader wants: what tells rows apart, then what they show."""
    channels: dict[str, list[dict]] = {}
    for channel in _channels(spec):
        channels.setdefault(_field(channel), []).append(channel)
    channels.pop("", None)
    titles = {name: _first(map(_title, found), _plain(name)) for name, found in channels.items()}
    n_fields = Counter(titles.values())
    columns = []
    for name, found in channels.items():
        title = titles[name]
        if n_fields[title] > 1:
            title += f", {_plain(name)}"
        kind = _first((channel.get("type") for channel in found), "quantitative")
        columns.append(Column(name, title, kind, _format(found)))
    return sorted(columns, key=lambda column: column.type not in _DISCRETE)


def _first(values: Iterable, default: str = "") -> str:
    return next((value for value in values if isinstance(value, str) and value), default)


def _channels(spec: dict) -> Iterator[dict]:
    """The field definitions of a specification and of all that it is composed of."""
    for name, channel in spec.get("encoding", {}).items():
        if name == "order":  # how marks lie over one another, not what they show
            continue
        for one in channel if isinstance(channel, list) else [channel]:
            yield one
            yield from (one["condition"],) if isinstance(one.get("condition"), dict) else ()
    for key in ("row", "column"):
        yield from (spec["facet"][key],) if key in spec.get("facet", {}) else ()
    if "field" in spec.get("facet", {}):
        yield spec["facet"]
    for part in spec.get("layer", []):
        yield from _channels(part)
    yield from _channels(spec["spec"]) if "spec" in spec else ()


def _field(channel: dict) -> str:
    """The name that Vega-Lite gives the field in the drawn data set."""
    field, aggregate = channel.get("field", ""), channel.get("aggregate")
    if not isinstance(field, str) or isinstance(aggregate, dict):
        return ""
    return "_".join(part for part in (aggregate, field) if part)


def _title(channel: dict) -> str:
    """The title that the author gave, on the field or on its axis, legend or header."""
    guides = [channel.get(key) or {} for key in ("axis", "legend", "header")]
    return _first((channel.get("title"), *(guide.get("title") for guide in guides)))


def _format(channels: list[dict]) -> str:
    """The author's format: a tooltip's own, else the axis's; a bare per cent has six digits."""
    axes = [(channel.get("axis") or {}).get("format") for channel in channels]
    form = _first((*(channel.get("format") for channel in channels), *axes))
    return ".1%" if form == "%" else form


def _plain(name: str) -> str:
    return name.replace("_", " ")
