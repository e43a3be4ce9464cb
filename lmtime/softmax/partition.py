"""Which tokens belong to which cluster: one sort, and one wait for the device at most."""

from __future__ import annotations

from dataclasses import dataclass, replace
from itertools import pairwise

import torch
from torch import Tensor


@dataclass(frozen=True)
class Plan:
    """The tokens of a batch by cluster.

    Made from targets on the host, where they are read anyway, it spares the layer its only wait
    for the device: `plan = layer.plan(targets).to(device)`, then `layer(hidden, targets,
    plan=plan)`.
    """

    entries: Tensor  # (n_tokens,) int64: the head's entry, a word or the cluster of the word
    rows: Tensor  # (n_tail_tokens,) int64: positions of the tail tokens, cluster after cluster
    words: Tensor  # (n_tail_tokens,) int64: their targets, counted from the start of the cluster
    counts: tuple[int, ...]  # tokens in each tail cluster
    ignored: Tensor | None  # (n_tokens,) bool; None where none is
    n_ignored: int

    @property
    def targets(self) -> Tensor:
        """(n_tokens + n_tail_tokens, 1): entries of the head, then words of the tails."""
        return torch.cat([self.entries, self.words]).unsqueeze(1)

    @property
    def n_tokens(self) -> int:
        """All tokens, ignored ones too."""
        return self.entries.shape[0]

    @property
    def n_tail_tokens(self) -> int:
        """Those that meet a tail cluster."""
        return sum(self.counts)

    @property
    def n_kept(self) -> int:
        """Tokens that count in the mean."""
        return self.n_tokens - self.n_ignored

    def fits(self, capacity: tuple[int, ...]) -> bool:
        """Whether no cluster has more tokens than its capacity."""
        return all(n <= most for n, most in zip(self.counts, capacity, strict=True))

    def to(self, device: torch.device | str) -> Plan:
        """The same on another device; the host does not wait for the copies."""
        names = ("entries", "rows", "words", "ignored")
        tensors = {name: getattr(self, name) for name in names}
        return replace(
            self,
            **{
                k: None if t is None else t.to(device, non_blocking=True)
                for k, t in tensors.items()
            },
        )


def edges_of(cutoffs: tuple[int, ...], vocab_size: int, ignore_index: int) -> list[int]:
    """What `partition` looks up: the bounds of all bands, then those of the ignored id."""
    return [0, *cutoffs, vocab_size, ignore_index, ignore_index + 1]


def partition(targets: Tensor, edges: Tensor, cutoffs: tuple[int, ...]) -> Plan:
    """Tokens by cluster; targets: (n_tokens,) int64, edges: `edges_of` as a tensor beside them.

    A target that is neither a word nor ignored raises IndexError on every device.
    """
    ids, order = torch.sort(targets, stable=True)
    *ends, first, last = torch.searchsorted(ids, edges).tolist()  # waits for the device
    n_ignored = last - first
    if n_ignored:  # ignored before ids are made relative, so that only the global id is meant
        ids, order = (torch.cat([x[:first], x[last:]]) for x in (ids, order))
        ends = [end - n_ignored if end > first else end for end in ends]
    if ends[0] > 0 or ends[-1] < len(ids):
        raise IndexError(
            f"targets from {ids[0].item()} to {ids[-1].item()} are not all words: they must lie "
            f"between 0 and {edges[-3].item() - 1} or be ignored ({edges[-2].item()})"
        )
    starts = ends[1:]
    for low, (start, end) in zip(cutoffs, pairwise(starts), strict=True):
        ids[start:end].sub_(low)
    inside = edges[1 : 1 + len(cutoffs)]
    entries = torch.bucketize(targets, inside, right=True)  # 0: short list, i: tail cluster i
    return Plan(
        entries=entries.add_(targets.clamp(0, cutoffs[0] - 1)),
        rows=order[starts[0] :],
        words=ids[starts[0] :],
        counts=tuple(end - start for start, end in pairwise(starts)),
        ignored=targets == edges[-2] if n_ignored else None,
        n_ignored=n_ignored,
    )
