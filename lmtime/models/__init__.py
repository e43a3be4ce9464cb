"""The models that are timed: `build(config) -> model`, with `loss = model(tokens, targets)`."""

from __future__ import annotations

import torch
from torch import nn

from lmtime.config import GCNConfig, ModelConfig, TransformerConfig
from lmtime.cost.optimizers import FUSED
from lmtime.cost.predict import optimizer_name, optimizer_of
from lmtime.models.gcn import GCN
from lmtime.models.transformer import Transformer

__all__ = ["GCN", "Transformer", "build", "optimizer_for"]


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


def optimizer_for(
    model: nn.Module, config: ModelConfig, name: str | None = None
) -> torch.optim.Optimizer:
    """By a name of `cost.optimizers.NAMES`, else what such a model is trained with.

    That is AdamW for Hugging Face's models, else accelerated gradient.
    """
    is_fused = optimizer_of(config, name).way == FUSED or None  # None: as torch chooses
    kind = (name or optimizer_name(config)).removesuffix(f"-{FUSED}")
    if kind in ADAPTIVE:
        return ADAPTIVE[kind](model.parameters(), lr=1e-4, fused=is_fused)
    # The others diverge at the network's rate without warm-up and clipping: they stay finite.
    rate = 0.01 if isinstance(config, GCNConfig) else 1e-5
    return torch.optim.SGD(model.parameters(), lr=rate, fused=is_fused, **MOMENTUM[kind])


ADAPTIVE = {"adam": torch.optim.Adam, "adamw": torch.optim.AdamW}
MOMENTUM = {
    "sgd": {},
    "momentum": {"momentum": 0.99},
    "nesterov": {"momentum": 0.99, "nesterov": True},
}


def nesterov(model: nn.Module, *, learning_rate: float = 0.01) -> torch.optim.Optimizer:
    """The optimizer of Dauphin et al. (2017) and of fairseq: momentum 0.99, looking ahead."""
    return torch.optim.SGD(model.parameters(), lr=learning_rate, **MOMENTUM["nesterov"])
