"""How an adaptive softmax divides a vocabulary."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate, pairwise
from typing import Any

from lmtime.config.checks import require_positive
from lmtime.errors import UsageError, unknown


@dataclass(frozen=True)
class AdaptiveSoftmaxConfig:
    """Partition of a vocabulary whose ids are sorted by frequency (Grave et al. 2017).

    cutoffs are cumulative: cutoffs (2000, 10000) over 33,278 words make a short list of 2,000
    words and two tail clusters of 8,000 and 23,278. Tail cluster i (from 1) is projected to
    hidden_size / div_value**i dimensions, rounded down, as torch does.

    The other fields leave torch's shape. tail_widths: the dimensions of each tail cluster, in place
    of those of div_value; one as wide as what enters needs no projection. head_rank: the head's
    product goes through so few dimensions. shared_rank: head and tails see the hidden state through
    one projection, and all other widths are then relative to its dimensions.
    """

    hidden_size: int
    vocab_size: int
    cutoffs: tuple[int, ...]
    div_value: float = 4.0
    tail_widths: tuple[int, ...] | None = None
    head_rank: int | None = None
    shared_rank: int | None = None

    def __post_init__(self) -> None:
        require_positive(self, ("hidden_size", "vocab_size"))
        object.__setattr__(self, "cutoffs", _checked_cutoffs(self.cutoffs, self.vocab_size))
        object.__setattr__(self, "div_value", checked_div_value(self.div_value))
        _check_rank(self, "shared_rank", self.hidden_size)
        _check_rank(self, "head_rank", self.input_size)
        if self.tail_widths is not None:
            widths = _checked_widths(self.tail_widths, len(self.cutoffs))
            object.__setattr__(self, "tail_widths", widths)
        elif min(self.tail_dims) < 1:
            raise UsageError(
                f"div_value={self.div_value:g} leaves tail cluster {len(self.cutoffs)} none of the "
                f"{self.input_size} hidden dimensions: lower it, use fewer cutoffs or a larger "
                f"hidden size"
            )

    @property
    def input_size(self) -> int:
        """Width of what head and tails see: the hidden state, or its shared projection."""
        return self.hidden_size if self.shared_rank is None else self.shared_rank

    @property
    def head_dim(self) -> int:
        """Width that the head's entries are compared in."""
        return self.input_size if self.head_rank is None else self.head_rank

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
        if self.tail_widths is not None:
            return self.tail_widths
        return tuple(
            int(self.input_size // self.div_value**i) for i in range(1, len(self.cutoffs) + 1)
        )

    @property
    def tail_projects(self) -> tuple[bool, ...]:
        """Whether each tail cluster has a projection; by div_value all have one, as in torch."""
        if self.tail_widths is None:
            return (True,) * len(self.cutoffs)
        return tuple(width != self.input_size for width in self.tail_widths)

    @property
    def is_torchs(self) -> bool:
        """Whether `nn.AdaptiveLogSoftmaxWithLoss` can have this shape."""
        return self.tail_widths is self.head_rank is self.shared_rank is None


def head_size(cutoffs: Sequence[Any]) -> Any:
    """Rows of the head matrix; also of Altair parameters."""
    return cutoffs[0] + len(cutoffs)


def tail_sizes(cutoffs: Sequence[Any], vocab_size: Any) -> list[Any]:
    """Words in each tail cluster; also of Altair parameters."""
    ends = (*cutoffs[1:], vocab_size)
    return [end - start for start, end in zip(cutoffs, ends, strict=True)]


def checked_div_value(div_value: float) -> float:
    """A plain float; powers of more extreme ones are no numbers."""
    if not 0.01 <= div_value <= 1000:
        raise UsageError(f"div_value={div_value} must lie between 0.01 and 1000")
    return float(div_value)


def _check_rank(config: AdaptiveSoftmaxConfig, name: str, width: int) -> None:
    """None, or fewer dimensions than what is projected has."""
    if getattr(config, name) is None:
        return
    require_positive(config, (name,))
    if getattr(config, name) >= width:
        raise UsageError(
            f"{name}={getattr(config, name)} must be below the {width} dimensions that it reduces; "
            f"leave it out for none"
        )


def _checked_widths(tail_widths: Sequence[int], n_tails: int) -> tuple[int, ...]:
    """Widths as plain ints, one a tail cluster and each at least 1."""
    widths = tuple(tail_widths)
    whole = all(hasattr(w, "__index__") and not isinstance(w, bool) for w in widths)
    if not whole or len(widths) != n_tails or min(widths) < 1:
        raise UsageError(
            f"tail_widths {','.join(map(str, widths)) or '(none)'} must be {n_tails} whole "
            f"numbers of at least 1, one a tail cluster"
        )
    return tuple(int(w) for w in widths)


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


ADAPTIVE_NAMES = ("adaptive", "fused-adaptive")  # torch's own, and this package's
OUTPUT_LAYER_NAMES = (*ADAPTIVE_NAMES, "full", "chunked")
FREE_SHAPES = ("tail_widths", "head_rank", "shared_rank")


def check_output_layer(config: Any) -> None:
    """Check and bring into one form the fields of a model that shape its output layer."""
    if config.output_layer not in OUTPUT_LAYER_NAMES:
        raise unknown("output layer", config.output_layer, list(OUTPUT_LAYER_NAMES))
    object.__setattr__(config, "div_value", checked_div_value(config.div_value))
    free = [name for name in FREE_SHAPES if getattr(config, name, None) is not None]
    if free and config.output_layer != "fused-adaptive":
        raise UsageError(
            f"{' and '.join(free)} shape only the output layer fused-adaptive, not "
            f"{config.output_layer}: choose that, or leave them out"
        )
    if config.output_layer in ADAPTIVE_NAMES:
        object.__setattr__(config, "cutoffs", config.adaptive.cutoffs)
    if free:
        object.__setattr__(config, "tail_widths", config.adaptive.tail_widths)


def cutoffs_of_bands(band_sizes: Sequence[int]) -> tuple[tuple[int, ...], int]:
    """The cumulative cutoffs, and the vocabulary, that bands of these sizes make.

    Papers give sizes (60K, 100K, 640K), implementations take cutoffs (60000, 160000).
    """
    if len(band_sizes) < 2 or min(band_sizes) < 1:
        raise UsageError(f"band sizes {tuple(band_sizes)} must be two or more, each at least 1")
    *cutoffs, vocab_size = accumulate(band_sizes)
    return tuple(cutoffs), vocab_size


def may_be_band_sizes(cutoffs: Sequence[int], vocab_size: int) -> bool:
    """Whether numbers given as cutoffs add up to the vocabulary, as sizes of bands do."""
    return len(cutoffs) > 1 and abs(sum(cutoffs) - vocab_size) <= 0.02 * vocab_size
