"""Training an encoder on a task, and a super-network from its teacher; what they predict then.

Three stages, as DynaBERT has them: fine-tune; make the width adaptive; make width and depth so.
Each can be interrupted: it goes on at the last epoch that was finished, and ends with the same
weights, since whatever is drawn in an epoch follows from the seed, the stage and the epoch.
"""

from __future__ import annotations

import copy
import math
import os
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from fractions import Fraction
from itertools import product

import numpy as np
import torch
from torch import Tensor, nn

from lmtime.config import WIDTHS, SubNetwork, sub_network
from lmtime.config.checks import require_learning_rate, require_positive
from lmtime.errors import UsageError, unknown
from lmtime.models.batches import Batch, Tokenised, batches, n_batches
from lmtime.models.distillation import (
    DEPTH_WEIGHTS,
    TEACHER_WIDTHS,
    WIDTH_WEIGHTS,
    distillation_loss,
    outputs,
)
from lmtime.models.encoder import Encoder
from lmtime.models.progress import Checkpoint, Progress
from lmtime.models.supernet import task_loss

Say = Callable[[str], None]
Losses = Callable[[Batch, np.random.Generator], Iterator[Tensor]]  # those of one step
CLIP_NORM = 1.0
WARM_UP = 0.1  # of the steps; then the rate falls in a line, to nothing
STAGES = ("fine-tuning", "width", "depth")
SAY_EVERY = 25  # steps


@dataclass(frozen=True)
class Schedule:
    """What one stage may spend. AdamW, without weight decay."""

    epochs: int = 2
    learning_rate: float = 5e-5
    batch_size: int = 32

    def __post_init__(self) -> None:
        require_positive(self, ("epochs", "batch_size"))
        require_learning_rate(self)


@dataclass(frozen=True)
class DepthSchedule(Schedule):
    """teacher_width: full, or the same as the student's.

    n_random: a step takes the largest sub-network, the smallest and so many drawn from between
    (the sandwich rule, Yu and Huang 2019); None, all of them.
    """

    teacher_width: str = "full"
    n_random: int | None = None

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.teacher_width not in TEACHER_WIDTHS:
            raise unknown("teacher width", self.teacher_width, list(TEACHER_WIDTHS))
        if self.n_random is not None and self.n_random < 0:
            raise UsageError(f"n_random={self.n_random} must be 0 at least, or None for all")


@dataclass(frozen=True)
class Run:
    """How a stage is run: with which seed, where it is kept, whom it tells."""

    seed: int = 0
    checkpoint: Checkpoint | None = None
    say: Say = lambda text: None


def fine_tune(
    network: Encoder, data: Tokenised, schedule: Schedule, *, run: Run = Run()
) -> Progress:
    """Train in place on the labels."""

    def losses(batch: Batch, rng: np.random.Generator) -> Iterator[Tensor]:
        yield task_loss(network(*batch.inputs), batch.labels)

    return _train(network, data, schedule, losses, "fine-tuning", run)


def train_width(
    network: Encoder,
    teacher: Encoder,
    data: Tokenised,
    schedule: Schedule,
    *,
    widths: Sequence[Fraction] = WIDTHS,
    run: Run = Run(),
) -> Progress:
    """Train in place, at full depth, each width in every step; labels are not used."""
    subs = [sub_network(network.config, width, 1) for width in widths]
    teacher.eval()

    def losses(batch: Batch, rng: np.random.Generator) -> Iterator[Tensor]:
        with torch.no_grad():
            wanted = outputs(teacher, batch)
        for sub in subs:
            yield distillation_loss(
                outputs(network, batch, sub), wanted, sub, batch.mask, WIDTH_WEIGHTS
            )

    return _train(network, data, schedule, losses, "width", run)


def train_depth(
    network: Encoder,
    data: Tokenised,
    schedule: DepthSchedule,
    *,
    depths: Sequence[Fraction],
    widths: Sequence[Fraction] = WIDTHS,
    run: Run = Run(),
) -> Progress:
    """Train in place at every width and depth; the teacher is the network as it was, whole."""
    teacher = copy.deepcopy(network).eval()
    grid = sorted(product(depths, widths), reverse=True)

    def losses(batch: Batch, rng: np.random.Generator) -> Iterator[Tensor]:
        wanted = {}
        for depth, width in _drawn(grid, schedule.n_random, rng):
            of = width if schedule.teacher_width == "same" else Fraction(1)
            if of not in wanted:
                with torch.no_grad():
                    wanted[of] = outputs(teacher, batch, sub_network(teacher.config, of, 1))
            sub = sub_network(network.config, width, depth)
            found = outputs(network, batch, sub)
            yield distillation_loss(found, wanted[of], sub, batch.mask, DEPTH_WEIGHTS)

    return _train(network, data, schedule, losses, "depth", run)


