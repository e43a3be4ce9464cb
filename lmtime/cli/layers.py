"""`lmtime compare` and `lmtime train`: what an output layer costs, and what it is worth."""

from __future__ import annotations

from typing import Annotated, Optional

import typer

from lmtime.cli import terminal
from lmtime.cli.documents import command_line, emit, require_folder, say
from lmtime.cli.options import numbers, shaped
from lmtime.config import configure, model_name
from lmtime.errors import UsageError

LAYERS = (
    "torch-adaptive,fused-adaptive,fused-adaptive-planned,fused-adaptive-fast,six tails,"
    "torch-full,chunked"
)
Json = Annotated[Optional[str], typer.Option("--json", help="Write JSON to a file; - prints it.")]


def compare(
    hidden_size: Annotated[int, typer.Option(help="Width before the output layer.")] = 1024,
    vocab_size: Annotated[int, typer.Option(help="Words of the vocabulary.")] = 33_278,
    n_tokens: Annotated[int, typer.Option(help="Targets in a step.")] = 1024,
    cutoffs: Annotated[str, typer.Option(help="Of torch's adaptive softmax.")] = "2000,10000",
    layers: Annotated[str, typer.Option(help="Names, separated by commas.")] = LAYERS,
    device: Annotated[str, typer.Option(help="auto, cpu or cuda.")] = "auto",
    seconds: Annotated[float, typer.Option(help="To measure for, about.")] = 15.0,
    pages_kept: Annotated[
        bool,
        typer.Option(
            "--keep-pages/--return-pages",
            help="On a CPU: keep freed memory, for steadier steps, or give it back to the system.",
        ),
    ] = True,
    json_to: Json = None,
) -> None:
    """Time output layers side by side, forward and backward, beside the bare matrix products."""
    if seconds <= 0:
        raise UsageError(f"--seconds {seconds} must be more than 0")
    require_folder(json_to)
    sizes = (hidden_size, vocab_size, n_tokens)
    from lmtime import compare as comparison
    from lmtime.timing.conditions import find_device
    from lmtime.timing.pages import keep_pages

    shape = comparison.Shape(*sizes, cutoffs=numbers("cutoffs", cutoffs))
    device = find_device(device)
    if pages_kept:
        keep_pages()
    with terminal.progress() as tell:
        doc = comparison.compared_document(
            layers.split(","), shape, device, max_s=seconds, command=command_line(), say=tell
        )
    emit(doc, json_to, terminal.print_comparison)


@shaped
def train(
    model: Annotated[Optional[str], typer.Argument(help="gcn or a transformer preset.")] = None,
    shape: dict | None = None,
    corpus: Annotated[
        Optional[str], typer.Option(help="See `lmtime corpus list`; the model's own if absent.")
    ] = None,
    n_tokens: Annotated[int, typer.Option(help="Tokens to train on.")] = 1_000_000,
    learning_rate: Annotated[float, typer.Option(help="Of AdamW, at its highest.")] = 3e-3,
    seed: Annotated[int, typer.Option(help="Of the weights and of the order of the text.")] = 0,
    json_to: Json = None,
) -> None:
    """Train a model under a budget and tell the perplexity of held-out text."""
    config = configure(model or "gcn", **shape)
    require_folder(json_to)
    from lmtime import trials
    from lmtime.models.training import Budget

    budget = Budget(n_tokens, learning_rate)
    with terminal.progress() as tell:
        doc = trials.trial_document(
            model_name(model or "gcn"),
            config,
            budget,
            seed,
            corpus=corpus,
            command=command_line(),
            say=tell,
        )
    emit(doc, json_to, lambda found: say(trials.in_words(found["rows"][0])))
