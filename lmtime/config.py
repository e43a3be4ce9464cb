"""What is timed: the shapes of a model and of one step. Standard library only.

Every field is a number or a name that a command-line option sets (`hidden_size` is
`--hidden-size`). A configuration is checked once, when it is built, and never changes.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

from lmtime.errors import UsageError, unknown

OUTPUT_LAYER_NAMES = ("adaptive", "full")
MAX_SIZE = 2**40  # of any count or width; beyond it products are no exact numbers


def _require_positive(config: object, names: tuple[str, ...]) -> None:
    for name in names:
        value = getattr(config, name)
        whole = hasattr(value, "__index__") and not isinstance(value, bool)
        if not whole or value < 1:
            raise UsageError(f"{name}={value!r} must be a whole number of at least 1")
        if value > MAX_SIZE:
            raise UsageError(f"{name} is too large: {MAX_SIZE} is the most")
        object.__setattr__(config, name, int(value))  # NumPy's integers are not JSON's


@dataclass(frozen=True)
class AdaptiveSoftmaxConfig:
    """Partition of a vocabulary whose ids are sorted by frequency (Grave et al. 2017).

    cutoffs are cumulative: cutoffs (2000, 10000) over 33,278 words make a short list of 2,000
    words and two tail clusters of 8,000 and 23,278. Tail cluster i (from 1) is projected to
    hidden_size / div_value**i dimensions, rounded down, as torch does.
    """

    hidden_size: int
    vocab_size: int
    cutoffs: tuple[int, ...]
    div_value: float = 4.0

    def __post_init__(self) -> None:
        _require_positive(self, ("hidden_size", "vocab_size"))
        object.__setattr__(self, "cutoffs", _checked_cutoffs(self.cutoffs, self.vocab_size))
        object.__setattr__(self, "div_value", _checked_div_value(self.div_value))
        if min(self.tail_dims) < 1:
            raise UsageError(
                f"div_value={self.div_value:g} leaves tail cluster {len(self.cutoffs)} none of the "
                f"{self.hidden_size} hidden dimensions: lower it, use fewer cutoffs or a larger "
                f"hidden size"
            )

    @property
    def head_size(self) -> int:
        """Rows of the head matrix: the short list and one entry for each tail cluster."""
        return head_size(self.cutoffs)

    @property
    def tail_sizes(self) -> tuple[int, ...]:
        """Words in each tail cluster."""
        return tuple(tail_sizes(self.cutoffs, self.vocab_size))

    @property
    def tail_dims(self) -> tuple[int, ...]:
        """Width that each tail cluster's words are compared in."""
        return tuple(
            int(self.hidden_size // self.div_value**i) for i in range(1, len(self.cutoffs) + 1)
        )


def head_size(cutoffs: Sequence[Any]) -> Any:
    """Rows of the head matrix; also of Altair parameters."""
    return cutoffs[0] + len(cutoffs)


def tail_sizes(cutoffs: Sequence[Any], vocab_size: Any) -> list[Any]:
    """Words in each tail cluster; also of Altair parameters."""
    ends = (*cutoffs[1:], vocab_size)
    return [end - start for start, end in zip(cutoffs, ends, strict=True)]


def _checked_div_value(div_value: float) -> float:
    """A plain float; powers of more extreme ones are no numbers."""
    if not 0.01 <= div_value <= 1000:
        raise UsageError(f"div_value={div_value} must lie between 0.01 and 1000")
    return float(div_value)


def _checked_cutoffs(cutoffs: tuple[int, ...], vocab_size: int) -> tuple[int, ...]:
    """Cutoffs as plain ints, or an error that shows the rule they break."""
    rule = f"they must be whole numbers that rise and lie between 1 and {vocab_size - 1}"
    try:
        shown = ",".join(str(c) for c in cutoffs) or "(none)"
        whole = tuple(int(c) for c in cutoffs)
        exact = all(a == b for a, b in zip(whole, cutoffs, strict=True))
    except (TypeError, ValueError, OverflowError):
        shown, exact = repr(cutoffs), False
    if not exact:
        raise UsageError(f"cutoffs {shown} are not allowed: {rule}")
    if whole and whole[-1] == vocab_size:  # fairseq closes the list with the vocabulary itself
        whole = whole[:-1]
    if not whole:
        raise UsageError(f"cutoffs {shown} leave no tail: {rule}, or choose output_layer full")
    if whole[0] < 1 or whole[-1] >= vocab_size or any(a >= b for a, b in pairwise(whole)):
        raise UsageError(f"cutoffs {shown} do not fit a vocabulary of {vocab_size} words: {rule}")
    return whole


@dataclass(frozen=True)
class GCNConfig:
    """A gated convolutional language model after Dauphin et al. (2017), and one training step.

    The paper's network has five layers; every other number here is our reconstruction. The last
    layer ends in `final_hidden_size`, so that the state before the output layer can grow alone.
    """

    hidden_size: int = 256
    final_hidden_size: int = 256
    embedding_size: int = 256
    kernel_size: int = 4
    n_layers: int = 5
    vocab_size: int = 33_278  # of WikiText-2
    cutoffs: tuple[int, ...] = (2_000, 10_000)
    div_value: float = 4.0
    output_layer: str = "adaptive"
    batch_size: int = 8
    seq_len: int = 128

    def __post_init__(self) -> None:
        _require_positive(self, _WHOLE_FIELDS)
        if self.output_layer not in OUTPUT_LAYER_NAMES:
            raise unknown("output layer", self.output_layer, list(OUTPUT_LAYER_NAMES))
        object.__setattr__(self, "div_value", _checked_div_value(self.div_value))
        if self.output_layer == "adaptive":
            object.__setattr__(self, "cutoffs", self.adaptive.cutoffs)

    @property
    def n_tokens(self) -> int:
        """Tokens in one step."""
        return self.batch_size * self.seq_len

    @property
    def widens(self) -> bool:
        """Whether the last layer changes the width, so that its residual is projected."""
        return self.final_hidden_size != self.hidden_size

    @property
    def adaptive(self) -> AdaptiveSoftmaxConfig:
        """The partition of the vocabulary that the adaptive output layers use."""
        return AdaptiveSoftmaxConfig(
            self.final_hidden_size, self.vocab_size, self.cutoffs, self.div_value
        )


_WHOLE_FIELDS = tuple(f.name for f in dataclasses.fields(GCNConfig) if isinstance(f.default, int))

PRESETS: dict[str, GCNConfig] = {
    "gcn": GCNConfig(),
    "gcn-1024": GCNConfig(
        hidden_size=1024, final_hidden_size=1024, embedding_size=300, batch_size=50, seq_len=200
    ),
}


def configure(model: str, **options: object) -> GCNConfig:
    """The preset `model` with some fields changed; one given as None keeps the preset's value.

    A new hidden_size moves final_hidden_size with it unless that is given too: growth of the
    whole width is the plain case, growth of the final state alone must be asked for.
    """
    if model not in PRESETS:
        raise unknown("model", model, list(PRESETS))
    given = {name: value for name, value in options.items() if value is not None}
    if given.get("output_layer") == "full" and ("cutoffs" in given or "div_value" in given):
        raise UsageError("a full softmax has no clusters: leave out cutoffs and div_value")
    if "hidden_size" in given:
        given.setdefault("final_hidden_size", given["hidden_size"])
    return dataclasses.replace(PRESETS[model], **given)
