"""The adaptive softmax in fixed shapes: it compiles whole, and once for all batches of a size.

Each tail cluster is computed for as many rows as its capacity, whatever the targets are; rows
beyond its tokens are computed and count nowhere. A token beyond the capacity of its cluster has a
loss of nan: it is never left out unseen. Capacities of n_tokens are always exact, and cost what
a full evaluation of the tails costs; where the host has the targets first, `plan.fits(capacity)`
tells it which of the two to call. Nothing here waits for the device.
"""

from __future__ import annotations

from collections.abc import Sequence
from numbers import Integral

import torch
from torch import Tensor

from lmtime.errors import UsageError
from lmtime.softmax.bands import Band
from lmtime.softmax.full import log_softmax


def static_nll(
    bands: Sequence[Band],
    cutoffs: Sequence[int],
    hidden: Tensor,
    targets: Tensor,
    ignored: Tensor,
    capacity: Sequence[int],
) -> Tensor:
    """Negative log-likelihoods, (n_tokens,), 0 where ignored; plain operators, differentiable.

    bands: head and tails; hidden: (n_tokens, input_size), targets, ignored: (n_tokens,).
    """
    head, *tails = bands
    _check(capacity, len(tails))
    known = targets.masked_fill(ignored, 0)
    edges = torch.tensor(cutoffs, device=targets.device)
    cluster = torch.bucketize(known, edges, right=True)  # 0 is the short list
    entries = known.clamp(max=cutoffs[0] - 1) + cluster
    nll = _cross_entropy(head(hidden), entries)
    n_found = (cluster == 0).long()
    ids, order = torch.sort(cluster, stable=True)
    for i, (tail, low, most) in enumerate(zip(tails, cutoffs, capacity, strict=True), 1):
        n_rows = min(most, len(targets))
        start, end = torch.searchsorted(ids, torch.tensor([i, i + 1], device=ids.device))
        places = start + torch.arange(n_rows, device=ids.device)
        inside = places < end
        rows = order[places.clamp(max=len(targets) - 1)]
        words = torch.where(inside, known[rows] - low, 0)
        found = _cross_entropy(tail(hidden[rows]), words)
        nll = nll.index_add(0, rows, torch.where(inside, found, 0.0))
        n_found = n_found.index_add(0, rows, inside.long())
    return nll.masked_fill(n_found == 0, torch.nan).masked_fill(ignored, 0.0)


def _check(capacity: Sequence[int], n_tails: int) -> None:
    whole = isinstance(capacity, Sequence) and all(isinstance(n, Integral) for n in capacity)
    if not whole or len(capacity) != n_tails or min(capacity) < 0:
        raise UsageError(
            f"capacity {capacity} must be {n_tails} numbers of rows, one a tail cluster"
        )


def _cross_entropy(scores: Tensor, targets: Tensor) -> Tensor:
    """Not `F.nll_loss`, which lets targets of -100 pass unseen."""
    return -log_softmax(scores).gather(1, targets[:, None])[:, 0]
