"""The models that are timed: `build(config) -> model`, with `loss = model(tokens, targets)`."""

from __future__ import annotations

import torch
from torch import nn

from lmtime.config import GCNConfig
from lmtime.models.gcn import GCN

__all__ = ["GCN", "build", "nesterov"]


def build(config: GCNConfig, *, seed: int = 0, device: str | torch.device = "cpu") -> nn.Module:
    """The model of a configuration with random weights, fixed by the seed, ready to train."""
    generator_state = torch.get_rng_state()
    torch.default_generator.manual_seed(seed)  # not the GPU's: weights are drawn on the CPU
    try:
        return GCN(config).to(device)
    finally:
        torch.set_rng_state(generator_state)


def nesterov(model: nn.Module, *, learning_rate: float = 0.01) -> torch.optim.Optimizer:
    """The optimizer of Dauphin et al. (2017): accelerated gradient with momentum 0.99."""
    return torch.optim.SGD(model.parameters(), lr=learning_rate, momentum=0.99, nesterov=True)
