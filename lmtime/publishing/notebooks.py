"""Run a lab, a notebook that measures, with checked parameters and a limit of time.

Papermill executes it, in a process of its own: what hangs can be ended. Only functions import it.
"""

from __future__ import annotations

import ast
import json
import logging
import os
import queue
import re
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path

from lmtime import plans
from lmtime.errors import UsageError, unknown
from lmtime.records import project_root, results_root

log = logging.getLogger(__name__)
Say = Callable[[str], None]

GRACE_S = 15.0  # for the kernel to end in order before it is ended
_CELL_STARTS = re.compile(r"Executing Cell (\d+)-+$")
_NOISE = re.compile(r"Ending Cell \d+-+$|(In|Out)put Notebook:|Working directory:|Executing n")


class LabError(RuntimeError):
    """A lab did not reach its end: which cell, why, and where the partial notebook is."""


@dataclass(frozen=True)
class Parameter:
    """One assignment of a lab's parameters cell, `name: type = default  # help`."""

    name: str
    type: str  # "int", "float", "bool", "str", or "list[...]" of one of these
    default: object
    help: str

    def __str__(self) -> str:
        note = f": {self.help}" if self.help else ""
        return f"{self.name} ({self.type}, default {self.default!r}{note})"


def labs() -> dict[str, Path]:
    """The notebooks under book/labs by their names."""
    folder = project_root() / "book" / "labs"
    if found := {path.stem: path for path in sorted(folder.glob("*.ipynb"))}:
        return found
    raise UsageError(f"{folder} has no labs: set LMTIME_ROOT to the folder of the study")


def find_lab(name: str) -> Path:
    """The notebook of a lab given as "lab_profile", "profile" or a path."""
    if name.endswith(".ipynb") and Path(name).is_file():
        return Path(name).resolve()
    known = labs()
    if path := known.get(name) or known.get(f"lab_{name}"):
        return path
    raise unknown("lab", name, [*known, "the path of a notebook"])


def parameters(path: Path) -> dict[str, Parameter]:
    """What a lab lets its caller choose; empty for a notebook without a parameters cell."""
    import nbformat
    import papermill

    try:
        found = papermill.inspect_notebook(path)
    except (ValueError, nbformat.ValidationError) as error:
        raise UsageError(f"{path} is not a Python notebook that can be run: {error}") from None
    return {name: _parameter(**entry) for name, entry in found.items()}


def _parameter(name: str, inferred_type_name: str, default: str, help: str) -> Parameter:
    try:
        value = ast.literal_eval(default)
        inferred = type(value).__name__
        if isinstance(value, list) and value:
            inferred = f"list[{type(value[0]).__name__}]"
    except (ValueError, SyntaxError):
        value, inferred = default, "an expression"
    declared = re.sub(r"\s", "", inferred_type_name)
    # "None" is papermill's word for no annotation; a bare "list" does not name its elements
    return Parameter(name, inferred if declared in ("None", "list") else declared, value, help)


_BOOLEANS = {"true": True, "yes": True, "1": True, "false": False, "no": False, "0": False}
_CONVERTERS: dict[str, Callable[[str], object]] = {
    "int": int,
    "float": float,
    "bool": lambda text: _BOOLEANS[text.lower()],
    "str": str,
}


def _converted(parameter: Parameter, text: str) -> object:
    """The value of `text` as the parameter's type, made of builtins only."""
    element = re.fullmatch(r"list\[(\w+)\]", parameter.type)
    converter = _CONVERTERS.get(element[1] if element else parameter.type)
    if converter is None:
        settable = f"{', '.join(_CONVERTERS)} or a list of them"
        raise UsageError(
            f"parameter {parameter.name} is declared {parameter.type} and only {settable} can be "
            f"given: change its cell in the notebook"
        )
    try:
        if element:
            return [converter(part.strip()) for part in text.split(",")] if text.strip() else []
        return converter(text if parameter.type == "str" else text.strip())
    except (ValueError, KeyError):
        how = ", values separated by commas" if element else ""
        how = ", one of true, false, yes, no, 1, 0" if parameter.type == "bool" else how
        raise UsageError(
            f"{parameter.name}={text} is not of type {parameter.type}{how}: give {parameter}"
        ) from None


def convert(known: dict[str, Parameter], assignments: Iterable[str]) -> dict[str, object]:
    """Assignments such as "n_steps=20" as values of the declared types; nothing unknown passes."""
    values: dict[str, object] = {}
    for assignment in assignments:
        name, equals, text = assignment.partition("=")
        if not equals:
            raise UsageError(f"parameter {assignment!r} has no value: write it as name=value")
        if name not in known:
            allowed = "; ".join(map(str, known.values())) or "none, it has no parameters cell"
            raise UsageError(f"unknown parameter {name!r}: this lab takes {allowed}")
        if name in values:
            raise UsageError(f"parameter {name} is given twice: give it once")
        values[name] = _converted(known[name], text)
    return values


def _check_device(name: str) -> None:
    from lmtime.timing.conditions import find_device  # torch: only where a device was named

    find_device(name)


# Values of parameters that every lab may have, refused before anything is written.
CHECKS: dict[str, Callable[[str], None]] = {"preset": plans.check, "device": _check_device}


