"""Costs of the families of models that are met most, layer by layer, from their configuration.

What a model executes is written once, as a sum of parts, and gives work, weights and optimizer.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from lmtime.config import HuggingFaceConfig
from lmtime.cost import parts
from lmtime.cost.gcn import OPTIMIZER
from lmtime.cost.operators import traffic
from lmtime.cost.optimizers import OPTIMIZERS, Optimizer
from lmtime.cost.output_layers import Rows
from lmtime.cost.parts import Attention, Part

GATED = ("llama", "qwen2", "qwen3", "gemma3_text")
ENCODERS = ("bert", "distilbert")
MAX_GROUPED_HEAD = 256  # wider heads have their keys repeated before attention

# {setting: its values} under which a family computes what stands here; absent counts as ordinary.
ORDINARY: dict[str, dict[str, tuple[Any, ...]]] = {
    "gpt2": {"activation_function": ("gelu_new",), "add_cross_attention": (False,)},
    "llama": {"hidden_act": ("silu",)},
    "qwen2": {"hidden_act": ("silu",), "use_sliding_window": (False,)},
    "qwen3": {"hidden_act": ("silu",), "use_sliding_window": (False,)},
    "gemma3_text": {
        "hidden_activation": ("gelu_pytorch_tanh",),
        "attn_logit_softcapping": (None,),
        "final_logit_softcapping": (None,),
        "use_bidirectional_attention": (False, None),
    },
    "bert": {
        "hidden_act": ("gelu",),
        "is_decoder": (False,),
        "chunk_size_feed_forward": (0,),
        "tie_word_embeddings": (True,),  # untied, it keeps a bias that it never uses
    },
    "distilbert": {"activation": ("gelu",), "chunk_size_feed_forward": (0,)},
}
# Sizes whose defaults do not follow from others: they must be given.
NEEDED = {
    "qwen2": ("num_key_value_heads",),
    "qwen3": ("num_key_value_heads", "head_dim"),
    "gemma3_text": ("num_key_value_heads", "head_dim"),
}
CHANGING_ROTATIONS = ("dynamic", "longrope")


def is_known(shape: HuggingFaceConfig) -> bool:
    """Whether costs can be predicted; other models are measured and counted only."""
    family, settings = shape.model_type, shape.parsed
    if family not in ORDINARY or None in (shape.hidden_size, shape.n_layers, shape.n_heads):
        return False
    rotation = settings.get("rope_parameters") or settings.get("rope_scaling") or {}
    kind = rotation.get("rope_type", rotation.get("type"))
    return (
        shape.ffn_size is not None
        and shape.head_size <= MAX_GROUPED_HEAD
        and shape.is_encoder == (family in ENCODERS)
        and all(
            settings.get(name, values[0]) in values for name, values in ORDINARY[family].items()
        )
        and all(settings.get(name) is not None for name in NEEDED.get(family, ()))
        and kind not in CHANGING_ROTATIONS
    )


def huggingface(
    shape: HuggingFaceConfig,
    *,
    value_bytes: float = 4,
    visible: bool = False,
    optimizer: Optimizer = OPTIMIZERS["adamw"],
) -> Rows:
    """{(owner, phase): operators} of one training step.

    Every pair of positions counts as computed; visible: only those that no mask removes.
    """
    model = _model(shape, value_bytes, visible)
    rows: Rows = {}
    for owner, part in model.items():
        rows[owner, "forward"], rows[owner, "backward"] = list(part.forward), list(part.backward)
    sizes = [size for part in model.values() for size in part.weights]
    rows[OPTIMIZER, OPTIMIZER] = optimizer.update(sizes, value_bytes)
    return {key: costs for key, costs in rows.items() if any(c.flops or c.bytes for c in costs)}


def parameters(shape: HuggingFaceConfig) -> dict[str, int]:
    """{owner: number of trainable values}; a tied matrix is the embedding's."""
    return {owner: sum(sizes) for owner, sizes in weights(shape).items()}


def weights(shape: HuggingFaceConfig) -> dict[str, list[int]]:
    """{owner: size of each tensor of trainable values}."""
    model = _model(shape, 4, False)
    return {owner: list(part.weights) for owner, part in model.items() if part.weights}


def forward_flops(shape: HuggingFaceConfig, *, visible: bool) -> dict[str, int]:
    """{owner: FLOPs} of the forward pass, of those that have any."""
    model = _model(shape, 4, visible)
    flops = {owner: sum(c.flops for c in part.forward) for owner, part in model.items()}
    return {owner: count for owner, count in flops.items() if count}


def visible_pairs(seq_len: int, window: int | None = None) -> int:
    """Pairs (query, key) that a causal mask leaves; a query sees `window` keys, itself included."""
    w = seq_len if window is None else min(window, seq_len)
    return w * (w + 1) // 2 + (seq_len - w) * w


