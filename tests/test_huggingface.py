"""Laws of the models that are built from a configuration of Hugging Face."""

import math

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from lmtime.config import huggingface_config
from lmtime.errors import UsageError
from lmtime.models.huggingface import HuggingFaceModel
from lmtime.timing import OUTSIDE, Ownership
from lmtime.timing.counters import count

pytestmark = pytest.mark.usefixtures("one_thread")

SIZES = dict(hidden_size=32, num_hidden_layers=2, num_attention_heads=4, intermediate_size=48,
             vocab_size=101, max_position_embeddings=64, pad_token_id=0)  # fmt: skip
GROUPS = dict(num_key_value_heads=2, head_dim=8)
GPT2 = dict(model_type="gpt2", n_embd=32, n_layer=2, n_head=4, n_positions=64, vocab_size=101)
CAUSAL = {
    "gpt2": GPT2,
    "llama": SIZES | GROUPS,
    "mistral": SIZES | GROUPS | {"sliding_window": 6},
    "gemma2": SIZES | GROUPS,
    "gpt_neox": SIZES,
    "bloom": dict(hidden_size=32, n_layer=2, n_head=4, vocab_size=101),
    "mixtral": SIZES | GROUPS | {"num_local_experts": 3},
    "mamba": dict(hidden_size=32, num_hidden_layers=2, vocab_size=101, state_size=4),
}
ENCODERS = {
    "bert": SIZES,
    "distilbert": dict(dim=32, n_layers=2, n_heads=4, hidden_dim=48, vocab_size=101),
    "roberta": SIZES,
    "electra": SIZES | {"embedding_size": 16},
    "modernbert": SIZES,
}
ALL = CAUSAL | ENCODERS


def model_of(model_type, **changes):
    config = huggingface_config(
        ALL[model_type] | {"model_type": model_type} | changes, batch_size=2, seq_len=11
    )
    torch.manual_seed(3)
    return HuggingFaceModel(config)


def batch(seed=1):
    ids = torch.randint(1, 101, (2, 2, 11), generator=torch.Generator().manual_seed(seed))
    return ids[0], ids[1]


@pytest.mark.parametrize("name", ALL)
def test_owners_name_modules_and_nothing_is_left_outside(name):
    model = model_of(name)
    assert set(model.owners) <= {n for n, _ in model.named_modules()}
    ownership = Ownership(model, model.owners)
    owned = {n: ownership.owner_of_parameter(p) for n, p in model.named_parameters()}
    usual = {"embedding", "layer 1", "layer 2", "final norm", "output layer"}
    assert {"embedding", "layer 1", "layer 2"} <= set(owned.values()) <= usual
    found = count(lambda: model(*batch()).backward(), ownership)
    assert not found.uncounted
    for phase in ("forward", "backward"):
        assert found.by_owner["loss", phase].bytes > 0
        assert found.by_owner["output layer", phase].flops > 0
        assert found.by_owner[OUTSIDE, phase].flops == 0


@pytest.mark.parametrize("name", ALL)
def test_loss_is_the_mean_over_all_positions_against_targets_as_given(name):
    model, (tokens, targets) = model_of(name), batch()
    loss = model(tokens, targets)
    logits = model.network(input_ids=tokens).logits
    assert logits.shape == (2, 11, 101)
    torch.testing.assert_close(loss, F.cross_entropy(logits.transpose(1, 2), targets))
    assert abs(loss.item() - math.log(101)) < 3  # random weights know next to nothing


@pytest.mark.parametrize("name", ALL)
def test_causal_models_see_no_later_token_and_encoders_see_all(name):
    model, (tokens, _) = model_of(name), batch()
    other = tokens.clone()
    other[:, 6] = 101 - other[:, 6]
    with torch.no_grad():
        logits = [model.network(input_ids=ids).logits[:, :6] for ids in (tokens, other)]
    same = torch.allclose(*logits, rtol=0, atol=1e-6)
    assert same == (name in CAUSAL) == (not model.config.is_encoder)


@pytest.mark.parametrize("name", ["gpt2", "bert", "llama"])
def test_attention_is_fused_although_the_configuration_asks_for_dropout(name):
    model = model_of(name, attention_dropout=0.3)
    assert model.training
    found = count(lambda: model(*batch()).backward(), Ownership(model, model.owners))
    fused = [n for n in found.by_operator if "scaled_dot_product" in n]
    assert len(fused) == 2  # forward and backward
    assert not any("dropout" in n or "bernoulli" in n for n in found.by_operator)
    torch.testing.assert_close(model(*batch()), model(*batch()), rtol=0, atol=0)


@pytest.mark.parametrize("name", ALL)
def test_the_seed_alone_fixes_the_weights(name):
    one, other = model_of(name).state_dict(), model_of(name).state_dict()
    assert all(torch.equal(one[key], other[key]) for key in one)
    assert all(tensor.isfinite().all() for tensor in one.values())


def test_weights_are_drawn_as_transformers_draws_them():
    """Torch's own initialisation is skipped, that of the model is not."""
    network = model_of("gpt2", n_embd=64).network
    assert network.transformer.wte.weight.std().item() == pytest.approx(0.02, rel=0.1)
    assert network.transformer.h[0].attn.c_attn.weight.std().item() == pytest.approx(0.02, rel=0.1)
    norms = [m for m in network.modules() if isinstance(m, nn.LayerNorm)]
    assert len(norms) == 5
    assert all((m.weight == 1).all() and (m.bias == 0).all() for m in norms)


@pytest.mark.parametrize("tied", [True, False])
def test_words_are_shared_as_the_configuration_says(tied):
    network = model_of("llama", tie_word_embeddings=tied).network
    assert (network.lm_head.weight is network.model.embed_tokens.weight) == tied


def test_values_are_fp32_and_scores_too_in_16_bits():
    model = model_of("llama", torch_dtype="bfloat16", dtype="bfloat16")
    assert {p.dtype for p in model.parameters()} == {torch.float32}
    with torch.autocast("cpu", dtype=torch.bfloat16):
        assert model(*batch()).dtype == torch.float32


def test_the_longest_sequence_of_a_model_can_be_run():
    """Positions of RoBERTa start behind the padding token's: 514 rows hold 512 of them."""
    settings = SIZES | {"model_type": "roberta", "pad_token_id": 1, "max_position_embeddings": 514}
    config = huggingface_config(settings)
    assert (config.seq_len, config.max_len) == (512, 512)
    tokens = torch.full((1, 512), 7)
    assert HuggingFaceModel(config)(tokens, tokens).isfinite()
    with pytest.raises(UsageError, match="more than the 512 positions"):
        config.changed(seq_len=513)


def test_a_type_that_transformers_does_not_know_is_named():
    with pytest.raises(UsageError, match="does not know the model type 'gpt9'"):
        HuggingFaceModel(huggingface_config(GPT2 | {"model_type": "gpt9"}))


@pytest.mark.parametrize(
    "changes", [{"n_head": 5}, {"activation_function": "none such"}, {"model_type": "vit"}]
)
def test_settings_that_build_no_model_are_refused_in_one_sentence(changes):
    with pytest.raises(UsageError, match=r"transformers builds no .* from these settings") as e:
        HuggingFaceModel(huggingface_config(GPT2 | changes))
    assert "\n" not in str(e.value)
