"""Any causal model or encoder that transformers knows, built from its configuration alone.

Weights are random; no code runs but that of transformers, and nothing is read or downloaded.
"""

from __future__ import annotations

from collections.abc import Iterator

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from transformers import (
    CONFIG_MAPPING,
    AutoConfig,
    AutoModelForCausalLM,
    AutoModelForMaskedLM,
    PreTrainedConfig,
    PreTrainedModel,
)
from transformers.initialization import no_init_weights

from lmtime.config import HuggingFaceConfig
from lmtime.errors import UsageError

NOT_OF_THE_MODEL = ("model_type", "quantization_config", "attn_implementation", "torch_dtype")
# Ids for generating text. Defaults of a large vocabulary are no words of a small one.
UNUSED = ("bos_token_id", "eos_token_id")

# What a module outside of the layers is for, by words in its name; the first that fits counts.
ROLES = {
    "positions": ("rotary", "rope"),
    "embedding": ("emb", "wte", "wpe"),
    "final norm": ("norm", "ln_f"),
}


class HuggingFaceModel(nn.Module):
    """`loss = model(tokens, targets)`: the mean over all positions, against targets as given.

    Values are fp32, attention is torch's fused one where the model supports it, nothing is cached.
    There is no dropout whatever the configuration says: with it torch leaves fused attention on a
    CPU, so that the default of GPT-2 and BERT would decide what is measured.
    """

    def __init__(self, config: HuggingFaceConfig) -> None:
        super().__init__()
        self.config = config
        self.network = _network(config)
        self.loss = Loss()

    @property
    def owners(self) -> dict[str, str]:
        """Module -> the row of the report that its time belongs to; children follow parents."""
        owners = {f"network.{name}": owner for name, owner in _owners(self.network)}
        return owners | {"loss": "loss"}

    def forward(self, tokens: Tensor, targets: Tensor) -> Tensor:
        """Mean loss in nats a token; tokens, targets: (batch, seq_len) int64."""
        logits = self.network(input_ids=tokens, return_dict=True).logits
        return self.loss(logits, targets)


class Loss(nn.Module):
    """Mean cross-entropy, a module of its own so that its time is told from the head's."""

    def forward(self, logits: Tensor, targets: Tensor) -> Tensor:
        """logits: (batch, seq_len, vocab_size), taken in fp32 at least; targets: int64."""
        logits = logits.to(torch.promote_types(logits.dtype, torch.float32))
        return F.cross_entropy(logits.flatten(0, 1), targets.flatten())


def _network(config: HuggingFaceConfig) -> PreTrainedModel:
    if config.model_type not in CONFIG_MAPPING:
        raise UsageError(
            f"transformers does not know the model type {config.model_type!r}: "
            f"choose a model of a type that it knows"
        )
    auto = AutoModelForMaskedLM if config.is_encoder else AutoModelForCausalLM
    try:
        settings = _settings(config)
        with no_init_weights():  # torch draws every weight once, to be overwritten
            network = auto.from_config(settings, dtype=torch.float32)
    except (ArithmeticError, AssertionError, AttributeError, ImportError, LookupError, TypeError,
            ValueError, NotImplementedError) as error:  # fmt: skip
        reason = " ".join(str(error).split())
        raise UsageError(
            f"transformers builds no {config.model_type} from these settings: {reason}"
        ) from error
    network.tie_weights()
    network.init_weights()
    for module in network.modules():
        if isinstance(module, nn.Dropout):
            module.p = 0.0
    return network


def _settings(config: HuggingFaceConfig) -> PreTrainedConfig:
    """As transformers reads them, without cache and dropout."""
    given = {k: v for k, v in config.parsed.items() if k not in NOT_OF_THE_MODEL and k[0] != "_"}
    given |= dict.fromkeys(UNUSED)
    settings = AutoConfig.for_model(config.model_type, **given)
    settings.use_cache = False
    for name, value in settings.to_dict().items():
        if isinstance(value, float) and ("dropout" in name or name.endswith(("pdrop", "drop"))):
            setattr(settings, name, 0.0)
    return settings


# Owners


def _owners(network: PreTrainedModel) -> Iterator[tuple[str, str]]:
    names = {module: name for name, module in network.named_modules()}
    base = network.base_model
    if base is not network:
        for name, module in network.named_children():
            if module is not base:
                yield name, "output layer"
    head = network.get_output_embeddings()
    if head is not None:
        yield names[head], "output layer"
    blocks = _blocks(base)
    for i, block in enumerate(blocks):
        yield names[block], f"layer {i + 1}"
    words = network.get_input_embeddings()
    for module in _beside(base, blocks):
        if module is not head:
            yield names[module], _role(names[module], words in set(module.modules()))


def _blocks(base: nn.Module) -> nn.ModuleList:
    """The layers: of all lists of like modules the one with most parameters."""
    lists = [
        module
        for module in base.modules()
        if isinstance(module, nn.ModuleList) and len({type(m) for m in module}) == 1
    ]
    return max(lists, key=_size, default=nn.ModuleList())


def _size(module: nn.Module) -> int:
    return sum(p.numel() for p in module.parameters())


def _beside(module: nn.Module, blocks: nn.ModuleList) -> Iterator[nn.Module]:
    """The largest modules with weights or tables that hold no layer."""
    for child in module.children():
        if child is blocks:
            continue
        if blocks in set(child.modules()):
            yield from _beside(child, blocks)
        elif isinstance(child, nn.ModuleList):
            yield from child  # a list is never called itself
        elif any(True for _ in (*child.parameters(), *child.buffers())):
            yield child


def _role(name: str, holds_words: bool) -> str:
    if holds_words:
        return "embedding"
    own = name.rstrip(".0123456789").rpartition(".")[2].lower()
    return next((role for role, words in ROLES.items() if any(w in own for w in words)), own)
