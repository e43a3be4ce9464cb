"""Training under a fixed budget, and how well each held-out document is predicted then."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import nn

from lmtime.config.checks import require_learning_rate, require_positive
from lmtime.corpora import EOS, Corpus

Say = Callable[[str], None]
Batch = tuple[torch.Tensor, ...]  # tokens, targets: (batch_size, seq_len) int64
CLIP_NORM = 1.0
WARM_UP = 0.05  # of the steps; then the rate falls as a half cosine, to nothing
N_TOLD = 50  # losses that are kept of a training, each a mean of as many steps


@dataclass(frozen=True)
class Budget:
    """What every model that is compared may spend. AdamW, without weight decay."""

    n_tokens: int = 1_000_000
    learning_rate: float = 3e-3
    held_out_tokens: int = 100_000  # whole documents, this many tokens at least

    def __post_init__(self) -> None:
        require_positive(self, ("n_tokens", "held_out_tokens"))
        require_learning_rate(self)


@dataclass(frozen=True)
class Documents:
    """Negative log-likelihood in nats, and tokens, of each held-out document: (n_documents,)."""

    nll: np.ndarray
    n_tokens: np.ndarray

    @property
    def perplexity(self) -> float:
        """e to the mean over all tokens."""
        return math.exp(self.nll.sum() / self.n_tokens.sum())


def train(
    network: nn.Module,
    corpus: Corpus,
    budget: Budget,
    *,
    seed: int = 0,
    say: Say = lambda text: None,
) -> list[float]:
    """Train in place on the corpus, from a place that the seed chooses on; the losses on the way.

    network: as `models.build` gives it. Raises RuntimeError where the loss is no number any more.
    """
    config = network.config
    n_steps = max(budget.n_tokens // config.n_tokens, 1)
    optimizer = torch.optim.AdamW(
        network.parameters(), lr=budget.learning_rate, weight_decay=0.0, foreach=True
    )
    schedule = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda i: rate_at(i, n_steps))
    network.train()
    losses: list[torch.Tensor] = []
    for i, (tokens, targets) in enumerate(_batches(corpus, config, n_steps, seed)):
        loss = network(tokens, targets)
        optimizer.zero_grad()
        loss.backward()
        nn.utils.clip_grad_norm_(network.parameters(), CLIP_NORM)
        optimizer.step()
        schedule.step()
        losses.append(loss.detach())
        if i % 50 == 49:
            recent = float(torch.stack(losses[-50:]).mean())
            if not math.isfinite(recent):
                raise RuntimeError(f"the loss is {recent} after {i + 1} steps: lower the rate")
            say(f"{i + 1} of {n_steps} steps, perplexity {math.exp(recent):.0f}")
    parts = np.array_split(torch.stack(losses).double().cpu().numpy(), min(N_TOLD, n_steps))
    return [float(part.mean()) for part in parts]


def rate_at(step: int, n_steps: int) -> float:
    """Factor of the learning rate: a linear warm-up, then half a cosine."""
    n_warm_up = max(round(WARM_UP * n_steps), 1)
    if step < n_warm_up:
        return (step + 1) / n_warm_up
    return 0.5 * (1 + math.cos(math.pi * (step - n_warm_up) / max(n_steps - n_warm_up, 1)))


def _batches(corpus: Corpus, config: Any, n_steps: int, seed: int) -> Iterator[Batch]:
    """Batches in the order of the text, round and round; the seed says with which to begin."""
    shape = config.batch_size, config.seq_len
    start = int(np.random.default_rng(seed).integers(corpus.n_batches(*shape)))
    rounds = (corpus.batches(*shape) for _ in itertools.count())
    turn = itertools.islice(itertools.chain.from_iterable(rounds), start, start + n_steps)
    return ((torch.from_numpy(x), torch.from_numpy(y)) for x, y in turn)


@torch.no_grad()
def held_out(network: nn.Module, corpus: Corpus, n_tokens: int) -> Documents:
    """How likely the first whole documents that were not trained on are, n_tokens at least.

    Windows as long as the model's sequences follow each other, each without what came before it.
    """
    config, stream = network.config, corpus.stream(corpus.held_out)
    ends = np.flatnonzero(stream == corpus.words.index(EOS))
    used = stream[: ends[min(np.searchsorted(ends, n_tokens), len(ends) - 1)] + 1]
    network.eval()
    nll = np.concatenate(
        [
            network.output_layer(network.hidden(tokens), targets).nll.double().flatten().numpy()
            for tokens, targets in _windows(used, config.batch_size, config.seq_len)
        ]
    )
    document = np.cumsum(used == used[-1])[:-1]  # of each target: the end belongs to what it ends
    return Documents(np.bincount(document, nll), np.bincount(document))


def _windows(stream: np.ndarray, batch_size: int, seq_len: int) -> Iterator[Batch]:
    """(tokens, targets) of the whole stream in its order; the last window is as long as is left."""
    ids = torch.from_numpy(stream.astype(np.int64))
    step = batch_size * seq_len
    n_whole = (len(ids) - 1) // step * step
    for start in range(0, n_whole, step):
        rows = (ids[i : i + step].view(batch_size, seq_len) for i in (start, start + 1))
        yield tuple(rows)
    if n_whole < len(ids) - 1:
        yield ids[None, n_whole:-1], ids[None, n_whole + 1 :]