def run_lab(
    name: str, assignments: Iterable[str] = (), *, timeout_s: float = 86_400, say: Say = log.info
) -> Path:
    """Run a lab from its own folder and return the path of the executed notebook.

    assignments: "name=value" each. timeout_s: limit of the whole run. say: called with each
    line of output as it comes. The notebook appears as results/labs/<name>.ipynb only after
    the last cell; of a run that failed, was stopped or took too long, what there is stays in
    <name>.failed.ipynb.
    """
    source = find_lab(name)
    values = convert(parameters(source), assignments)
    for parameter, check in CHECKS.items():
        if parameter in values:
            check(values[parameter])
    folder = results_root() / "labs"
    target, failed = folder / source.name, folder / f"{source.stem}.failed.ipynb"
    folder.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=folder, prefix=f".{source.stem}.", suffix=".tmp") as place:
        partial = Path(place) / source.name
        try:
            problem = _Run(source, partial, values, timeout_s, say).problem()
            if problem is None:
                os.replace(partial, target)
                failed.unlink(missing_ok=True)
                return target
        finally:
            if kept := partial.exists():
                os.replace(partial, failed)
    where = f"see {failed}" if kept else "no cell had run"
    raise LabError(f"lab {source.stem} did not finish: {problem}; {where}")


@dataclass
class _Run:
    """One execution in a process of its own, watched from here."""

    source: Path
    output: Path
    values: dict[str, object]
    timeout_s: float
    say: Say
    n_cells_started: int = 0

    def problem(self) -> str | None:
        """Execute; None when every cell has run, else one sentence that says what went wrong."""
        errors = self.output.with_name("errors.txt")
        command = f"import sys, {__name__} as notebooks; notebooks.execute(*sys.argv[1:])"
        arguments = (str(self.source), str(self.output), json.dumps(self.values))
        with errors.open("wb") as stderr:
            child = subprocess.Popen(
                [sys.executable, "-c", command, *arguments],
                stdin=subprocess.PIPE,  # closes when this process ends, however it ends
                stdout=subprocess.PIPE,
                stderr=stderr,
                env={**os.environ, "JUPYTER_PREFER_ENV_PATH": "1"},
            )
            try:
                if not self._relay(child):
                    return f"it took longer than {self.timeout_s:g} s, {self._place()}"
            finally:
                _end(child)
        if child.returncode == 0:
            return None
        lines = errors.read_text(encoding="utf-8", errors="replace").split("\n")
        last = next((line for line in reversed(lines) if line.strip()), "the process ended")
        return self._cell_error() or f"{last}, {self._place()}"

    def _relay(self, child: subprocess.Popen) -> bool:
        """Say each line until the process has ended: True, or False at the limit."""
        lines: queue.Queue[bytes] = queue.Queue()

        def read() -> None:
            with child.stdout as stream:
                for line in stream:
                    lines.put(line)

        threading.Thread(target=read, daemon=True).start()
        deadline = time.monotonic() + self.timeout_s
        while (left_s := deadline - time.monotonic()) > 0:
            try:
                line = lines.get(timeout=min(left_s, 0.2))
            except queue.Empty:
                if child.poll() is not None:
                    return True
            else:
                self._say_line(line.decode("utf-8", errors="replace").rstrip().split("\r")[-1])
        return False

    def _say_line(self, line: str) -> None:
        if start := _CELL_STARTS.match(line):
            self.n_cells_started = int(start[1])
            self.say(f"cell {start[1]}")
        elif line and not _NOISE.match(line):
            self.say(line)

    def _cells(self) -> list[dict]:
        try:
            return json.loads(self.output.read_text(encoding="utf-8"))["cells"]
        except (OSError, ValueError, KeyError):  # not written, or cut short
            return []

    def _place(self) -> str:
        """Where the run was: in the cell that was started last."""
        n = self.n_cells_started
        cells = self._cells()
        if not n:
            return "before its first cell"
        return f"in {_named(cells[n - 1])}" if n <= len(cells) else f"in cell {n}"

    def _cell_error(self) -> str | None:
        """Which cell raised what, if one did."""
        for cell in self._cells():
            if cell["metadata"].get("papermill", {}).get("exception"):
                error = next(o for o in cell["outputs"] if o["output_type"] == "error")
                message = f"{error['ename']}: {error['evalue']}".strip(": \n")
                return f"{message.splitlines()[0]}, in {_named(cell)}"
        return None


def _named(cell: dict) -> str:
    """A cell by the first line of its code."""
    lines = "".join(cell["source"]).strip().splitlines()
    return f"the cell that starts with `{lines[0] if lines else ''}`"


def _end(child: subprocess.Popen) -> None:
    """End the process and, in order, its kernel."""
    child.stdin.close()
    if child.poll() is None:
        child.terminate()
        try:
            child.wait(GRACE_S)
        except subprocess.TimeoutExpired:
            child.kill()  # the kernel ends itself once its parent is gone
            child.wait()


def execute(source: str, output: str, values: str) -> None:
    """What that process does: execute a notebook from its folder and show its output lines.

    values: the parameters as a JSON object. A failing cell exits with 1 and shows in the output
    notebook; anything else ends in a traceback.
    """
    import papermill

    def stop(*_: object) -> None:
        signal.signal(signal.SIGTERM, signal.SIG_IGN)  # once is enough
        raise SystemExit(1)  # unwinds through the code that ends the kernel

    def stop_with_parent() -> None:
        sys.stdin.read()
        os.kill(os.getpid(), signal.SIGTERM)

    signal.signal(signal.SIGTERM, stop)
    threading.Thread(target=stop_with_parent, daemon=True).start()
    sys.stdout.reconfigure(encoding="utf-8", line_buffering=True)
    logger = logging.getLogger("papermill")
    logger.addHandler(logging.StreamHandler(sys.stdout))
    logger.setLevel(logging.INFO)
    options = {"kernel_name": "python3", "progress_bar": False, "log_output": True}
    try:
        papermill.execute_notebook(
            source, output, json.loads(values), cwd=str(Path(source).parent), **options
        )
    except papermill.PapermillExecutionError:
        raise SystemExit(1) from None
