"""Predicted work of known families against what torch executes, to the last digit."""

import pytest
import torch
from counting import counted_training

from lmtime.config import PRESETS, HuggingFaceConfig, huggingface_config
from lmtime.cost.huggingface import (
    forward_flops,
    huggingface,
    is_known,
    parameters,
    visible_pairs,
    weights,
)
from lmtime.models.huggingface import HuggingFaceModel
from lmtime.timing import Ownership

pytestmark = pytest.mark.usefixtures("one_thread")

GATED = dict(hidden_size=20, num_hidden_layers=3, intermediate_size=23, num_attention_heads=4,
             num_key_value_heads=2, head_dim=6, vocab_size=103)  # fmt: skip
ENCODER = dict(vocab_size=103, max_position_embeddings=40)
FAMILIES = {
    "gpt2": dict(model_type="gpt2", n_embd=20, n_layer=2, n_head=5, n_positions=32, vocab_size=103),
    "llama": dict(model_type="llama", **GATED),
    "qwen2": dict(model_type="qwen2", **GATED),
    "qwen3": dict(model_type="qwen3", **GATED),
    "gemma3": dict(
        model_type="gemma3_text", **GATED, sliding_window=7, sliding_window_pattern=2
    ),
    "bert": dict(model_type="bert", hidden_size=20, num_hidden_layers=2, num_attention_heads=5,
                 intermediate_size=27, **ENCODER),
    "distilbert": dict(model_type="distilbert", dim=20, n_layers=2, n_heads=5, hidden_dim=27,
                       **ENCODER),
}  # fmt: skip
VARIANTS = {
    "gpt2, untied": FAMILIES["gpt2"] | {"tie_word_embeddings": False, "n_inner": 33},
    "llama, biases": FAMILIES["llama"]
    | {"tie_word_embeddings": True, "attention_bias": True, "mlp_bias": True},
    "llama, no groups": FAMILIES["llama"] | {"num_key_value_heads": 4},
    "qwen2, tied": FAMILIES["qwen2"] | {"tie_word_embeddings": True},
    "gemma3, one head of keys": FAMILIES["gemma3"] | {"num_key_value_heads": 1},
    "gemma3, no groups": FAMILIES["gemma3"] | {"num_key_value_heads": 4},
    "bert, three types": FAMILIES["bert"] | {"type_vocab_size": 3},
}
STEPS = [(3, 11), (1, 11), (2, 7), (2, 6), (2, 1)]  # around the window of 7
every_step = pytest.mark.parametrize(
    "settings, batch_size, seq_len",
    [pytest.param(s, *step, id=f"{name} {step}")
     for name, s in (FAMILIES | VARIANTS).items() for step in STEPS],
)  # fmt: skip
HF_PRESETS = [name for name, c in PRESETS.items() if isinstance(c, HuggingFaceConfig)]


def counted(config):
    model = HuggingFaceModel(config)
    optimizer = torch.optim.AdamW(model.parameters())
    tokens, targets = torch.randint(config.vocab_size, (2, config.batch_size, config.seq_len))
    return counted_training(model, optimizer, tokens, targets)


def parameter_counts(config):
    """One for each tensor of weights."""
    return [len(sizes) for sizes in weights(config).values()]


def totals(rows, name):
    return {part: sum(getattr(c, name) for c in costs) for part, costs in rows.items()}


@every_step
def test_predicted_work_is_the_executed_one(settings, batch_size, seq_len):
    config = huggingface_config(settings, batch_size=batch_size, seq_len=seq_len)
    assert is_known(config)
    counts, rows = counted(config), huggingface(config)
    found = counts.by_owner
    assert totals(rows, "flops") == {part: work.flops for part, work in found.items()}
    assert totals(rows, "bytes") == {part: work.bytes for part, work in found.items()}
    assert sum(totals(rows, "launches").values()) == sum(counts.by_operator.values())
    # Every scalar that is read makes the host wait, but for the optimizer's counts of steps.
    scalars = counts.by_operator["aten._local_scalar_dense"] - sum(parameter_counts(config))
    assert sum(totals(rows, "syncs").values()) == scalars
    visible = totals(huggingface(config, visible=True), "flops")
    assert visible == {part: work.useful_flops for part, work in found.items()}


def owned(model):
    ownership, found = Ownership(model, model.owners), {}
    for parameter in model.parameters():
        owner = ownership.owner_of_parameter(parameter)
        found[owner] = found.get(owner, 0) + parameter.numel()
    return found


@pytest.mark.parametrize("name", HF_PRESETS)
def test_parameters_of_presets_are_the_models(name):
    with torch.device("meta"):
        model = HuggingFaceModel(PRESETS[name])
    assert is_known(PRESETS[name])
    assert parameters(PRESETS[name]) == owned(model)


@pytest.mark.parametrize("settings", VARIANTS.values(), ids=VARIANTS)
def test_parameters_of_variants_are_the_models(settings):
    config = huggingface_config(settings, seq_len=5)
    with torch.device("meta"):
        assert parameters(config) == owned(HuggingFaceModel(config))


# Percent of the forward pass, at 1,024 tokens, of the pairs that no mask removes; then of all.
HEAD_SHARES = {
    "gpt2": (29.0, 27.1),
    "gpt2-medium": (13.6, 12.7),
    "gpt2-large": (7.9, 7.4),
    "gpt2-xl": (4.9, 4.7),
    "smollm2-135m": (18.6, 16.7),
    "llama-3.2-1b": (20.7, 20.2),
    "gemma-3-270m": (59.3, 54.9),
    "gemma-3-1b": (29.6, 28.6),
    "qwen2.5-0.5b": (26.4, 25.3),
    "qwen3-0.6b": (23.8, 21.8),
}


@pytest.mark.parametrize("name", HEAD_SHARES)
def test_the_share_of_the_head_in_both_conventions(name):
    config = PRESETS[name].changed(seq_len=1024)
    for visible, share in zip((True, False), HEAD_SHARES[name], strict=True):
        flops = forward_flops(config, visible=visible)
        assert 100 * flops["output layer"] / sum(flops.values()) == pytest.approx(share, abs=0.1)


@pytest.mark.parametrize("window", [None, 1, 3, 8, 9, 50])
def test_visible_pairs_are_those_under_the_mask(window):
    for n in (1, 2, 8, 13):
        pairs = sum(0 <= q - k < (window or n) for q in range(n) for k in range(n))
        assert visible_pairs(n, window) == pairs


def test_a_tied_head_costs_a_product_and_no_weights():
    """Case 11: 1,000 words, 128 wide, 128 tokens."""
    config = huggingface_config(
        FAMILIES["gpt2"] | {"n_embd": 128, "n_head": 4, "n_positions": 128, "vocab_size": 1000},
        seq_len=128,
    )
    assert forward_flops(config, visible=True)["output layer"] == 32_768_000
    assert "output layer" not in parameters(config)


@pytest.mark.parametrize(
    "changes",
    [{"model_type": "mistral"}, {"hidden_act": "relu"}, {"use_sliding_window": True},
     {"head_dim": None}, {"rope_parameters": {"rope_type": "dynamic"}},
     {"architectures": ["Qwen3ForMaskedLM"]}],
)  # fmt: skip
def test_what_is_computed_otherwise_is_not_predicted(changes):
    assert not is_known(huggingface_config(FAMILIES["qwen3"] | changes))
