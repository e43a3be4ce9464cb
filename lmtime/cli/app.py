"""The `lmtime` command: parse, call, print. Results go to standard output, all else to error.

Exit codes: 0 done; 1 failed; 2 the caller's mistake, told in one sentence.
"""

from __future__ import annotations

from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Annotated, Optional

import typer

from lmtime import plans
from lmtime.calibration import read_calibration, write_calibration
from lmtime.cli import terminal
from lmtime.cli.cutoffs import cutoffs
from lmtime.cli.documents import command_line as _command
from lmtime.cli.documents import emit as _emit
from lmtime.cli.documents import require_folder as _require_folder
from lmtime.cli.documents import say as _say
from lmtime.cli.documents import write_json as _write_json
from lmtime.cli.layers import compare, train
from lmtime.cli.options import shaped
from lmtime.cli.pareto import app as pareto_app
from lmtime.config import PRESETS, configure, model_name, preset_row
from lmtime.errors import UsageError
from lmtime.records import Study, document

app = typer.Typer(
    help="Where the time of a language model's step goes, why, and what to do instead.",
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
)
corpus_app = typer.Typer(help="Text to measure on.")
app.add_typer(corpus_app, name="corpus")
app.add_typer(pareto_app, name="pareto")
app.command()(cutoffs)
app.command()(compare)
app.command()(train)

Model = Annotated[Optional[str], typer.Argument(help="A preset (see --list) or a config.json.")]
Whole = Optional[int]
Json = Annotated[Optional[str], typer.Option("--json", help="Write JSON to a file; - prints it.")]
Device = Annotated[str, typer.Option(help="auto, cpu or cuda.")]
Optimizer = Annotated[
    Optional[str],
    typer.Option(help="sgd, momentum, nesterov, adam or adamw, or one with -fused behind it."),
]
List = Annotated[bool, typer.Option("--list", help="List the presets and stop.")]


@app.command()
@shaped
def profile(
    model: Model = None,
    shape: dict | None = None,
    corpus: Annotated[
        Optional[str], typer.Option(help="See `lmtime corpus list`; the model's own if absent.")
    ] = None,
    phase: Annotated[str, typer.Option(help="train or forward.")] = "train",
    device: Device = "auto",
    dtype: Annotated[str, typer.Option(help="fp32, tf32 or bf16 (autocast).")] = "fp32",
    optimizer: Optimizer = None,
    steps: Annotated[Whole, typer.Option(help="Exact number of steps; else until steady.")] = None,
    json_to: Json = None,
    trace: Annotated[Optional[Path], typer.Option(help="Write a traced step for Perfetto.")] = None,
    keep_pages: Annotated[
        bool, typer.Option("--keep-pages", help="On a CPU: keep freed memory, for steadier steps.")
    ] = False,
    show_list: List = False,
) -> None:
    """Measure where the time of one step goes on this machine, layer by layer."""
    if show_list or model is None:
        return _list_presets(show_list)
    config = configure(model, **shape)
    _require_folder(json_to, trace)
    if steps is not None and steps < 1:
        raise UsageError(f"--steps {steps} measures nothing: give 1 or more")
    from lmtime import study
    from lmtime.timing import StopRule

    if keep_pages:
        _keep_pages()
    rule = StopRule() if steps is None else StopRule(n_min=steps, n_max=steps, max_s=1e9)
    setup = study.Setup(device, dtype, phase, corpus, rule=rule, optimizer=optimizer)
    with terminal.progress() as say:
        done = study.profile(model_name(model), config, setup, command=_command(), say=say)
    if trace is not None:
        done.measured.trace.write(trace)
    _emit(study.profile_document(done), json_to, terminal.print_profile)
    if done.measured.quality:
        _say(f"lmtime: not a result, and its rows are marked: {done.measured.quality}")


@app.command()
@shaped
def predict(
    model: Model = None,
    shape: dict | None = None,
    gpu: Annotated[Optional[str], typer.Option(help="A GPU by name; v100-sxm2 if absent.")] = None,
    calibration: Annotated[
        Optional[Path], typer.Option(help="Rates measured by `lmtime calibrate`.")
    ] = None,
    dtype: Annotated[str, typer.Option(help="fp32, tf32, bf16 or bf16-fp32-loss.")] = "fp32",
    optimizer: Optimizer = None,
    json_to: Json = None,
    show_list: List = False,
) -> None:
    """Predict time and memory of a training step from shapes alone, for any GPU of the table."""
    if show_list or model is None:
        return _list_presets(show_list)
    if gpu is not None and calibration is not None:
        raise UsageError("--gpu and --calibration were both given: choose one device")
    config = configure(model, **shape)
    from lmtime.cost import predict as predicted
    from lmtime.cost.memory import training_bytes
    from lmtime.hardware import find_gpu

    device = read_calibration(calibration) if calibration else find_gpu(gpu or "v100-sxm2")
    _require_folder(json_to)
    options = dict(dtype=dtype, optimizer=optimizer)
    rows = [r.to_row() for r in predicted.predict(model_name(model), config, device, **options)]
    source = getattr(device, "source", None) or getattr(device, "provenance", None)
    conditions = {"command": _command(), "device": rows[0]["device_name"], "source": source}
    operators = predicted.step_costs(config, device, **options)
    found = {
        "memory": training_bytes(
            config,
            precision=predicted.find_precision(dtype),
            optimizer=predicted.optimizer_of(config, optimizer, rows[0]["device"]),
        ).row(),
        "waiting": predicted.waiting(operators, device, dtype),
    }
    _emit(document("predict", conditions, rows, **found), json_to, terminal.print_prediction)


