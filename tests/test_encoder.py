"""The encoder: transformers' numbers, and sub-networks that are the same cut, sliced or masked."""

import json
from pathlib import Path

import pytest
import torch
from encoders import SMALL, random_encoder
from hypothesis import given, settings
from hypothesis import strategies as st
from safetensors.torch import load_file, save_file
from transformers import (
    AutoModel,
    AutoTokenizer,
    BertConfig,
    BertForSequenceClassification,
    BertModel,
    DistilBertConfig,
    DistilBertModel,
)

from lmtime.config import EncoderConfig, SubNetwork, sub_network, whole_network
from lmtime.errors import UsageError
from lmtime.models import checkpoint
from lmtime.models.checkpoint import load_encoder, minilm_folder, save_encoder
from lmtime.models.encoder import Encoder, Masks, cut

SENTENCES = [
    "A fine film, quietly moving and very well acted.",
    "No.",
    "The plot never makes sense, and it goes on and on for what feels like several hours: "
    "by the end even the actors look as if they would rather be somewhere else.",
]

pytestmark = pytest.mark.usefixtures("one_thread")


def batch(config=SMALL, seed=1):
    """Tokens, a mask with padding of different lengths, token types."""
    generator = torch.Generator().manual_seed(seed)
    tokens = torch.randint(config.vocab_size, (4, 11), generator=generator)
    mask = torch.arange(11) < torch.tensor([[11], [1], [6], [10]])
    types = torch.randint(2, (4, 11), generator=generator) if config.n_token_types else None
    return tokens, mask, types


def spread_minilm():
    return load_encoder(minilm_folder()), tokenised(minilm_folder())


def tokenised(folder):
    """Token ids, mask and types of SENTENCES."""
    found = AutoTokenizer.from_pretrained(folder)(SENTENCES, padding=True, return_tensors="pt")
    return found["input_ids"], found["attention_mask"], found["token_type_ids"]


# The same numbers as transformers


def test_minilm_equals_transformers_on_sentences():
    encoder, (tokens, mask, types) = spread_minilm()
    theirs = AutoModel.from_pretrained(minilm_folder()).eval()
    with torch.no_grad():
        ours = torch.stack(list(encoder.hidden_states(tokens, mask, types)))
        out = theirs(tokens, mask, types, output_hidden_states=True)
    real = mask.bool()
    assert (ours - torch.stack(out.hidden_states))[:, real].abs().max() <= 1e-5
    pooled = torch.tanh(encoder.pooler(ours[-1][:, 0]))
    assert (pooled - out.pooler_output).abs().max() <= 1e-5


def bert(tmp_path, kind):
    torch.manual_seed(0)
    names = {"vocab_size": 50, "max_position_embeddings": 16}
    if kind == "distilbert":
        config = DistilBertConfig(dim=12, n_layers=3, n_heads=4, hidden_dim=17, **names)
        model = DistilBertModel(config)
    else:
        sizes = {"hidden_size": 12, "num_hidden_layers": 3, "num_attention_heads": 4}
        config = BertConfig(**sizes, intermediate_size=17, num_labels=3, **names)
        model = {"bert": BertModel, "classifier": BertForSequenceClassification}[kind](config)
    with torch.no_grad():
        for value in model.parameters():
            value.normal_(std=0.4)
    model.eval().save_pretrained(tmp_path)
    return model


@pytest.mark.parametrize("kind", ["bert", "distilbert"])
def test_any_checkpoint_of_transformers_gives_the_same_states(tmp_path, kind):
    theirs = bert(tmp_path, kind)
    encoder = load_encoder(tmp_path)
    tokens, mask, types = batch(encoder.config)
    given_types = {} if types is None else {"token_type_ids": types}
    with torch.no_grad():
        *_, ours = encoder.hidden_states(tokens, mask, types)
        out = theirs(tokens, attention_mask=mask.long(), **given_types).last_hidden_state
    assert (ours - out)[mask].abs().max() <= 1e-5


def test_a_classifier_is_read_where_the_folder_has_one(tmp_path):
    theirs = bert(tmp_path, "classifier")
    tokens, mask, types = batch()
    with torch.no_grad():
        logits = theirs(tokens, mask.long(), types).logits
        assert (load_encoder(tmp_path)(tokens, mask, types) - logits).abs().max() <= 1e-5
    other = load_encoder(tmp_path, n_classes=2)
    assert other.classifier.weight.shape == (2, 12)
    assert torch.equal(
        other.classifier.weight, load_encoder(tmp_path, n_classes=2).classifier.weight
    )


