"""Which tokens belong to which cluster: one sort, and one wait for the device at most."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor


@dataclass(frozen=True)
class Plan:
    """The tokens of a batch by cluster.

    Made from targets on the host, where they are read anyway, it spares the layer its only wait
    for the device: `plan = layer.plan(targets).to(device)`, then `layer(hidden, targets,
    plan=plan)`.
    """

    targets: Tensor  # (n_tokens + n_tail_tokens, 1) int64: entries of the head, words of the tails
    rows: Tensor  # (n_tail_tokens,) int64: positions of the tail tokens, cluster after cluster
    counts: tuple[int, ...]  # tokens in each tail cluster
    ignored: Tensor | None  # (n_tokens,) bool; None where none is
    n_ignored: int

    @property
    def n_tokens(self) -> int:
        """All tokens, ignored ones too."""
        return self.targets.shape[0] - self.n_tail_tokens

    @property
    def n_tail_tokens(self) -> int:
        """Those that meet a tail cluster."""
        return self.rows.shape[0]

    @property
    def n_kept(self) -> int:
        """Tokens that count in the mean."""
        return self.n_tokens - self.n_ignored

    def fits(self, capacity: tuple[int, ...]) -> bool:
        """Whether no cluster has more tokens than its capacity."""
        return all(n <= most for n, most in zip(self.counts, capacity, strict=True))

    def to(self, device: torch.device | str) -> Plan:
        """The same on another device; the host does not wait for the copies."""
        tensors = {name: getattr(self, name) for name in ("targets", "rows", "ignored")}
        return replace(
            self,
            **{
                k: None if t is None else t.to(device, non_blocking=True)
                for k, t in tensors.items()
            },
        )


class Lookup(NamedTuple):
    """What `partition` looks up, on the device of the targets. All are int64."""

    edges: Tensor  # the bounds of all bands, then those of the ignored id
    entries: Tensor  # (vocab_size,): of each word in the head, its own or its cluster's
    places: Tensor  # (vocab_size,): of each word in its band

    @classmethod
    def of(
        cls, cutoffs: Sequence[int], vocab_size: int, ignore_index: int, device: torch.device
    ) -> Lookup:
        """Of a vocabulary that is cut there."""
        bounds = [0, *cutoffs, vocab_size]
        edges = np.array([*bounds, ignore_index, ignore_index + 1], dtype=np.int64)
        places = np.arange(vocab_size, dtype=np.int64)
        entries = places.copy()
        for i, (low, high) in enumerate(pairwise(bounds[1:])):
            entries[low:high] = cutoffs[0] + i
            places[low:high] -= low
        # By numpy, so that no counter takes it for work of a step.
        return cls(*(torch.from_numpy(found).to(device) for found in (edges, entries, places)))


def partition(targets: Tensor, lookup: Lookup) -> Plan:
    """Tokens by cluster; targets: (n_tokens,) int64.

    A target that is neither a word nor ignored raises IndexError on every device.
    """
    ids, order = torch.sort(targets, stable=True)
    *ends, first, last = torch.searchsorted(ids, lookup.edges).tolist()  # waits for the device
    n_ignored, ignored = last - first, None
    if n_ignored:
        ids, order = (torch.cat([x[:first], x[last:]]) for x in (ids, order))
        ends = [end - n_ignored if end > first else end for end in ends]
        ignored = targets == lookup.edges[-2]
        targets = targets.masked_fill(ignored, 0)
    if ends[0] > 0 or ends[-1] < len(ids):
        raise IndexError(
            f"targets from {ids[0].item()} to {ids[-1].item()} are not all words: they must lie "
            f"between 0 and {len(lookup.places) - 1} or be ignored ({lookup.edges[-2].item()})"
        )
    starts = ends[1:]
    entries = lookup.entries.index_select(0, targets)
    words = lookup.places.index_select(0, ids[starts[0] :])
    return Plan(
        targets=torch.cat([entries, words]).unsqueeze(1),
        rows=order[starts[0] :],
        counts=tuple(end - start for start, end in pairwise(starts)),
        ignored=ignored,
        n_ignored=n_ignored,
    )
