"""Causal and encoder models as Hugging Face describes them, in a `config.json`."""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, ClassVar

from lmtime.config.checks import require_positive
from lmtime.errors import UsageError

# Field here -> its names in `config.json`, the first one that is there counts.
KEYS = {
    "hidden_size": ("hidden_size", "n_embd", "d_model", "dim"),
    "n_layers": ("num_hidden_layers", "n_layer", "n_layers", "num_layers"),
    "n_heads": ("num_attention_heads", "n_head", "n_heads", "num_heads"),
    "n_kv_heads": ("num_key_value_heads", "multi_query_group_num"),
    "head_size": ("head_dim",),
    "ffn_size": ("intermediate_size", "n_inner", "hidden_dim", "ffn_dim", "d_ff"),
    "vocab_size": ("vocab_size",),
    "max_len": ("max_position_embeddings", "n_positions", "max_sequence_length"),
}
HEAD_SIZES = {"qwen3": 128, "qwen3_moe": 128, "gemma": 256, "gemma2": 256, "gemma3_text": 256}
# Positions count from the one after the padding token's.
PADDED_POSITIONS = ("roberta", "xlm-roberta", "xlm-roberta-xl", "roberta-prelayernorm",
                    "camembert", "data2vec-text", "esm", "mpnet", "longformer")  # fmt: skip
LEARNED_POSITIONS = ("gpt2", "opt", "gpt_neo", "bert", "distilbert", "electra", *PADDED_POSITIONS)
DEFAULT_SEQ_LEN = 1_024


@dataclass(frozen=True)
class HuggingFaceConfig:
    """The model of a `config.json`, and one step of it.

    settings: the file's object as JSON text, keys sorted; the fields behind seq_len are read from
    it, None where it has no such number. Models are built from it with random weights.
    """

    settings: str
    batch_size: int = 1
    seq_len: int = DEFAULT_SEQ_LEN
    model_type: str = field(init=False)
    is_encoder: bool = field(init=False)
    hidden_size: int | None = field(init=False)
    n_layers: int | None = field(init=False)
    n_heads: int | None = field(init=False)
    n_kv_heads: int | None = field(init=False)
    head_size: int | None = field(init=False)
    ffn_size: int | None = field(init=False)
    vocab_size: int = field(init=False)
    max_len: int | None = field(init=False)

    corpus: ClassVar[str] = "movie-reviews"
    output_layer: ClassVar[str] = "full"

    def __post_init__(self) -> None:
        settings = self.parsed
        found = {"model_type": settings["model_type"], "is_encoder": _is_encoder(settings)}
        found |= {name: _number(settings, keys) for name, keys in KEYS.items()}
        found["max_len"] = _longest(settings)
        _derive(found)
        for name, value in found.items():
            object.__setattr__(self, name, value)
        if self.vocab_size is None:
            raise UsageError(f"the configuration of this {self.model_type} has no vocab_size")
        sizes = [name for name in KEYS if found[name] is not None]
        require_positive(self, ("batch_size", "seq_len", *sizes))
        if self.model_type in LEARNED_POSITIONS and self.seq_len > (self.max_len or self.seq_len):
            raise UsageError(
                f"seq_len={self.seq_len} is more than the {self.max_len} positions that this "
                f"{self.model_type} knows: lower it"
            )

    @property
    def parsed(self) -> dict[str, Any]:
        """The settings as an object."""
        return json.loads(self.settings)

    @property
    def n_tokens(self) -> int:
        """Tokens in one step."""
        return self.batch_size * self.seq_len

    @property
    def final_hidden_size(self) -> int | None:
        """Width before the output layer."""
        return self.hidden_size

    def changed(self, **options: int) -> HuggingFaceConfig:
        """Another shape: fields of this class, or keys of `config.json` by the names of KEYS."""
        settings, step = self.parsed, {"batch_size": self.batch_size, "seq_len": self.seq_len}
        step |= {name: options.pop(name) for name in list(options) if name in step}
        for name, value in options.items():
            if name not in KEYS:
                raise UsageError(
                    f"{name} is no size of a {self.model_type}: "
                    f"choose {', '.join(k for k in (*KEYS, *step))}"
                )
            settings[_key(settings, KEYS[name])] = value
        if "layer_types" in settings and "n_layers" in options:
            settings.pop("layer_types")  # one entry a layer: the model's own pattern instead
        return huggingface_config(settings, **step)


