"""What a sub-network learns from its teacher: logits, and the states between the layers.

DynaBERT's losses (Hou et al. 2020, and the released code). One thing differs: padding is left out
of the mean over states.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch.nn.functional as F
from torch import Tensor

from lmtime.config import SubNetwork
from lmtime.models.batches import Batch
from lmtime.models.encoder import Encoder

TEACHER_WIDTHS = ("full", "same")  # as the released code has it, as the paper's Algorithm 3


@dataclass(frozen=True)
class Weights:
    """Of the loss of the logits and of that of the states."""

    logits: float
    states: float


WIDTH_WEIGHTS = Weights(1.0, 0.1)
DEPTH_WEIGHTS = Weights(1.0, 1.0)


@dataclass(frozen=True)
class Outputs:
    """states: of the embedding and of each layer that ran, (batch, seq_len, hidden_size)."""

    states: list[Tensor]
    logits: Tensor


def outputs(network: Encoder, batch: Batch, sub: SubNetwork | None = None) -> Outputs:
    """All that a loss of distillation compares."""
    states = list(network.hidden_states(*batch.inputs, sub=sub))
    return Outputs(states, network.classify(states[-1]))


def matched_states(sub: SubNetwork, n_layers: int) -> tuple[int, ...]:
    """Which of the teacher's states each state of a student is held to; state 0 is the embedding.

    What goes into a layer that stays, to what goes into the same layer of the teacher; the last
    output to the teacher's last.
    """
    return (*sub.layers, n_layers)


def distillation_loss(
    student: Outputs, teacher: Outputs, sub: SubNetwork, mask: Tensor, weights: Weights
) -> Tensor:
    """Of one sub-network on one batch. Where a number is predicted, that of the states alone.

    mask: (batch, seq_len), True where there is a token.
    """
    matched = [teacher.states[i] for i in matched_states(sub, len(teacher.states) - 1)]
    loss = weights.states * states_loss(student.states, matched, mask)
    if student.logits.shape[1] > 1:
        loss = loss + weights.logits * soft_cross_entropy(student.logits, teacher.logits)
    return loss


def soft_cross_entropy(logits: Tensor, teacher: Tensor) -> Tensor:
    """Cross-entropy to the teacher's probabilities, mean of a batch. (batch, n_classes) each."""
    return F.cross_entropy(logits, teacher.detach().softmax(-1))


def states_loss(states: Sequence[Tensor], teacher: Sequence[Tensor], mask: Tensor) -> Tensor:
    """Mean squared error over tokens and dimensions, summed over states."""
    real = mask.bool().unsqueeze(-1).to(states[0].dtype)
    n_values = real.sum() * states[0].shape[-1]
    pairs = zip(states, teacher, strict=True)
    return sum(((mine - other.detach()).square() * real).sum() for mine, other in pairs) / n_values
