"""Where what a command made goes: the document to a file or standard output, words to error."""

from __future__ import annotations

import json
import os
import re
import shlex
import sys
from collections.abc import Callable
from pathlib import Path

import typer

from lmtime.errors import UsageError
from lmtime.records import write_text


def require_folder(*paths: str | Path | None) -> None:
    """Refuse before measuring what could not be written afterwards."""
    for path in paths:
        if path in (None, "-"):
            continue
        folder = Path(path).resolve().parent
        if not folder.is_dir() or Path(path).is_dir() or not os.access(folder, os.W_OK):
            raise UsageError(f"{path} cannot be written: name a file in a folder that exists")


def command_line() -> str:
    """The command for the provenance, however it was started; no password of a database."""
    shown = [re.sub(r"(://[^:/\s]+):\S*@", r"\1:***@", part) for part in sys.argv[1:]]
    return shlex.join(["lmtime", *shown])


def say(text: str) -> None:
    """A line on standard error."""
    typer.echo(text, err=True)


def emit(doc: dict, json_to: str | None, show: Callable[[dict], None]) -> None:
    """Show the document, or write it as JSON where `json_to` says."""
    if json_to is None:
        show(doc)
    else:
        write_json(doc, json_to)


def write_json(doc: dict, json_to: str) -> None:
    """The document into a file, or with - on standard output."""
    text = json.dumps(doc, indent=1, allow_nan=False)
    if json_to == "-":
        typer.echo(text)
    else:
        write_text(Path(json_to), text + "\n")
        say(f"wrote {json_to}")