@app.command()
def calibrate(
    device: Device = "auto",
    dtype: Annotated[Optional[list[str]], typer.Option(help="fp32 if absent; repeatable.")] = None,
    steps: Annotated[
        bool, typer.Option("--steps", help="End with steps of a few shapes: two minutes more.")
    ] = False,
    out: Annotated[Optional[Path], typer.Option(help="Write the JSON here, not to output.")] = None,
) -> None:
    """Measure rates by size, and what launching and waiting cost; below 2 minutes without steps."""
    _require_folder(out)
    from lmtime import study
    from lmtime.timing.calibrate import calibrate_fully
    from lmtime.timing.conditions import find_device

    device = find_device(device)
    _keep_pages()
    with terminal.progress() as say:
        found = calibrate_fully(device, dtype, command=_command(), say=say)
        if steps:
            with TemporaryDirectory() as folder:
                kept = Study(Path(folder), "reference")
                found = study.with_steps(found, kept, command=_command(), say=say)
    if out is None:
        typer.echo(found.to_json(), nl=False)
    else:
        write_calibration(out, found)
        _say(f"wrote {out}")


def _keep_pages() -> None:
    """Keep memory in the process, as GPUs do; says where the system cannot."""
    from lmtime.timing.pages import keep_pages

    if not keep_pages():
        _say("lmtime: this system's C library cannot be told to keep pages: steps will spread more")


@app.command()
def run(
    lab: Annotated[str, typer.Argument(help="A notebook of book/labs, as in lab_profile.")],
    parameters: Annotated[
        Optional[list[str]], typer.Option("-p", help="name=value; may be given often.")
    ] = None,
) -> None:
    """Run a lab: a notebook that measures and writes records."""
    from lmtime.publishing.notebooks import run_lab

    with terminal.progress() as say:
        path = run_lab(lab, parameters or [], say=say)
    typer.echo(path)


@app.command()
def study(
    preset: Annotated[str, typer.Option(help="quick (twenty minutes) or paper (hours).")] = "quick",
    device: Device = "auto",
) -> None:
    """Run every lab; what has been measured already is not measured again."""
    plans.check(preset)
    from lmtime.publishing.notebooks import labs, run_lab
    from lmtime.timing.conditions import find_device

    device = find_device(device)

    with terminal.progress() as say:
        names = labs()
        for i, name in enumerate(names, 1):
            title = f"{name} ({i} of {len(names)})"
            run_lab(
                name,
                [f"preset={preset}", f"device={device}"],
                say=lambda text, title=title: say(f"{title}: {text}"),
            )


@app.command()
def book(serve: Annotated[bool, typer.Option(help="Show it on a local port.")] = False) -> None:
    """Build the book from the records at hand and say where it is."""
    from lmtime.publishing import build

    with terminal.progress() as say:
        index = build.build_book(say=say)
    for line in build.headline():
        typer.echo(line)
    typer.echo(f"The book: {index}")
    if serve:
        build.serve(index.parent, say=_say)


@corpus_app.command("list")
def corpus_list() -> None:
    """Name the corpora and say which are at hand."""
    from lmtime import corpora

    terminal.print_rows([dict(row) for row in corpora.listing()])


@corpus_app.command("fetch")
def corpus_fetch(name: str) -> None:
    """Download or prepare a corpus and keep it in the cache."""
    from lmtime import corpora

    with terminal.progress() as say:
        path = corpora.fetch(name, progress=lambda part: say(f"{name}: {100 * part:.0f} %"))
    typer.echo(path)


@corpus_app.command("show")
def corpus_show(name: str, vocab_size: Whole = None, json_to: Json = None) -> None:
    """Tokens, types, coverage and the most frequent words of a corpus."""
    from lmtime import corpora

    _require_folder(json_to)
    facts = corpora.describe(name, vocab_size=vocab_size)
    if json_to:
        _write_json(document("corpus show", {}, [facts]), json_to)
    else:
        terminal.print_rows([{"what": key, "value": value} for key, value in facts.items()])


def main() -> None:
    """Run the command line and end the process with its exit code."""
    bad_command_line = typer.BadParameter.__mro__[1]  # typer names only this subclass of it
    try:
        if app(standalone_mode=False) == 130:  # what typer makes of an interruption
            raise KeyboardInterrupt
    except UsageError as error:
        code, text = 2, str(error)
    except bad_command_line as error:
        code, text = 2, f"{error.format_message().rstrip('.')}: see `lmtime --help`"
    except (KeyboardInterrupt, typer.Abort):
        code, text = 1, "interrupted; what was finished is kept"
    except (RuntimeError, OSError) as error:
        code, text = 1, str(error)
    else:
        return
    _say(f"lmtime: {text}")
    raise SystemExit(code)


# -- helpers ----------------------------------------------------------------------------------


def _list_presets(asked: bool) -> None:
    if not asked:
        raise UsageError(f"no model was given: choose one of {', '.join(PRESETS)}")
    terminal.print_rows([preset_row(name) for name in PRESETS])
