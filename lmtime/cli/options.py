"""The shape options that commands share: one for each field of a configuration."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from functools import wraps
from typing import Annotated, Any, Optional

import typer

from lmtime.config import cutoffs_of_bands
from lmtime.errors import UsageError

# Field of a configuration -> type on the command line, help.
SHAPES: dict[str, tuple[type, str]] = {
    "hidden_size": (int, "Width of the body; a convolutional network's final width follows it."),
    "final_hidden_size": (int, "Width before the output layer."),
    "embedding_size": (int, "Width of the embedding."),
    "kernel_size": (int, "Taps of a convolution."),
    "ffn_size": (int, "Width of the feed-forward layers."),
    "n_heads": (int, "Heads of attention."),
    "n_kv_heads": (int, "Heads of keys and values."),
    "head_size": (int, "Width of a head."),
    "n_layers": (int, "Number of layers."),
    "vocab_size": (int, "Words of the vocabulary."),
    "cutoffs": (str, "Ends of the clusters, cumulative, as in 2000,10000."),
    "band_sizes": (str, "Instead of cutoffs and vocabulary: words in each cluster."),
    "div_value": (float, "Ratio of one tail's width to the next."),
    "output_layer": (str, "adaptive (torch's), fused-adaptive, full or chunked."),
    "tail_widths": (str, "Of fused-adaptive: dimensions of each tail, as in 256,64."),
    "head_rank": (int, "Of fused-adaptive: dimensions that the head's product goes through."),
    "shared_rank": (int, "Of fused-adaptive: one projection for head and tails."),
    "dropout": (float, "Part of the activations that is dropped in training."),
    "batch_size": (int, "Sequences in a step."),
    "seq_len": (int, "Tokens in a sequence."),
}


def shaped(command: Callable[..., Any]) -> Callable[..., Any]:
    """Gives a command the shape options; it receives those that were given as `shape`."""

    @wraps(command)
    def run(**given: Any) -> Any:
        shape = {name: given.pop(name) for name in SHAPES}
        return command(shape=_parsed(shape), **given)

    signature = inspect.signature(command, eval_str=True)
    own = [p for name, p in signature.parameters.items() if name != "shape"]
    added = [
        inspect.Parameter(
            name,
            inspect.Parameter.KEYWORD_ONLY,
            default=None,
            annotation=Annotated[Optional[kind], typer.Option(help=text)],
        )
        for name, (kind, text) in SHAPES.items()
    ]
    positional = [p.replace(kind=inspect.Parameter.KEYWORD_ONLY) for p in own]
    parameters = [positional[0], *added, *positional[1:]]
    run.__signature__ = signature.replace(parameters=parameters)
    run.__annotations__ = {p.name: p.annotation for p in parameters} | {"return": None}
    del run.__wrapped__
    return run


def _parsed(shape: dict[str, Any]) -> dict[str, Any]:
    """Only what was given, lists of numbers as tuples, band sizes as cutoffs and vocabulary."""
    given = {name: value for name, value in shape.items() if value is not None}
    for name in ("cutoffs", "band_sizes", "tail_widths"):
        if name in given:
            given[name] = numbers(name, given[name])
    if "band_sizes" in given:
        if "cutoffs" in given or "vocab_size" in given:
            raise UsageError("--band-sizes already say the cutoffs and the vocabulary: give either")
        given["cutoffs"], given["vocab_size"] = cutoffs_of_bands(given.pop("band_sizes"))
    return given


def numbers(name: str, text: str) -> tuple[int, ...]:
    """A list of whole numbers as it is typed; name: the field of the option."""
    try:
        return tuple(int(part) for part in text.split(","))
    except ValueError:
        raise UsageError(
            f"--{name.replace('_', '-')} {text!r} is not a list of whole numbers: "
            f"write them as in 2000,10000"
        ) from None
