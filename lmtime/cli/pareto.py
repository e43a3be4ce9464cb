"""`lmtime pareto`: measure, train and search sub-networks of an encoder, ask for one, export it."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path
from typing import Annotated, Optional

import typer

from lmtime.cli import terminal
from lmtime.cli.documents import command_line, emit, require_folder, say
from lmtime.errors import UsageError, unknown
from lmtime.records import document

app = typer.Typer(help="Sub-networks of a BERT-type encoder: which one for a task, on a device?")

Network = Annotated[Optional[str], typer.Option(help="bert-base, distilbert or minilm-l6.")]
Task = Annotated[str, typer.Option(help="sentiment, sst2, cola, rte, mrpc or another of GLUE.")]
Device = Annotated[
    str, typer.Option(help="cpu-1-thread, cpu-2-threads, ... or cuda: what latency is of.")
]
Engine = Annotated[str, typer.Option(help="torch or onnxruntime.")]
Batch = Annotated[int, typer.Option("--batch-size", help="Sequences in a call.")]
Length = Annotated[int, typer.Option("--seq-len", help="Tokens of a sequence.")]
MaxLatency = Annotated[Optional[float], typer.Option(help="The most that it may take.")]
MinScore = Annotated[Optional[float], typer.Option(help="The least points that it must have.")]
Seed = Annotated[int, typer.Option(help="Of the super-network's training.")]
Json = Annotated[Optional[str], typer.Option("--json", help="Write JSON to a file; - prints it.")]

DEVICE, MINILM = "cpu-1-thread", "minilm-l6"
SPACES = ("grid", "layers")


@app.command()
def measure(
    network: Network = MINILM,
    space: Annotated[
        str, typer.Option(help="grid: widths x depths. layers: each layer its own.")
    ] = "grid",
    device: Device = DEVICE,
    engine: Engine = "torch",
    batch_size: Batch = 1,
    seq_len: Length = 128,
    rounds: Annotated[int, typer.Option(help="Samples of each sub-network.")] = 15,
    json_to: Json = None,
) -> None:
    """Measure latencies in interleaved rounds; what has been measured is not measured again."""
    require_folder(json_to)
    if space not in SPACES:
        raise unknown("space", space, list(SPACES))
    for name, value, least in (("rounds", rounds, 6), ("batch-size", batch_size, 1)):
        if value < least:
            raise UsageError(f"--{name} {value} must be at least {least}")
    from lmtime.encoders import layer_latency
    from lmtime.encoders.fronts import Place
    from lmtime.encoders.plans import Rounds

    place = Place(device, engine, batch_size, seq_len)
    with terminal.progress() as tell:
        path = layer_latency.measure(
            network, place, space=space, wanted=Rounds(rounds), command=command_line(), say=tell
        )
    doc = layer_latency.measured_document(path, network, place, space)
    emit(doc, json_to, terminal.print_latencies)


@app.command()
def train(
    network: Network = MINILM,
    task: Task = "sentiment",
    preset: Annotated[
        str, typer.Option(help="quick (a minute) or paper (half an hour).")
    ] = "paper",
    weights: Annotated[
        Optional[Path], typer.Option(help="A folder with weights, where the network is another.")
    ] = None,
    seed: Seed = 0,
    json_to: Json = None,
) -> None:
    """Train a super-network for a task and score every width and depth; it resumes."""
    require_folder(json_to)
    from lmtime.encoders import supernets

    job = supernets.Job(network, task, seed, weights)
    with terminal.progress() as tell:
        path = supernets.run(job, supernets.budget_of(preset), command=command_line(), say=tell)
    rows, conditions = supernets.rows_of(job)
    doc = document("pareto train", conditions, rows, file=str(path), folder=str(job.folder))
    emit(doc, json_to, terminal.print_scores)


@app.command()
def search(
    network: Network = MINILM,
    task: Task = "sentiment",
    device: Device = DEVICE,
    engine: Engine = "torch",
    batch_size: Batch = 1,
    seq_len: Length = 128,
    evaluations: Annotated[int, typer.Option(help="Sub-networks that are scored.")] = 150,
    examples: Annotated[
        Optional[int], typer.Option(help="Of the development set, to score with; all if absent.")
    ] = None,
    max_latency_ms: MaxLatency = None,
    min_score: MinScore = None,
    storage: Annotated[
        Optional[str],
        typer.Option(help="Shared by workers: a journal file, or an Optuna database URL."),
    ] = None,
    seed: Seed = 0,
    search_seed: Annotated[int, typer.Option(help="Of the search: one a worker.")] = 0,
    json_to: Json = None,
) -> None:
    """Search heads, widths and depth layer by layer, and measure the front that is found."""
    require_folder(json_to)
    from lmtime.encoders import searches, supernets
    from lmtime.encoders.fronts import Place

    place = Place(device, engine, batch_size, seq_len)
    job = supernets.Job(network, task, seed)
    budget = _budget(max_latency_ms, min_score)
    plan = searches.Plan(job, place, evaluations, examples, storage=storage, seed=search_seed)
    with terminal.progress() as tell:
        doc = searches.search_document(plan, budget, command=command_line(), say=tell)
    emit(doc, json_to, terminal.print_search)


@app.command()
def front(
    task: Task = "sentiment",
    network: Network = None,
    device: Device = DEVICE,
    engine: Engine = "torch",
    batch_size: Batch = 1,
    seq_len: Length = 128,
    max_latency_ms: MaxLatency = None,
    min_score: MinScore = None,
    json_to: Json = None,
) -> None:
    """Answer from records: scores, latencies, and how sure each place on the front is."""
    require_folder(json_to)
    from lmtime.encoders import fronts

    found = fronts.task_front(
        task,
        fronts.Place(device, engine, batch_size, seq_len),
        network=network,
        budget=_budget(max_latency_ms, min_score),
    )
    found.table.require_feasible()
    emit(found.document(), json_to, terminal.print_front)


@app.command()
def export(
    sub_network: Annotated[str, typer.Argument(help="As in 'w3/4 d5/6', or layers|heads|widths.")],
    out: Annotated[Path, typer.Option(help="The folder to write; it must not hold anything.")],
    network: Network = MINILM,
    task: Task = "sentiment",
    device: Device = DEVICE,
    onnx: Annotated[bool, typer.Option(help="Write model.onnx too.")] = True,
    seed: Seed = 0,
    json_to: Json = None,
) -> None:
    """Write a sub-network as a smaller network of its own, with its tokenizer and as ONNX."""
    require_folder(json_to)
    from lmtime.config import find_encoder
    from lmtime.encoders import exports, supernets
    from lmtime.encoders.fronts import Place
    from lmtime.timing.conditions import provenance

    sub = exports.named(sub_network, find_encoder(network))
    job = supernets.Job(network, task, seed)
    done = exports.export(job, sub, out, Place(device), with_onnx=onnx)
    conditions = asdict(provenance(command_line(), "cuda" if device == "cuda" else "cpu"))
    doc = document("pareto export", conditions, [done.card], folder=str(done.folder))
    emit(doc, json_to, lambda found: say(exports.in_words(found)))


def _budget(max_latency_ms: float | None, min_score: float | None):
    from lmtime.pareto.front import Budget  # NumPy takes a while to import

    limits = {"max_latency_ms": max_latency_ms, "min_score": min_score}
    return Budget(**{name: value for name, value in limits.items() if value is not None})
