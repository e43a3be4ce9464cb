"""Labelled text as batches: sequences of like length together, so that short ones stay cheap."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from tokenizers import Tokenizer
from torch import Tensor

from lmtime.errors import UsageError
from lmtime.tasks import Examples

TOKENIZER = "tokenizer.json"
MAX_LENGTH = 128  # tokens of a sequence, as DynaBERT cuts them
POOL = 32  # batches whose sequences are sorted by length together


@dataclass(frozen=True, eq=False)
class Tokenised:
    """Token ids and token types of each example; labels: (n,), int64, or float64 for numbers."""

    tokens: list[list[int]]
    types: list[list[int]]
    labels: np.ndarray

    def __len__(self) -> int:
        return len(self.tokens)

    def part(self, rows: np.ndarray) -> Tokenised:
        """The examples of these numbers."""
        return Tokenised(
            [self.tokens[i] for i in rows], [self.types[i] for i in rows], self.labels[rows]
        )


@dataclass(frozen=True, eq=False)
class Batch:
    """tokens, mask, types: (batch_size, length of the longest). labels, rows: (batch_size,).

    rows: which examples these are.
    """

    tokens: Tensor
    mask: Tensor
    types: Tensor
    labels: Tensor
    rows: np.ndarray

    @property
    def inputs(self) -> tuple[Tensor, Tensor, Tensor]:
        """As an encoder takes them."""
        return self.tokens, self.mask, self.types


def tokenise(folder: str | Path, examples: Examples, *, max_length: int = MAX_LENGTH) -> Tokenised:
    """By the tokenizer.json of a checkpoint's folder; of pairs, the longer text is cut first."""
    path = Path(folder) / TOKENIZER
    if not path.is_file():
        raise UsageError(f"{folder} has no {TOKENIZER}: save the tokenizer of the network there")
    try:
        tokenizer = Tokenizer.from_file(str(path))
    except Exception as error:  # the library raises nothing narrower
        raise UsageError(f"{path} is no tokenizer ({error}): get the file anew") from None
    tokenizer.no_padding()
    tokenizer.enable_truncation(max_length)
    pairs = [text if text[1] is not None else text[0] for text in examples.texts]
    found = tokenizer.encode_batch(pairs)
    return Tokenised([f.ids for f in found], [f.type_ids for f in found], examples.labels)


def batches(
    data: Tokenised, batch_size: int, rng: np.random.Generator | None = None
) -> Iterator[Batch]:
    """All examples once: in an order drawn from rng, absent from the shortest to the longest."""
    lengths = np.array([len(tokens) for tokens in data.tokens])
    if rng is None:
        yield from (_batch(data, rows) for rows in _chunks(_sorted(lengths), batch_size))
        return
    drawn = rng.permutation(len(data))
    chunks = [
        pool[rows]
        for pool in _chunks(drawn, POOL * batch_size)
        for rows in _chunks(_sorted(lengths[pool]), batch_size)
    ]
    for i in rng.permutation(len(chunks)):
        yield _batch(data, chunks[i])


def n_batches(n_examples: int, batch_size: int) -> int:
    """Batches that hold all examples once."""
    whole, rest = divmod(n_examples, POOL * batch_size)
    return whole * POOL + -(-rest // batch_size)


def _sorted(lengths: np.ndarray) -> np.ndarray:
    return np.argsort(lengths, kind="stable")


def _chunks(values: np.ndarray, size: int) -> list[np.ndarray]:
    return [values[i : i + size] for i in range(0, len(values), size)]


def _batch(data: Tokenised, rows: np.ndarray) -> Batch:
    longest = max(len(data.tokens[i]) for i in rows)
    tokens, types = np.zeros((2, len(rows), longest), dtype=np.int64)
    mask = np.zeros((len(rows), longest), dtype=bool)
    for row, i in enumerate(rows):
        n = len(data.tokens[i])
        tokens[row, :n], types[row, :n], mask[row, :n] = data.tokens[i], data.types[i], True
    labels = torch.from_numpy(data.labels[rows])
    return Batch(*map(torch.from_numpy, (tokens, mask, types)), labels, rows)
