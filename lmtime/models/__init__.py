"""The models that are timed: `build(config) -> model`, with `loss = model(tokens, targets)`."""

from __future__ import annotations

import torch
from torch import nn

from lmtime.config import GCNConfig, HuggingFaceConfig, ModelConfig, TransformerConfig
from lmtime.models.gcn import GCN
from lmtime.models.transformer import Transformer

__all__ = ["GCN", "Transformer", "build", "n_copies", "optimizer_for"]


def build(config: ModelConfig, *, seed: int = 0, device: str | torch.device = "cpu") -> nn.Module:
    """The model of a configuration with random weights, fixed by the seed, ready to train."""
    generator_state = torch.get_rng_state()
    torch.default_generator.manual_seed(seed)  # not the GPU's: weights are drawn on the CPU
    try:
        return _model(config).to(device)
    finally:
        torch.set_rng_state(generator_state)


def _model(config: ModelConfig) -> nn.Module:
    if isinstance(config, GCNConfig):
        return GCN(config)
    if isinstance(config, TransformerConfig):
        return Transformer(config)
    from lmtime.models.huggingface import HuggingFaceModel  # transformers takes seconds to import

    return HuggingFaceModel(config)


def optimizer_for(model: nn.Module, config: ModelConfig) -> torch.optim.Optimizer:
    """What such a model is trained with: AdamW for Hugging Face's, else accelerated gradient."""
    if isinstance(config, HuggingFaceConfig):
        return torch.optim.AdamW(model.parameters(), lr=1e-4)
    # The Transformer diverges at the other's rate without warm-up and clipping: it stays finite.
    return nesterov(model, learning_rate=0.01 if isinstance(config, GCNConfig) else 1e-5)


def n_copies(config: ModelConfig) -> int:
    """Values of state that the optimizer keeps for each parameter."""
    return 2 if isinstance(config, HuggingFaceConfig) else 1


def nesterov(model: nn.Module, *, learning_rate: float = 0.01) -> torch.optim.Optimizer:
    """The optimizer of Dauphin et al. (2017) and of fairseq: momentum 0.99, looking ahead."""
    return torch.optim.SGD(model.parameters(), lr=learning_rate, momentum=0.99, nesterov=True)