# Sub-networks

SUB = SubNetwork((0, 2), (3, 1), (10, 20))


def masked_twin(encoder, sub):
    """The whole network with zeros for all that the sub-network leaves out of its layers."""
    heads = [torch.zeros(n, dtype=torch.float64) for n in encoder.config.heads]
    neurons = [torch.zeros(n, dtype=torch.float64) for n in encoder.config.ffn_sizes]
    for i, n_heads, ffn in zip(sub.layers, sub.heads, sub.ffn_sizes, strict=True):
        heads[i][:n_heads] = 1
        neurons[i][:ffn] = 1
    config = encoder.config
    wide = SubNetwork(
        sub.layers,
        tuple(config.heads[i] for i in sub.layers),
        tuple(config.ffn_sizes[i] for i in sub.layers),
    )
    return wide, Masks(heads, neurons)


@st.composite
def sub_networks(draw, config=SMALL):
    layers = draw(st.sets(st.integers(0, config.n_layers - 1), min_size=1).map(sorted))
    heads = tuple(draw(st.integers(1, config.heads[i])) for i in layers)
    ffn_sizes = tuple(draw(st.integers(1, config.ffn_sizes[i])) for i in layers)
    return SubNetwork(tuple(layers), heads, ffn_sizes)


@torch.no_grad()
def assert_the_same(encoder, sub, inputs, tolerance):
    sliced = encoder(*inputs, sub=sub)
    small = cut(encoder, sub)
    assert (small(*inputs) - sliced).abs().max() <= tolerance
    wide, masks = masked_twin(encoder, sub)
    cast = Masks(*([m.to(sliced) for m in part] for part in (masks.heads, masks.neurons)))
    assert (encoder(*inputs, sub=wide, masks=cast) - sliced).abs().max() <= tolerance
    return small


@settings(max_examples=25, deadline=None)
@given(sub=sub_networks(), seed=st.integers(0, 99))
def test_cut_sliced_and_masked_are_the_same_with_random_weights(sub, seed):
    assert_the_same(random_encoder(seed=seed), sub, batch(), 1e-12)


@pytest.mark.parametrize("width", [1, 0.75, 0.5, 0.25])
@pytest.mark.parametrize("depth", [1, 5 / 6, 2 / 3, 0.5])
def test_cut_sliced_and_masked_are_the_same_with_real_weights(width, depth):
    encoder, inputs = spread_minilm()
    sub = sub_network(encoder.config, width, depth)
    small = assert_the_same(encoder, sub, inputs, 1e-6)
    n = sum(p.numel() for name, p in small.named_parameters() if "classifier" not in name)
    assert n == sub.config(encoder.config).parameters


def test_a_sub_network_differs_from_the_whole_one():
    encoder, inputs = random_encoder(), batch()
    assert (encoder(*inputs, sub=SUB) - encoder(*inputs)).abs().max() > 0.01


def test_eight_heads_of_bert_keep_their_width():
    """fastformers issue 12: hidden / heads gives 96 where a head has 64 dimensions."""
    config = EncoderConfig(heads=(12,), ffn_sizes=(3072,), vocab_size=100)
    layer = cut(Encoder(config), SubNetwork((0,), (8,), (3072,))).layers[0]
    for linear in (layer.query, layer.key, layer.value):
        assert linear.weight.shape == (512, 768)
    assert layer.attention_output.weight.shape == (768, 512)
    assert layer.head_size == 64


def test_nothing_relies_on_what_transformers_took_out():
    """Case no-prune-heads: version 5 prunes no heads and takes no head masks."""
    package = Path(checkpoint.__file__).parents[1]
    texts = [path.read_text(encoding="utf-8") for path in package.rglob("*.py")]
    assert not any("prune_heads" in text or "head_mask=" in text for text in texts)


def test_padding_changes_nothing():
    encoder = random_encoder()
    tokens, mask, types = batch()
    alone = encoder(tokens[2:3, :6], None, types[2:3, :6])
    assert (encoder(tokens, mask, types)[2] - alone[0]).abs().max() <= 1e-12


def test_the_cut_network_owns_its_weights():
    encoder = random_encoder()
    small = cut(encoder, SUB)
    before = [value.clone() for value in small.parameters()]
    with torch.no_grad():
        for value in encoder.parameters():
            value.zero_()
    assert all(map(torch.equal, before, small.parameters()))