# The model


def _model(shape: HuggingFaceConfig, b: float, visible: bool) -> dict[str, Part]:
    n, d, settings = shape.n_tokens, shape.hidden_size, shape.parsed
    block: Callable[..., Part] = BLOCKS.get(shape.model_type, _gated_block)
    is_tied = settings.get("tie_word_embeddings", shape.model_type not in GATED[:3])
    model = {"embedding": _embedding(shape, b), "outside": _outside(shape, b)}
    for i in range(shape.n_layers):
        attention = _attention(shape, _window(shape, i), visible)
        model[f"layer {i + 1}"] = block(shape, attention, b)
    head = parts.linear(n, d, shape.vocab_size, b, bias=shape.is_encoder, tied=is_tied)
    if shape.is_encoder:
        head += parts.linear(n, d, d, b, bias=True) + parts.activation("gelu", n * d, b)
        head += parts.layer_norm(n, d, b)
    else:
        model["final norm"] = _norm(shape, b)
    if shape.model_type in GATED:
        model["positions"] = _positions(shape, b)
    if is_tied:
        added = 3 * d * shape.vocab_size  # both gradients of one matrix
        model["embedding"] += parts.elementwise(0, added, b)
    return model | {"output layer": head, "loss": parts.cross_entropy(n, shape.vocab_size, b)}


def _window(shape: HuggingFaceConfig, layer: int) -> int | None:
    """How many positions a layer sees, None for all."""
    settings = shape.parsed
    if shape.model_type != "gemma3_text":
        return None
    every = settings.get("sliding_window_pattern", 6)
    slides = (layer + 1) % every > 0
    if "layer_types" in settings:
        slides = settings["layer_types"][layer] == "sliding_attention"
    return settings.get("sliding_window", 4096) if slides else None


def _attention(shape: HuggingFaceConfig, window: int | None, visible: bool) -> Attention:
    pairs = shape.seq_len**2
    if visible and not shape.is_encoder:
        pairs = visible_pairs(shape.seq_len, window)
    return Attention(
        shape.batch_size,
        shape.seq_len,
        shape.n_heads,
        shape.n_kv_heads,
        shape.head_size,
        pairs,
        is_masked=window is not None and shape.seq_len >= window,
    )


def _norm(shape: HuggingFaceConfig, b: float) -> Part:
    n, d = shape.n_tokens, shape.hidden_size
    if shape.model_type not in GATED:
        return parts.layer_norm(n, d, b)
    return parts.rms_norm(n, d, b, around_one=shape.model_type == "gemma3_text")


def _gpt2_block(shape: HuggingFaceConfig, attention: Attention, b: float) -> Part:
    """One projection for queries, keys and values; their gradients are copied into one."""
    n, d, ffn = shape.n_tokens, shape.hidden_size, shape.ffn_size
    return (
        _norm(shape, b)
        + parts.linear(n, d, 3 * d, b, bias=True)
        + attention.part(b)
        + parts.elementwise(0, 6 * n * d, b)
        + parts.linear(n, d, d, b, bias=True)
        + parts.residual(n, d, b)
        + _norm(shape, b)
        + parts.linear(n, d, ffn, b, bias=True)
        + parts.activation("gelu_new", n * ffn, b)
        + parts.linear(n, ffn, d, b, bias=True)
        + parts.residual(n, d, b)
    )


def _encoder_block(shape: HuggingFaceConfig, attention: Attention, b: float) -> Part:
    """Norms after the sums; queries, keys, values and output are as wide as the layer."""
    n, d, ffn = shape.n_tokens, shape.hidden_size, shape.ffn_size
    return (
        sum(parts.linear(n, d, d, b, bias=True) for _ in range(4))
        + parts.shared_input(n, d, 3, b)
        + attention.part(b)
        + parts.residual(n, d, b)
        + _norm(shape, b)
        + parts.linear(n, d, ffn, b, bias=True)
        + parts.activation("gelu", n * ffn, b)
        + parts.linear(n, ffn, d, b, bias=True)
        + parts.residual(n, d, b)
        + _norm(shape, b)
    )


