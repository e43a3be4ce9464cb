"""The steps that are timed: forward, backward and update, or forward alone, batch after batch."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext

import numpy as np
import torch
from torch import nn

from lmtime.timing.ownership import OPTIMIZER, region
from lmtime.timing.timer import Step

Batches = Sequence[tuple[np.ndarray, np.ndarray]]  # tokens, targets: (batch_size, seq_len) int64
AUTOCAST = {"bf16": torch.bfloat16}  # other precisions change no tensor's type


def steps(
    network: nn.Module,
    optimizer: torch.optim.Optimizer | None,
    batches: Batches,
    device: str,
    *,
    dtype: str = "fp32",
) -> Callable[[], Step]:
    """Gives the step on the next batch, round and round: training, or forward with no optimizer.

    batches: (tokens, targets), each (batch_size, seq_len) int64. They are moved to the device
    once, here: copying them is not part of a step. dtype: "bf16" runs under autocast.
    """
    on_device = [tuple(torch.from_numpy(ids).to(device) for ids in batch) for batch in batches]
    turn = itertools.cycle(on_device)
    network.train(optimizer is not None)

    def autocast() -> AbstractContextManager:
        kind = AUTOCAST.get(dtype)
        return nullcontext() if kind is None else torch.autocast(device, dtype=kind)

    def train(tokens: torch.Tensor, targets: torch.Tensor) -> None:
        with region(OPTIMIZER, OPTIMIZER):
            optimizer.zero_grad()
        with autocast():
            loss = network(tokens, targets)
        loss.backward()
        optimizer.step()

    def forward(tokens: torch.Tensor, targets: torch.Tensor) -> None:
        with torch.no_grad(), autocast():
            network(tokens, targets)

    run = forward if optimizer is None else train

    def next_step() -> Step:
        tokens, targets = next(turn)
        return lambda: run(tokens, targets)

    return next_step