# Folders


def test_a_saved_network_is_read_as_it_was(tmp_path):
    small = cut(random_encoder(), SUB).float()
    save_encoder(small, tmp_path / "small")
    again = load_encoder(tmp_path / "small")
    assert again.config == small.config
    assert torch.equal(again(*batch()), small(*batch()))
    assert sorted(p.name for p in (tmp_path / "small").iterdir()) == [
        "config.json",
        "model.safetensors",
    ]


def damaged(folder: Path) -> None:
    (folder / "model.safetensors").write_bytes(b"\xff" * 100)


def truncated(folder: Path) -> None:
    path = folder / "model.safetensors"
    path.write_bytes(path.read_bytes()[:-10])


def pickled(folder: Path) -> None:
    (folder / "model.safetensors").rename(folder / "pytorch_model.bin")


def without_a_tensor(folder: Path) -> None:
    tensors = load_file(folder / "model.safetensors")
    del tensors["layers.1.key.weight"]
    save_file(tensors, folder / "model.safetensors")


def settings_of(**changes):
    def change(folder: Path) -> None:
        path = folder / "config.json"
        path.write_text(json.dumps(json.loads(path.read_text()) | changes))

    return change


@pytest.mark.parametrize(
    ("harm", "says"),
    [
        (damaged, "damaged"),
        (truncated, "damaged"),
        (lambda folder: (folder / "model.safetensors").write_bytes(b""), "damaged"),
        (pickled, "pytorch_model.bin is pickled and never read"),
        (without_a_tensor, r"lacks layers\.1\.key\.weight"),
        (lambda folder: (folder / "config.json").unlink(), "is no checkpoint"),
        (lambda folder: (folder / "config.json").write_text("{"), "not JSON"),
        (settings_of(model_type="gpt2"), "model_type 'gpt2'"),
        (settings_of(heads=[4, 3, 1]), "asks for"),
        (settings_of(heads="abc"), "describes no encoder"),
    ],
)
def test_a_folder_that_cannot_be_read_is_told(tmp_path, harm, says):
    save_encoder(random_encoder(dtype=torch.float32), tmp_path)
    harm(tmp_path)
    with pytest.raises(UsageError, match=says):
        load_encoder(tmp_path)


def test_names_of_tensorflow_and_sixteen_bits_are_read(tmp_path):
    bert(tmp_path, "bert")
    wanted = load_encoder(tmp_path)
    tensors = load_file(tmp_path / "model.safetensors")
    old = {n.replace("Norm.weight", "Norm.gamma").replace("Norm.bias", "Norm.beta"): t.half()
           for n, t in tensors.items()}  # fmt: skip
    save_file(old, tmp_path / "model.safetensors")
    found = load_encoder(tmp_path)
    assert found.norm.weight.dtype == torch.float32
    assert (found.norm.weight - wanted.norm.weight).abs().max() < 1e-2


def test_a_classifier_behind_a_layer_of_its_own_is_left_out(tmp_path):
    """DistilBERT's: read alone, it would give wrong logits without a word."""
    bert(tmp_path, "distilbert")
    tensors = load_file(tmp_path / "model.safetensors")
    tensors = {f"distilbert.{n}": t for n, t in tensors.items()}
    tensors |= {"pre_classifier.weight": torch.ones(12, 12), "pre_classifier.bias": torch.ones(12)}
    tensors |= {"classifier.weight": torch.ones(2, 12), "classifier.bias": torch.ones(2)}
    save_file(tensors, tmp_path / "model.safetensors")
    assert (load_encoder(tmp_path).classifier.bias == 0).all()


def test_other_encoders_of_transformers_are_refused(tmp_path):
    bert(tmp_path, "bert")
    settings_of(hidden_act="relu")(tmp_path)
    with pytest.raises(UsageError, match="relu activation"):
        load_encoder(tmp_path)


def test_a_folder_that_is_not_there_is_told(tmp_path):
    with pytest.raises(UsageError, match="is no checkpoint"):
        load_encoder(tmp_path / "nowhere")


def test_the_whole_network_is_its_own_sub_network():
    encoder = random_encoder()
    assert torch.equal(encoder(*batch(), sub=whole_network(SMALL)), encoder(*batch()))
    assert cut(encoder, whole_network(SMALL)).config == SMALL