def _gated_block(shape: HuggingFaceConfig, attention: Attention, b: float) -> Part:
    """RMS norms, turned queries and keys, a gated feed-forward network."""
    n, d, ffn, family = shape.n_tokens, shape.hidden_size, shape.ffn_size, shape.model_type
    ffn_bias = family == "llama" and shape.parsed.get("mlp_bias", False)
    act = "gelu_pytorch_tanh" if family == "gemma3_text" else "silu"
    n_norms = 4 if family == "gemma3_text" else 2
    return (
        sum(_norm(shape, b) for _ in range(n_norms))
        + _turned_projections(shape, b)
        + attention.part(b)
        + parts.residual(n, d, b)
        + parts.linear(n, d, ffn, b, bias=ffn_bias)
        + parts.linear(n, d, ffn, b, bias=ffn_bias)
        + parts.shared_input(n, d, 2, b)
        + parts.activation(act, n * ffn, b)
        + parts.elementwise(3 * n * ffn, 6 * n * ffn, b, launches=(1, 2))
        + parts.linear(n, ffn, d, b, bias=ffn_bias)
        + parts.residual(n, d, b)
    )


def _turned_projections(shape: HuggingFaceConfig, b: float) -> Part:
    """Queries, keys, values and output; some families have a bias, some norm each head."""
    n, d, family = shape.n_tokens, shape.hidden_size, shape.model_type
    bias = family != "qwen2" and shape.parsed.get("attention_bias", False)
    found = parts.shared_input(n, d, 3, b)
    found += parts.linear(n, shape.n_heads * shape.head_size, d, b, bias=bias)
    for n_heads in (shape.n_heads, shape.n_kv_heads, shape.n_kv_heads):
        width = n_heads * shape.head_size
        found += parts.linear(n, d, width, b, bias=bias or family == "qwen2")
    for n_heads in (shape.n_heads, shape.n_kv_heads):
        found += parts.rotary(shape.batch_size, shape.seq_len, n_heads, shape.head_size, b)
        if family in ("qwen3", "gemma3_text"):
            around_one = family == "gemma3_text"
            found += parts.rms_norm(n * n_heads, shape.head_size, b, around_one=around_one)
    return found


BLOCKS = {"gpt2": _gpt2_block, "bert": _encoder_block, "distilbert": _encoder_block}


# Beside the layers


def _embedding(shape: HuggingFaceConfig, b: float) -> Part:
    """Words; learned positions, kinds of text and a norm where the family has them."""
    n, d, family, settings = shape.n_tokens, shape.hidden_size, shape.model_type, shape.parsed
    found = parts.embedding(n, shape.vocab_size, d, b)
    if family == "gemma3_text":
        return found + parts.elementwise(2 * n * d + 1, 2 * n * d + 1, b)  # scaled
    if family in GATED:
        return found
    found += parts.embedding(shape.seq_len, shape.max_len or DEFAULT_LEN[family], d, b)
    if family == "bert":
        kinds = parts.embedding(n, settings.get("type_vocab_size", 2), d, b)
        found += kinds + Part((traffic(3 * n * d, b, ids=3 * shape.seq_len, launches=2),))
    if shape.is_encoder:
        found += parts.added_positions(shape.batch_size, shape.seq_len, d, b)
        found += parts.layer_norm(n, d, b)
    return found


DEFAULT_LEN = {"gpt2": 1024, "bert": 512, "distilbert": 512}


def _positions(shape: HuggingFaceConfig, b: float) -> Part:
    """Cosine and sine of every position in fp32, once for each kind of layer."""
    table = shape.seq_len * shape.head_size
    kinds = {_window(shape, i) for i in range(shape.n_layers)}
    numbers = 2 * shape.seq_len + shape.head_size // 2
    made = Part((traffic(numbers + 10 * table, 4, ids=shape.seq_len, launches=7),))
    made += parts.casts(shape.head_size // 2 + 2 * table, 0, b, launches=3)
    return sum(made for _ in kinds)


def _outside(shape: HuggingFaceConfig, b: float) -> Part:
    """What the model does between its modules: positions, masks; the gradient of the loss is 1."""
    batch_size, seq_len = shape.batch_size, shape.seq_len
    found = Part(backward=(traffic(1, b),))
    if shape.is_encoder:
        return found
    found += Part((traffic(0, b, ids=3 * seq_len, launches=2),))
    n = batch_size * seq_len
    # Are several texts packed into one sequence? Looked up anew for each kind of layer.
    packed = traffic(0, b, ids=5 * n + 2 * batch_size * (seq_len + 1) + 3 * batch_size,
                     masks=2 * n + 2 * batch_size + 2, launches=8, syncs=1)  # fmt: skip
    windows = {_window(shape, i) for i in range(shape.n_layers)}
    found += Part((packed,) * len(windows))
    if any(w is not None and seq_len >= w for w in windows):
        pairs = seq_len**2
        ids, masks = batch_size + 13 * seq_len + 1, 7 * pairs + 2
        found += Part((traffic(0, b, ids=ids, masks=masks, launches=12),))
    if shape.model_type == "gpt2":
        found += parts.added_positions(batch_size, seq_len, shape.hidden_size, b)
    return found
