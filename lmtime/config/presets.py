"""The models that have a name, and how a name or a file and some options become a configuration.

Sizes of today's models are those of their published `config.json`.
"""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any

from lmtime.config.gcn import GCNConfig
from lmtime.config.huggingface import (
    HuggingFaceConfig,
    huggingface_config,
    read_huggingface_config,
)
from lmtime.config.transformer import TransformerConfig
from lmtime.errors import UsageError, unknown

ModelConfig = GCNConfig | TransformerConfig | HuggingFaceConfig


def _gpt2(hidden_size: int, n_layers: int, n_heads: int) -> HuggingFaceConfig:
    return huggingface_config(
        {
            "model_type": "gpt2",
            "n_embd": hidden_size,
            "n_layer": n_layers,
            "n_head": n_heads,
            "n_positions": 1024,
            "vocab_size": 50_257,
            "tie_word_embeddings": True,
        }
    )


def _decoder(model_type: str, sizes: tuple[int, ...], **more: object) -> HuggingFaceConfig:
    """sizes: hidden, layers, feed-forward, heads, heads of keys, width of a head, vocabulary."""
    names = ("hidden_size", "num_hidden_layers", "intermediate_size", "num_attention_heads",
             "num_key_value_heads", "head_dim", "vocab_size")  # fmt: skip
    settings = dict(zip(names, sizes, strict=True))
    return huggingface_config(
        {"model_type": model_type, "tie_word_embeddings": True, **settings, **more}
    )


def _encoder(model_type: str, **settings: object) -> HuggingFaceConfig:
    return huggingface_config({"model_type": model_type, "vocab_size": 30_522, **settings})


PRESETS: dict[str, ModelConfig] = {
    "gcn": GCNConfig(),
    "gcn-1024": GCNConfig(
        hidden_size=1024, final_hidden_size=1024, embedding_size=300, batch_size=50, seq_len=200
    ),
    "transformer-gbw": TransformerConfig(),  # a quarter of the next in every size
    "transformer-gbw-1536": TransformerConfig(
        hidden_size=1536,
        ffn_size=8192,
        n_heads=16,
        vocab_size=793_471,
        cutoffs=(60_000, 160_000),
        batch_size=1,
    ),
    "gpt2": _gpt2(768, 12, 12),
    "gpt2-medium": _gpt2(1024, 24, 16),
    "gpt2-large": _gpt2(1280, 36, 20),
    "gpt2-xl": _gpt2(1600, 48, 25),
    "llama-3.2-1b": _decoder("llama", (2048, 16, 8192, 32, 8, 64, 128_256), rms_norm_eps=1e-5),
    "gemma-3-270m": _decoder(
        "gemma3_text", (640, 18, 2048, 4, 1, 256, 262_144), sliding_window=512
    ),
    "gemma-3-1b": _decoder(
        "gemma3_text", (1152, 26, 6912, 4, 1, 256, 262_144), sliding_window=512
    ),
    "qwen2.5-0.5b": _decoder("qwen2", (896, 24, 4864, 14, 2, 64, 151_936)),
    "qwen3-0.6b": _decoder("qwen3", (1024, 28, 3072, 16, 8, 128, 151_936)),
    "smollm2-135m": _decoder("llama", (576, 30, 1536, 9, 3, 64, 49_152), rms_norm_eps=1e-5),
    "bert-base": _encoder(
        "bert", hidden_size=768, num_hidden_layers=12, num_attention_heads=12,
        intermediate_size=3072, max_position_embeddings=512,
    ),
    "distilbert": _encoder(
        "distilbert", dim=768, n_layers=6, n_heads=12, hidden_dim=3072,
        max_position_embeddings=512,
    ),
}  # fmt: skip


def configure(model: str, **options: Any) -> ModelConfig:
    """A preset, or the model of a `config.json`, with some fields changed; None changes nothing.

    A new hidden_size of the convolutional network moves final_hidden_size with it unless that is
    given too: growth of the whole width is the plain case, growth of the final state alone must
    be asked for.
    """
    base = _base(model)
    given = {name: value for name, value in options.items() if value is not None}
    if isinstance(base, HuggingFaceConfig):
        return base.changed(**given)
    allowed = [f.name for f in dataclasses.fields(base)]
    for name in given:
        if name not in allowed:
            raise UsageError(f"{model} has no {name}: choose {', '.join(allowed)}")
    clusters = "cutoffs" in given or "div_value" in given
    layer = given.get("output_layer")
    if layer in ("full", "chunked") and clusters and isinstance(base, GCNConfig):
        raise UsageError(f"a {layer} softmax has no clusters: leave out cutoffs and div_value")
    if "hidden_size" in given and isinstance(base, GCNConfig):
        given.setdefault("final_hidden_size", given["hidden_size"])
    return dataclasses.replace(base, **given)


def configuration_of(fields: dict[str, Any]) -> ModelConfig:
    """The configuration whose fields a record holds."""
    if "settings" in fields:
        step = {name: fields[name] for name in ("batch_size", "seq_len")}
        return HuggingFaceConfig(fields["settings"], **step)
    kind = GCNConfig if "kernel_size" in fields else TransformerConfig
    return kind(**{k: tuple(v) if isinstance(v, list) else v for k, v in fields.items()})


def _base(model: str) -> ModelConfig:
    if model in PRESETS:
        return PRESETS[model]
    if model.endswith(".json") or "/" in model or Path(model).is_dir():
        return read_huggingface_config(Path(model))
    raise unknown("model", model, list(PRESETS))


def model_name(model: str) -> str:
    """How records call a model: its preset, or the folder of its `config.json`."""
    if model in PRESETS:
        return model
    path = Path(model).resolve()
    return path.parent.name if path.name == "config.json" else path.stem


def preset_row(name: str) -> dict[str, Any]:
    """The sizes of a preset, for a list of them."""
    config = PRESETS[name]
    clusters = ",".join(map(str, getattr(config, "cutoffs", ())))
    return {
        "model": name,
        "hidden size": config.hidden_size,
        "layers": config.n_layers,
        "vocabulary": config.vocab_size,
        "output layer": f"{config.output_layer} {clusters}".strip(),
        "batch": f"{config.batch_size} x {config.seq_len}",
    }
