"""Partitions of a vocabulary that make an adaptive softmax cheapest, by dynamic programming.

Words are met ever more rarely, so an id is a rank. A partition's price is that of its head, which
knows the short list and the number of tails, and that of each tail, which knows where it starts
and ends. So the cheapest tails from a word to the last one do not depend on what is before them.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import pairwise

from lmtime.config import AdaptiveSoftmaxConfig, tail_sizes
from lmtime.cost.clusters import Layer
from lmtime.cost.vocabulary import cutoffs as scaled_cutoffs
from lmtime.errors import UsageError

MOST_TAILS = 6
N_CANDIDATES = 100  # neighbours are 11 % apart in 33,278 words; the least is flat
WIDTH_STEP = 16  # widths that matrix units take without padding
BASELINE = (2_000, 10_000)
RANK_FLOORS = (1.0, 1 / 2, 1 / 4, 1 / 8)
FEWEST_WORDS = 32


def candidates(vocab_size: int, also: Sequence[int] = ()) -> list[int]:
    """Where clusters may end: ids evenly spaced in their logarithm, `also`, and the last end."""
    step = math.log(vocab_size) / N_CANDIDATES
    spaced = {round(math.exp(i * step)) for i in range(N_CANDIDATES)}
    inside = {c for c in spaced | set(also) if 1 <= c < vocab_size}
    return [*sorted(inside), vocab_size]


def cheapest(
    ends: Sequence[int],
    head: Callable[[int, int], float],
    tail: Callable[[int, int], float],
    most_tails: int,
) -> dict[int, tuple[float, tuple[int, ...]]]:
    """{number of tails: (price, cutoffs)}: the cheapest of all partitions with cutoffs in `ends`.

    ends: rising; the last is the vocabulary. head(short list, number of tails) and
    tail(start, end) are prices. Numbers of tails that `ends` has too few places for are left out.
    """
    last = len(ends) - 1
    price = {(i, j): tail(ends[i], ends[j]) for i in range(last) for j in range(i + 1, last + 1)}
    rest = {i: (price[i, last], (ends[i],)) for i in range(last)}  # of one tail from i on
    found = {}
    for n_tails in range(1, most_tails + 1):
        if not rest:
            break
        whole = ((head(ends[i], n_tails) + cost, cutoffs) for i, (cost, cutoffs) in rest.items())
        found[n_tails] = min(whole)
        rest = {
            i: min(
                (price[i, j] + cost, (ends[i], *cutoffs))
                for j, (cost, cutoffs) in rest.items()
                if j > i
            )
            for i in range(max(rest))
        }
    return found


def baseline_cutoffs(vocab_size: int) -> tuple[int, ...]:
    """[2000, 10000]; in a vocabulary without so many words, the same parts of it."""
    return BASELINE if vocab_size > BASELINE[-1] else scaled_cutoffs(vocab_size, 1)


@dataclass(frozen=True)
class RankFloor:
    """Least width that a word may be compared in: `factor` of what the baseline gives it.

    The baseline is torch's layer with div_value 4 over `baseline_cutoffs`. Whatever the baseline,
    no width is less than min_width; the short list always has the whole hidden size.
    """

    hidden_size: int
    vocab_size: int
    factor: float = 1.0
    min_width: int = WIDTH_STEP

    def __post_init__(self) -> None:
        if self.vocab_size < FEWEST_WORDS:
            raise UsageError(
                f"a vocabulary of {self.vocab_size} words is too small to divide: "
                f"give the counts of at least {FEWEST_WORDS}"
            )
        _ = self.baseline  # a hidden size too small for it is refused here
        if not 0 < self.factor <= 1:
            raise UsageError(
                f"rank floor {self.factor:g} must be above 0 and at most 1, as in 1/2: "
                f"the part of the baseline's width that every word keeps"
            )
        if not 1 <= self.min_width <= self.hidden_size:
            raise UsageError(
                f"min_width={self.min_width} must lie between 1 and the hidden size, "
                f"{self.hidden_size}"
            )

    @property
    def baseline(self) -> AdaptiveSoftmaxConfig:
        """The partition that the floor refers to."""
        cutoffs = baseline_cutoffs(self.vocab_size)
        return AdaptiveSoftmaxConfig(self.hidden_size, self.vocab_size, cutoffs)

    def least(self, word: int) -> float:
        """Of one word; it never rises with the id."""
        base = self.baseline
        widths = (self.hidden_size, *base.tail_dims)
        i = sum(word >= cutoff for cutoff in base.cutoffs)
        return max(self.factor * widths[i], self.min_width)

    def width(self, word: int) -> int:
        """The narrowest that is allowed, a multiple of 16 unless it is the hidden size."""
        steps = math.ceil(self.least(word) / WIDTH_STEP)
        return min(steps * WIDTH_STEP, self.hidden_size)


@dataclass(frozen=True)
class Partition:
    """Clusters of a vocabulary, and what a step's output layer then costs.

    price: in the unit of the prices. mean_rank_per_token: width that a token's word is compared
    in, weighted by how often it is met: a proxy for quality, no measure of it.
    """

    vocab_size: int
    cutoffs: tuple[int, ...]
    widths: tuple[int, ...]  # of the tails
    price: float
    flops_per_token: float
    mean_rank_per_token: float
    rank_floor: float | None = None  # None is the baseline, which is given
    execution: str = "fused"  # what was priced: see `clusters.Layer`

    def row(self, in_ms: bool) -> dict[str, object]:
        """As a row of a document."""
        return {
            "n_clusters": len(self.cutoffs),
            "cutoffs": list(self.cutoffs),
            "tail_sizes": tail_sizes(self.cutoffs, self.vocab_size),
            "tail_widths": list(self.widths),
            "flops_per_token": self.flops_per_token,
            "predicted_ms": self.price if in_ms else None,
            "mean_rank_per_token": self.mean_rank_per_token,
            "rank_floor": self.rank_floor,
            "execution": self.execution,
        }


def partition(
    layer: Layer, cutoffs: Sequence[int], widths: Sequence[int], rank_floor: float | None = None
) -> Partition:
    """A partition with all that is known of it."""
    spans = list(pairwise((*cutoffs, layer.vocab_size)))
    tails = [(*span, width) for span, width in zip(spans, widths, strict=True)]
    head = layer.head_operators(cutoffs[0], len(cutoffs))
    inside = [op for cluster in tails for op in layer.tail_operators(*cluster)]
    in_head = layer.share(0, cutoffs[0]) * layer.hidden_size
    return Partition(
        layer.vocab_size,
        tuple(cutoffs),
        tuple(widths),
        layer.head(cutoffs[0], len(cutoffs)) + sum(layer.tail(*cluster) for cluster in tails),
        sum(op.flops for op in (*head, *inside)) / layer.n_tokens,
        in_head + sum(layer.share(start, end) * width for start, end, width in tails),
        rank_floor,
        layer.execution,
    )


def best_partitions(
    layer: Layer, floor: RankFloor, most_tails: int = MOST_TAILS
) -> list[Partition]:
    """The cheapest partition for each number of tails, from one on.

    A tail has the narrowest width that its most frequent word may have, or the hidden size, which
    is not projected, where that is cheaper.
    """
    d, narrowest = layer.hidden_size, {}

    def width(start: int, end: int) -> int:
        least = narrowest[start]
        return least if layer.tail(start, end, least) < layer.tail(start, end, d) else d

    def price(start: int, end: int) -> float:
        return min(layer.tail(start, end, w) for w in {narrowest[start], d})

    ends = candidates(layer.vocab_size, floor.baseline.cutoffs)
    narrowest.update((end, floor.width(end)) for end in ends[:-1])
    found = cheapest(ends, layer.head, price, most_tails)
    return [
        partition(
            layer,
            cutoffs,
            [width(*span) for span in pairwise((*cutoffs, layer.vocab_size))],
            floor.factor,
        )
        for _, cutoffs in found.values()
    ]


def baseline_partition(layer: Layer, floor: RankFloor) -> Partition:
    """torch's layer over the baseline's cutoffs, as torch executes it, to compare with."""
    return partition(layer.executed_by("torch"), floor.baseline.cutoffs, floor.baseline.tail_dims)


def front(
    layer: Layer, min_width: int = WIDTH_STEP, most_tails: int = MOST_TAILS
) -> list[tuple[Partition, bool]]:
    """The cheapest partitions for each rank floor and number of tails, and which stand out.

    True: none of the others has both a lower price and a higher mean rank, or one of the two and
    the other the same.
    """
    floors = (
        RankFloor(layer.hidden_size, layer.vocab_size, factor, min_width) for factor in RANK_FLOORS
    )
    found = [p for floor in floors for p in best_partitions(layer, floor, most_tails)]
    return [(p, not any(_dominates(other, p) for other in found)) for p in found]


def _dominates(a: Partition, b: Partition) -> bool:
    ours = -a.price, a.mean_rank_per_token
    theirs = -b.price, b.mean_rank_per_token
    return ours != theirs and all(x >= y for x, y in zip(ours, theirs, strict=True))
