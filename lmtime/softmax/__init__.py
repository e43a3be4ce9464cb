"""Every output layer under one signature: `layer(hidden, targets) -> OutputLoss(nll, loss)`.

hidden is (..., hidden_size) and targets (...), ids sorted by frequency. `ignore_index`,
`reduction` and `label_smoothing` mean what they mean in `torch.nn.functional.cross_entropy`.
"""

from __future__ import annotations

from collections.abc import Callable

from lmtime.config import OUTPUT_LAYER_NAMES, AdaptiveSoftmaxConfig, GCNConfig, TransformerConfig
from lmtime.softmax.adaptive import AdaptiveSoftmax
from lmtime.softmax.bands import band_shapes
from lmtime.softmax.chunked import ChunkedSoftmax
from lmtime.softmax.class_based import ClassSoftmax
from lmtime.softmax.full import FullSoftmax
from lmtime.softmax.interface import OutputLayer, OutputLoss
from lmtime.softmax.partition import Plan
from lmtime.softmax.sampled import SampledSoftmax
from lmtime.softmax.shards import ShardScores, merge_shards, score_shard
from lmtime.softmax.torch_adaptive import TorchAdaptiveSoftmax

OUTPUT_LAYERS: dict[str, Callable[[GCNConfig | TransformerConfig], OutputLayer]] = {
    "adaptive": lambda config: TorchAdaptiveSoftmax(config.adaptive),
    "fused-adaptive": lambda config: AdaptiveSoftmax(config.adaptive),
    "full": lambda config: FullSoftmax(config.final_hidden_size, config.vocab_size),
    "chunked": lambda config: ChunkedSoftmax(config.final_hidden_size, config.vocab_size),
}
# Those that may have the words' vectors in common with an adaptive input.
TIED_LAYERS = {"adaptive": TorchAdaptiveSoftmax, "fused-adaptive": AdaptiveSoftmax}
assert set(OUTPUT_LAYERS) == set(OUTPUT_LAYER_NAMES), "config/ lists the names without torch"

__all__ = [
    "OUTPUT_LAYERS",
    "TIED_LAYERS",
    "AdaptiveSoftmax",
    "AdaptiveSoftmaxConfig",
    "ChunkedSoftmax",
    "ClassSoftmax",
    "FullSoftmax",
    "OutputLayer",
    "OutputLoss",
    "Plan",
    "SampledSoftmax",
    "ShardScores",
    "TorchAdaptiveSoftmax",
    "band_shapes",
    "merge_shards",
    "score_shard",
]