def _drawn(
    grid: list[tuple[Fraction, Fraction]], n_random: int | None, rng: np.random.Generator
) -> list[tuple[Fraction, Fraction]]:
    """The largest and the smallest, which stand first and last, and some of the others."""
    n_between = len(grid) - 2
    if n_random is None or n_random >= n_between:
        return grid
    rows = 1 + np.sort(rng.choice(n_between, size=n_random, replace=False))
    return [grid[0], *(grid[i] for i in rows), grid[-1]]


def _train(
    network: Encoder, data: Tokenised, schedule: Schedule, losses: Losses, stage: str, run: Run
) -> Progress:
    """Epoch after epoch, from where the stage stands."""
    optimizer = torch.optim.AdamW(network.parameters(), weight_decay=0.0, fused=True)
    kept = run.checkpoint
    progress = kept.load(network, optimizer) if kept else Progress()
    n_steps = schedule.epochs * n_batches(len(data), schedule.batch_size)
    network.train()
    while progress.epochs < schedule.epochs:
        wall, cpu = time.monotonic(), _cpu_seconds()
        rng = np.random.default_rng([run.seed, STAGES.index(stage), progress.epochs])
        found = []
        with torch.random.fork_rng(devices=[]):
            torch.default_generator.manual_seed(int(rng.integers(2**31)))
            for batch in batches(data, schedule.batch_size, rng):
                rate = schedule.learning_rate * rate_at(progress.steps, n_steps)
                found.append(_step(network, optimizer, losses(batch, rng), rate))
                progress.steps += 1
                where = f"{stage}: {progress.steps} of {n_steps} steps"
                _require_finite(where, found[-1])
                if progress.steps % SAY_EVERY == 0:
                    run.say(f"{where}, loss {np.mean(found[-SAY_EVERY:]):.3f}")
        progress.epochs += 1
        progress.losses.append(round(float(np.mean(found)), 4))
        progress.seconds += time.monotonic() - wall
        progress.cpu_seconds += _cpu_seconds() - cpu
        if kept:
            kept.save(network, optimizer, progress)
    network.eval()
    return progress


def _step(
    network: Encoder, optimizer: torch.optim.Optimizer, losses: Iterator[Tensor], rate: float
) -> float:
    """The gradients of all losses are added, clipped once, and followed once; their sum."""
    for group in optimizer.param_groups:
        group["lr"] = rate
    optimizer.zero_grad()
    total = 0.0
    for loss in losses:
        loss.backward()
        total += float(loss.detach())
    nn.utils.clip_grad_norm_(network.parameters(), CLIP_NORM)
    optimizer.step()
    return total


def _require_finite(where: str, loss: float) -> None:
    if not math.isfinite(loss):
        raise RuntimeError(f"{where}, and the loss is {loss}: lower the learning rate")


def rate_at(step: int, n_steps: int) -> float:
    """Factor of the learning rate: up in a line, and down in a line."""
    n_warm_up = max(round(WARM_UP * n_steps), 1)
    if step < n_warm_up:
        return (step + 1) / n_warm_up
    return (n_steps - step) / max(n_steps - n_warm_up, 1)


def _cpu_seconds() -> float:
    found = os.times()
    return found.user + found.system


@torch.no_grad()
def evaluate(
    network: Encoder, data: Tokenised, subs: Sequence[SubNetwork | None], *, batch_size: int = 64
) -> np.ndarray:
    """What each sub-network predicts of each example, (n_subs, n_examples): classes, or numbers.

    None is the whole network.
    """
    network.eval()
    is_number = network.config.n_classes == 1
    found = np.empty((len(subs), len(data)), dtype=np.float64 if is_number else np.int64)
    for batch in batches(data, batch_size):
        for row, sub in zip(found, subs, strict=True):
            logits = network(*batch.inputs, sub=sub)
            row[batch.rows] = logits[:, 0] if is_number else logits.argmax(1)
    return found