def huggingface_config(settings: dict[str, Any], **step: int) -> HuggingFaceConfig:
    """A configuration from the object of a `config.json`; a multimodal one gives its text part."""
    if isinstance(settings.get("text_config"), dict):
        settings = settings["text_config"]
    if not isinstance(settings.get("model_type"), str):
        raise UsageError("the configuration has no model_type: it is no model of Hugging Face")
    if "auto_map" in settings:
        raise UsageError(
            f"this {settings['model_type']} brings code of its own, which is never run: "
            f"choose a model that transformers knows"
        )
    if settings.get("is_encoder_decoder"):
        raise UsageError(
            f"a {settings['model_type']} is an encoder with a decoder: "
            f"choose a causal model or an encoder"
        )
    text = json.dumps(settings, sort_keys=True)
    longest = _longest(settings) or DEFAULT_SEQ_LEN
    return HuggingFaceConfig(text, **({"seq_len": min(DEFAULT_SEQ_LEN, longest)} | step))


def read_huggingface_config(path: Path) -> HuggingFaceConfig:
    """The configuration in a `config.json`, or in the folder that holds one."""
    path = path / "config.json" if path.is_dir() else path
    try:
        settings = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError, json.JSONDecodeError) as error:
        raise UsageError(f"{path} cannot be read as a config.json ({error})") from None
    if not isinstance(settings, dict):
        raise UsageError(f"{path} holds no JSON object, as a config.json does")
    return huggingface_config(settings)


def _is_encoder(settings: dict[str, Any]) -> bool:
    """By the class that the file names, or by the type where it names none that tells."""
    names = settings.get("architectures") or []
    if any(name.endswith(("CausalLM", "LMHeadModel")) for name in names):
        return False
    if settings["model_type"] in ENCODERS:
        return not settings.get("is_decoder", False)
    return any(name.endswith("MaskedLM") for name in names)


ENCODERS = (
    "albert", "bert", "big_bird", "camembert", "convbert", "data2vec-text", "deberta",
    "deberta-v2", "distilbert", "electra", "ernie", "esm", "esmc", "eurobert", "flaubert", "fnet",
    "funnel", "gte", "ibert", "jina_embeddings_v3", "layoutlm", "longformer", "luke",
    "megatron-bert", "mobilebert", "modernbert", "mpnet", "mra", "neomme", "nomic_bert",
    "nystromformer", "rembert", "roberta", "roberta-prelayernorm", "roc_bert", "roformer",
    "squeezebert", "xlm-roberta", "xlm-roberta-xl", "xmod", "yoso",
)  # fmt: skip


def _key(settings: dict[str, Any], keys: tuple[str, ...]) -> str:
    """The name that this file uses: one that is there, else the first that it may have."""
    return next((key for key in keys if key in settings), keys[0])


def _number(settings: dict[str, Any], keys: tuple[str, ...]) -> int | None:
    return settings.get(_key(settings, keys))


def _longest(settings: dict[str, Any]) -> int | None:
    """Positions that a sequence can have."""
    longest = _number(settings, KEYS["max_len"])
    if longest is None or settings["model_type"] not in PADDED_POSITIONS:
        return longest
    return longest - settings.get("pad_token_id", 1) - 1


def _derive(found: dict[str, Any]) -> None:
    """What a file leaves out because it follows: as many keys as heads, four times as wide."""
    if found["n_kv_heads"] is None:
        found["n_kv_heads"] = found["n_heads"]
    if found["head_size"] is None:
        found["head_size"] = HEAD_SIZES.get(found["model_type"])
    if found["head_size"] is None and found["hidden_size"] and found["n_heads"]:
        found["head_size"] = found["hidden_size"] // found["n_heads"]
    if found["ffn_size"] is None and found["model_type"] == "gpt2":
        found["ffn_size"] = 4 * found["hidden_size"]
