"""The convolutional network as its vocabulary grows: full, and adaptive by either rule. Traceable.

The cutoffs of an adaptive softmax either stay where they are, or move with the vocabulary.
"""

from __future__ import annotations

from itertools import pairwise
from types import SimpleNamespace
from typing import Any

from lmtime.config import GCNConfig
from lmtime.cost.gcn import gcn
from lmtime.cost.output_layers import Rows, floor_divide
from lmtime.cost.zipf import WIDE

SMALLEST, LARGEST = 2_000, 1_000_000  # words
CUTOFFS, WORDS = GCNConfig.cutoffs, GCNConfig.vocab_size


def cutoffs(vocab_size: Any, scaled: Any) -> tuple[Any, ...]:
    """scaled: 1 for the same parts of every vocabulary as of the default one, 0 for its cutoffs."""
    parts = [floor_divide(vocab_size * c, WORDS) for c in CUTOFFS]
    return tuple(scaled * part + (1 - scaled) * c for part, c in zip(parts, CUTOFFS, strict=True))


def tails(n_tokens: Any, ends: tuple[Any, ...]) -> list[Any]:
    """Targets expected in each cluster between two ends, by a law of word counts."""
    shares = [WIDE.cumulative_share(end) for end in ends]
    return [n_tokens * (high - low) for low, high in pairwise(shares)]


def network(hidden_size: Any, vocab_size: Any, batch_size: Any) -> SimpleNamespace:
    """A default network of another width, vocabulary and batch, with a full softmax."""
    return SimpleNamespace(
        **vars(GCNConfig())
        | {
            "hidden_size": hidden_size,
            "final_hidden_size": hidden_size,
            "vocab_size": vocab_size,
            "batch_size": batch_size,
            "output_layer": "full",
            "widens": False,
        }
    )


def full_rows(hidden_size: Any, vocab_size: Any, batch_size: Any) -> Rows:
    """Operators of a step with a full softmax."""
    return gcn(network(hidden_size, vocab_size, batch_size), [])


def adaptive_rows(hidden_size: Any, vocab_size: Any, batch_size: Any, scaled: Any) -> Rows:
    """Operators of a step with an adaptive softmax."""
    ends = cutoffs(vocab_size, scaled)
    hits = tails(batch_size * GCNConfig.seq_len, (*ends, vocab_size))
    return adaptive_rows_of(network(hidden_size, vocab_size, batch_size), ends, hits)


def adaptive_rows_of(shape: SimpleNamespace, ends: tuple[Any, ...], hits: list[Any]) -> Rows:
    """The same where cutoffs and hits are known."""
    shape.output_layer, shape.cutoffs = "adaptive", ends
    return gcn(shape, hits)
