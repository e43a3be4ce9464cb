"""Build the book with jupyter-book, say in three lines what it shows, serve it."""

from __future__ import annotations

import contextlib
import functools
import re
import subprocess
import sys
from collections.abc import Callable
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

from lmtime.errors import UsageError
from lmtime.records import STEP, Record, project_root, studies

PORT = 8000


def build_book(*, say: Callable[[str], None]) -> Path:
    """Run `jupyter-book build` from clean, warnings as errors; returns the first page.

    RuntimeError with what its log says of the cause when it fails.
    """
    root = project_root()
    if not (root / "_config.yml").exists():
        raise UsageError(f"{root} has no _config.yml: set LMTIME_ROOT to the folder of the study")
    say("building the book")
    command = [str(Path(sys.executable).with_name("jupyter-book")), "build", str(root)]
    log = root / "_build" / "book.log"
    log.parent.mkdir(exist_ok=True)
    with log.open("w", encoding="utf-8") as file:
        done = subprocess.run(
            [*command, "--all", "-n", "-W", "--keep-going"],
            cwd=root,
            stdout=file,
            stderr=subprocess.STDOUT,
        )
    if done.returncode != 0:
        raise RuntimeError(f"the book was not built:\n{_causes(log)}\nThe whole log: {log}")
    return root / "_build" / "html" / "index.html"


def _causes(log: Path) -> str:
    """The lines of a build log that say what was wrong, without colours."""
    lines = re.sub(r"\x1b\[[0-9;]*m", "", log.read_text(encoding="utf-8")).splitlines()
    told = [
        line
        for line in lines
        if re.search(r"WARNING|ERROR|^\w*(Error|Exception)\b", line) and "IPKernelApp" not in line
    ]
    return "\n".join(told[:10] or lines[-10:])


def headline() -> list[str]:
    """What was measured here last and where its time went: two lines, or one if nothing was."""
    runs = [
        (study.provenance().get(record.run_id), record)
        for label, study in studies("profile")
        if label == "this machine"
        for record in study.records()
        if record.owner == STEP and record.config["output_layer"] == "adaptive"
    ]
    runs = [(conditions, record) for conditions, record in runs if conditions]
    if not runs:
        return ["Nothing has been measured on this machine yet: `lmtime study` does it."]
    return _lines(*max(runs, key=lambda run: run[0]["time_utc"]))


def _lines(conditions: dict, first: Record) -> list[str]:
    groups = conditions["notes"]["groups"]
    config = first.config
    shares = ", ".join(
        f"{name} {100 * g['share']:.0f} % ({100 * g['share_low']:.0f} to "
        f"{100 * g['share_high']:.0f})"
        for name, g in groups.items()
    )
    return [
        f"Measured: {first.model} with hidden size {config['hidden_size']} and an "
        f"{config['output_layer']} softmax, {first.n} training steps of "
        f"{config['batch_size']} x {config['seq_len']} tokens on {_device(first)}.",
        f"Where the {first.latency_ms:.0f} ms of a step go: {shares}."
        + (f" Not a result: {first.quality}." if first.quality else ""),
    ]


def _device(record: Record) -> str:
    threads = f", {record.n_threads} threads" if record.n_threads else ""
    return f"{record.device_name} ({record.device}{threads})"


def serve(folder: Path, *, say: Callable[[str], None], port: int = PORT) -> None:
    """Show a folder on the local host until interrupted."""
    handler = functools.partial(SimpleHTTPRequestHandler, directory=str(folder))
    with ThreadingHTTPServer(("127.0.0.1", port), handler) as server:
        say(f"http://127.0.0.1:{port}/ (Ctrl-C ends it)")
        with contextlib.suppress(KeyboardInterrupt):
            server.serve_forever()
