"""Numbers of records in sentences, so that no measured number is typed into a page."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Sequence, Sized
from typing import Any

from IPython.display import Markdown

from lmtime.records import STEP, Record, Study, studies

N_ROOMY = 5  # columns of a table that fit a page unbroken
_INTERVAL = re.compile(r"\(\S+ to \S+\)")


def measured_groups(study: str) -> list[dict]:
    """`Study.group_rows` of every set of rows at hand, this machine's first.

    Each row gains `set`: whose rows they are, and on which device.
    """
    rows = []
    for whose, found in studies(study):
        for row in found.group_rows():
            rows.append({**row, "set": f"{whose}: {device(row)}"})
    return rows


def measured_kinds(study: str, group: str) -> list[dict]:
    """`Study.kind_rows` of every set of rows at hand, each with its `set` as above."""
    rows = []
    for whose, found in studies(study):
        for row in found.kind_rows(group):
            rows.append({**row, "set": f"{whose}: {device(row)}"})
    return rows


def first_run(study: str, **config: object) -> tuple[Study, list[Record]]:
    """The first run of a configuration with these fields that passes its quality gate."""
    for _, found in studies(study):
        usable = [r for r in found.records() if not r.quality]
        wanted = [r for r in usable if config.items() <= r.config.items()]
        if wanted:
            return found, [r for r in wanted if r.run_id == wanted[0].run_id]
    raise LookupError(f"no usable rows of the study {study!r} with {config}")


def refused(study: str) -> Markdown | None:
    """What was measured and must not be used, with the reason; None where all is well."""
    lines = [
        f"- {whose}, {device(r.to_row())}: {r.model}, "
        f"{r.config.get('output_layer', 'full')} softmax, hidden size "
        f"{r.config['hidden_size']}: {r.quality}"
        for whose, found in studies(study)
        for r in found.records()
        if r.quality and r.owner == STEP
    ]
    head = (
        "Measured, but refused by the quality gate and not shown (on a quiet machine, delete "
        "`results/` and run the lab again):\n\n"
    )
    return Markdown(head + "\n".join(lines)) if lines else None


def device(row: dict) -> str:
    """The device of a row in words."""
    threads = f", {row['n_threads']} threads" if row["n_threads"] else ""
    return f"{row['device_name']}{threads}"


def share(row: dict) -> str:
    """A share of the step with its 95 % interval, as in "23.1 % (22.4 to 23.9)"."""
    low, high = 100 * row["share_low"], 100 * row["share_high"]
    return f"{100 * row['share']:.1f} % ({low:.1f} to {high:.1f})"


def shares_range(rows: Sequence[dict]) -> str:
    """From the least to the greatest share, as in "11 to 31 %"."""
    low, high = (f"{100 * end([r['share'] for r in rows]):.0f}" for end in (min, max))
    return f"{low} %" if low == high else f"{low} to {high} %"


def given(rows: Sized, show: Callable[[], Any], command: str = "") -> Any:
    """What `show` makes where there are rows; else the command that measures them, if any."""
    if rows:
        return show()
    return Markdown(f"There are no rows for this yet: run `{command}`.") if command else None


def takeaway(text: str) -> Markdown:
    """The sentence that a section ends in."""
    return Markdown(f"**Takeaway.** {text}")


def table(header: list[str], rows: Iterable[list[str]]) -> Markdown:
    """A table on the page; numbers are right-aligned; where there is room, intervals are whole.

    A wide table breaks them, so that its last columns are in sight without scrolling.
    """
    shown = map(_unbroken, rows) if len(header) <= N_ROOMY else rows
    lines = [header, [":--", *["--:"] * (len(header) - 1)], *shown]
    return Markdown("\n".join("| " + " | ".join(line) + " |" for line in lines))


def _unbroken(row: list[str]) -> list[str]:
    """Intervals, as in "12 (10 to 14)", with spaces at which no line is broken."""
    return [
        _INTERVAL.sub(lambda it: it[0].replace(" ", "\N{NO-BREAK SPACE}"), cell) for cell in row
    ]
