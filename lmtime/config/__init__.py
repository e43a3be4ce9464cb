"""What is timed: the shapes of a model and of one step. Standard library only.

Every field is a number or a name that a command-line option sets (`hidden_size` is
`--hidden-size`). A configuration is checked once, when it is built, and never changes.
"""

from lmtime.config.adaptive import (
    OUTPUT_LAYER_NAMES,
    AdaptiveSoftmaxConfig,
    cutoffs_of_bands,
    head_size,
    may_be_band_sizes,
    tail_sizes,
)
from lmtime.config.checks import MAX_SIZE
from lmtime.config.encoder import (
    DEPTHS,
    ENCODERS,
    WIDTHS,
    EncoderConfig,
    SubNetwork,
    find_encoder,
    kept_layers,
    name_of,
    sub_network,
    whole_network,
)
from lmtime.config.gcn import GCNConfig
from lmtime.config.huggingface import (
    HuggingFaceConfig,
    huggingface_config,
    read_huggingface_config,
)
from lmtime.config.presets import (
    PRESETS,
    ModelConfig,
    configuration_of,
    configure,
    model_name,
    preset_row,
)
from lmtime.config.transformer import TransformerConfig

__all__ = [
    "DEPTHS",
    "ENCODERS",
    "MAX_SIZE",
    "OUTPUT_LAYER_NAMES",
    "PRESETS",
    "WIDTHS",
    "AdaptiveSoftmaxConfig",
    "EncoderConfig",
    "GCNConfig",
    "HuggingFaceConfig",
    "ModelConfig",
    "SubNetwork",
    "TransformerConfig",
    "configuration_of",
    "configure",
    "cutoffs_of_bands",
    "find_encoder",
    "head_size",
    "huggingface_config",
    "kept_layers",
    "may_be_band_sizes",
    "model_name",
    "name_of",
    "preset_row",
    "read_huggingface_config",
    "sub_network",
    "tail_sizes",
    "whole_network",
]
