"""Laws of the shape options: each field has one, and a command gets what was given."""

import dataclasses

import pytest
import typer
from typer.testing import CliRunner

from lmtime.cli.options import SHAPES, shaped
from lmtime.config import GCNConfig, TransformerConfig
from lmtime.config.huggingface import KEYS
from lmtime.errors import UsageError

received = {}
app = typer.Typer()


@app.command()
@shaped
def command(model: str, shape: dict | None = None, fast: bool = False) -> None:
    received.update(model=model, shape=shape, fast=fast)


def shape_of(*words):
    received.clear()
    done = CliRunner().invoke(app, ["a-model", *words], catch_exceptions=False)
    assert done.exit_code == 0, done.output
    return received["shape"]


def test_every_field_has_its_option():
    fields = {
        f.name for config in (GCNConfig, TransformerConfig) for f in dataclasses.fields(config)
    }
    assert fields | set(KEYS) - {"max_len"} | {"band_sizes"} == set(SHAPES)


def test_only_what_was_given_arrives():
    assert shape_of() == {}
    assert shape_of("--hidden-size", "32", "--div-value", "2.5", "--fast") == {
        "hidden_size": 32,
        "div_value": 2.5,
    }
    assert received["model"] == "a-model"
    assert received["fast"]


def test_lists_are_tuples_and_bands_are_cutoffs():
    assert shape_of("--cutoffs", "5,10") == {"cutoffs": (5, 10)}
    assert shape_of("--band-sizes", "5,5,20") == {"cutoffs": (5, 10), "vocab_size": 30}


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (("--cutoffs", "5,x"), "--cutoffs '5,x' is not a list of whole numbers"),
        (("--band-sizes", "5;6"), "--band-sizes '5;6' is not a list of whole numbers"),
        (("--band-sizes", "5"), "two or more"),
        (("--band-sizes", "5,6", "--cutoffs", "5"), "give either"),
        (("--band-sizes", "5,6", "--vocab-size", "11"), "give either"),
    ],
)
def test_what_is_no_list_is_refused(words, message):
    with pytest.raises(UsageError, match=message):
        shape_of(*words)
