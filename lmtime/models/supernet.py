"""What makes sub-networks of one network good: its important heads and neurons stand first.

Importance and order are DynaBERT's (Hou et al. 2020). One thing differs: the released code never
clears gradients between batches, so that it adds |g1| + |g1 + g2| + ...; here each batch counts by
itself.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor

from lmtime.models.batches import Batch
from lmtime.models.encoder import Encoder, Masks


@dataclass(frozen=True)
class Importance:
    """How much the loss depends on each: (n_heads,) and (ffn_size,) a layer, none negative."""

    heads: list[Tensor]
    neurons: list[Tensor]


def task_loss(logits: Tensor, labels: Tensor) -> Tensor:
    """Cross-entropy in nats, or the squared error where there is one output: mean of a batch."""
    if logits.shape[1] == 1:
        return F.mse_loss(logits[:, 0], labels.to(logits.dtype))
    return F.cross_entropy(logits, labels)


def importance(encoder: Encoder, batches: Iterable[Batch]) -> Importance:
    """Summed over labelled batches, without dropout.

    A head's is |dL / d mask|; a neuron's |w1 . g1 + b1 g1| + |w2 . g2|, of the weights into it and
    out of it: to first order, what the loss changes by where it is left out.
    """
    was_training = encoder.training
    encoder.eval()
    summed = summed_sizes(_of_batch(encoder, batch) for batch in batches)
    encoder.train(was_training)
    n = encoder.config.n_layers
    return Importance(summed[:n], summed[n:])


def summed_sizes(contributions: Iterable[Sequence[Tensor]]) -> list[Tensor]:
    """Absolute values of what each batch gives, added over batches."""
    total: list[Tensor] = []
    for batch in contributions:
        sizes = [value.abs() for value in batch]
        total = [a + b for a, b in zip(total, sizes, strict=True)] if total else sizes
    return total


def _of_batch(encoder: Encoder, batch: Batch) -> list[Tensor]:
    """Of each layer's heads, then of each layer's neurons, from gradients of this batch alone."""
    sizes = encoder.config.heads, encoder.config.ffn_sizes
    like = encoder.words.weight
    masks = Masks(*([like.new_ones(n, requires_grad=True) for n in part] for part in sizes))
    loss = task_loss(encoder(*batch.inputs, masks=masks), batch.labels)
    weights = [
        weight
        for layer in encoder.layers
        for weight in (layer.intermediate.weight, layer.intermediate.bias, layer.output.weight)
    ]
    heads = len(masks.heads)
    gradients = torch.autograd.grad(loss, [*masks.heads, *weights])
    products = [w.detach() * g for w, g in zip(weights, gradients[heads:], strict=True)]
    neurons = [_neurons(*products[i : i + 3]) for i in range(0, len(products), 3)]
    return [*gradients[:heads], *neurons]


def _neurons(into: Tensor, bias: Tensor, out: Tensor) -> Tensor:
    """(ffn_size,), of weights times gradients: into the neurons, their biases, out of them."""
    return (into.sum(1) + bias).abs() + out.sum(0).abs()


@torch.no_grad()
def rewire(encoder: Encoder, importance: Importance) -> None:
    """Put heads and neurons in order, the most important first, in place.

    What the whole network computes stays the same but for rounding.
    """
    for layer, heads, neurons in zip(
        encoder.layers, importance.heads, importance.neurons, strict=True
    ):
        order = heads.argsort(descending=True, stable=True)
        rows = (order[:, None] * layer.head_size + torch.arange(layer.head_size)).flatten()
        for linear in (layer.query, layer.key, layer.value):
            linear.weight.copy_(linear.weight[rows])
            linear.bias.copy_(linear.bias[rows])
        layer.attention_output.weight.copy_(layer.attention_output.weight[:, rows])
        rows = neurons.argsort(descending=True, stable=True)
        layer.intermediate.weight.copy_(layer.intermediate.weight[rows])
        layer.intermediate.bias.copy_(layer.intermediate.bias[rows])
        layer.output.weight.copy_(layer.output.weight[:, rows])
