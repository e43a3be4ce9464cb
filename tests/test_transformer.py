"""Laws of the Transformer: causality, tied words, plain references in float64, learning."""

import copy
import math

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from lmtime.config import PRESETS, AdaptiveSoftmaxConfig, TransformerConfig
from lmtime.errors import UsageError
from lmtime.models import nesterov
from lmtime.models.transformer import AdaptiveInput, Attention, Positions, Transformer
from lmtime.softmax import TorchAdaptiveSoftmax, band_shapes
from lmtime.timing import OUTSIDE, Ownership

SHAPE = dict(
    hidden_size=15,
    ffn_size=22,
    n_heads=3,
    n_layers=2,
    vocab_size=31,
    cutoffs=(5, 12),
    div_value=1.7,
    batch_size=2,
    seq_len=11,
)
CONFIGS = {
    "tied": TransformerConfig(**SHAPE),
    "full": TransformerConfig(**SHAPE | {"output_layer": "full"}),
    "one layer, one head, one tail": TransformerConfig(
        **SHAPE | {"n_layers": 1, "n_heads": 1, "cutoffs": (25,)}
    ),
    "as many heads as the width": TransformerConfig(**SHAPE | {"n_heads": 15, "div_value": 1.0}),
    "wider tails, one word before": TransformerConfig(
        **SHAPE | {"hidden_size": 6, "div_value": 0.5, "cutoffs": (1, 3, 29)}
    ),
}
TIED = [name for name, config in CONFIGS.items() if config.ties_words]
every_config = pytest.mark.parametrize("name", CONFIGS)
every_tied = pytest.mark.parametrize("name", TIED)

pytestmark = pytest.mark.usefixtures("one_thread")


def make(name, seed=0):
    torch.manual_seed(seed)
    return Transformer(CONFIGS[name]).double()


def batch(config, seed=1):
    """Tokens and targets; both meet the first word of every band, and the last of all."""
    generator = torch.Generator().manual_seed(seed)
    ids = torch.randint(config.vocab_size, (2, config.n_tokens), generator=generator)
    edges = torch.tensor([0, *config.cutoffs, config.vocab_size - 1])
    for row in ids:
        row[torch.randperm(len(row), generator=generator)[: len(edges)]] = edges
    return ids.reshape(2, config.batch_size, config.seq_len)


def assert_same(found, wanted):
    torch.testing.assert_close(found, wanted, rtol=1e-9, atol=1e-11)


# What a position sees


@every_config
def test_a_token_changes_its_own_state_and_all_later_ones_and_no_earlier_one(name):
    model, (tokens, _) = make(name), batch(CONFIGS[name])
    for position in range(model.config.seq_len):
        other = tokens.clone()
        other[:, position] = (other[:, position] + 1) % model.config.vocab_size
        with torch.no_grad():
            difference = (model.hidden(tokens) - model.hidden(other)).abs().amax(-1)
        changed = difference > 1e-12  # another band has one more row: products round differently
        assert changed.tolist() == [[i >= position for i in range(model.config.seq_len)]] * 2


@every_config
def test_sequences_do_not_see_each_other_and_may_be_shorter(name):
    model, (tokens, _) = make(name), batch(CONFIGS[name])
    alone = torch.cat([model.hidden(tokens[i : i + 1, :7]) for i in range(len(tokens))])
    assert_same(model.hidden(tokens)[:, :7], alone)


def test_the_same_word_differs_by_its_position():
    """Without positions a causal average over equal words would be the same everywhere."""
    hidden = make("tied").hidden(torch.full((1, 11), 3))
    assert len(hidden[0].unique(dim=0)) == 11


# Plain references


def plain_attention(attention, hidden):
    """Query by query, head by head: (seq_len, hidden_size) of one sequence."""
    d, n_heads = hidden.shape[1], attention.n_heads
    width = d // n_heads
    weights = zip(attention.qkv.weight.split(d), attention.qkv.bias.split(d), strict=True)
    query, key, value = (hidden @ weight.T + bias for weight, bias in weights)
    mixed = torch.zeros_like(hidden)
    for head in range(n_heads):
        own = slice(head * width, (head + 1) * width)
        for i in range(len(hidden)):
            scores = key[: i + 1, own] @ query[i, own] / math.sqrt(width)
            mixed[i, own] = scores.softmax(0) @ value[: i + 1, own]
    return mixed @ attention.out.weight.T + attention.out.bias


def plain_input(words, tokens):
    """Token by token: (seq_len, hidden_size) of one sequence."""
    rows = []
    for token in tokens.tolist():
        band = sum(token >= end for end in words.ends)
        vectors, projection = words.bands[band]
        rows.append(projection.weight @ vectors.weight[token - ([0, *words.ends])[band]])
    return torch.stack(rows)


def plain_norm(norm, hidden):
    centred = hidden - hidden.mean(-1, keepdim=True)
    deviation = (centred.square().mean(-1, keepdim=True) + norm.eps).sqrt()
    return centred / deviation * norm.weight + norm.bias


def plain_hidden(model, tokens):
    """(seq_len,) -> (seq_len, hidden_size), in the paper's words."""
    words, positions = model.embedding
    hidden = plain_input(words, tokens) * math.sqrt(words.hidden_size)
    hidden = hidden + positions.waves[: len(tokens)]
    for layer in model.layers:
        hidden = hidden + plain_attention(layer.attention, plain_norm(layer.attention_norm, hidden))
        rise, _, fall = layer.ffn
        inner = (plain_norm(layer.ffn_norm, hidden) @ rise.weight.T + rise.bias).clamp(min=0)
        hidden = hidden + inner @ fall.weight.T + fall.bias
    return hidden


@every_config
def test_states_are_those_of_the_model_written_out(name):
    model, (tokens, _) = disturbed(make(name)), batch(CONFIGS[name])
    wanted = torch.stack([plain_hidden(model, row) for row in tokens])
    assert_same(model.hidden(tokens), wanted)


def disturbed(model):
    """Biases and norms away from 0 and 1, so that one left out is seen."""
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(0.1 * torch.randn_like(parameter))
    return model


@pytest.mark.parametrize("n_heads", [1, 3, 15])
def test_attention_and_its_gradients_are_those_of_a_loop_over_heads_and_queries(n_heads):
    torch.manual_seed(2)
    attention = disturbed(Attention(15, n_heads).double())
    hidden = torch.randn(2, 7, 15, dtype=torch.float64, requires_grad=True)
    wanted = torch.stack([plain_attention(attention, row) for row in hidden])
    found, weights = attention(hidden), torch.randn(2, 7, 15, dtype=torch.float64)
    assert_same(found, wanted)
    inputs = [hidden, *attention.parameters()]
    gradients = [torch.autograd.grad((y * weights).sum(), inputs) for y in (found, wanted)]
    assert_same(*gradients)


@pytest.mark.parametrize(
    "tokens",
    [[0, 4, 5, 11, 12, 30], [30], [7, 7, 7], [0, 30, 1, 29], []],
    ids=["edges", "the last word alone", "the middle band alone", "no middle band", "no tokens"],
)
def test_adaptive_input_is_a_table_looked_up_token_by_token(tokens):
    """Also where a band, or all of them, is empty."""
    words = AdaptiveInput(CONFIGS["tied"].adaptive).double()
    tokens = torch.tensor(tokens, dtype=torch.int64)
    wanted = plain_input(words, tokens) if len(tokens) else torch.zeros(0, 15).double()
    assert_same(words(tokens[None])[0], wanted)


@pytest.mark.parametrize("hidden_size", [1, 2, 3, 8, 15])
def test_positions_are_waves_from_1_to_a_ten_thousandth(hidden_size):
    waves = Positions(50, hidden_size)(torch.zeros(1, 50, hidden_size))[0]
    half = hidden_size // 2
    for i in range(half):
        frequency = 10_000 ** (-i / max(half - 1, 1))
        for position in (0, 1, 49):
            angle = torch.tensor(position * frequency)
            torch.testing.assert_close(waves[position, i], angle.sin())
            torch.testing.assert_close(waves[position, half + i], angle.cos())
    assert (waves[:, 2 * half :] == 0).all()


def test_words_are_scaled_by_the_root_of_the_width():
    hidden = torch.randn(2, 4, 9)
    positions = Positions(4, 9)
    torch.testing.assert_close(positions(hidden) - positions.waves, 3 * hidden)


# Tied words


@every_tied
def test_input_and_output_share_the_vectors_of_the_words_and_no_projection(name):
    model = make(name)
    inputs, layer = model.embedding[0].bands, model.output_layer.layer
    outputs = [layer.head.short_list.words, *(out.words for _, out in layer.tail)]
    assert all(a[0].weight is b for a, b in zip(inputs, outputs, strict=True))
    own = [layer.head.tails, *(down for down, _ in layer.tail)]
    assert not {p.weight.data_ptr() for _, p in inputs} & {p.weight.data_ptr() for p in own}
    assert [tuple(words.shape) for words in outputs] == band_shapes(model.config.adaptive)


@every_tied
def test_the_gradient_of_tied_words_is_the_sum_of_both_uses(name):
    """Against a twin whose output layer has copies of the same weights in torch's own layer."""
    model, (tokens, targets) = make(name), batch(CONFIGS[name])
    twin = copy.deepcopy(model)
    twin.output_layer = untied(model)
    losses = [m(tokens, targets) for m in (model, twin)]
    assert_same(*losses)
    for loss in losses:
        loss.backward()
    outputs = output_words(twin)
    short_list = model.config.cutoffs[0]
    n_words = [short_list, *(len(o) for o in outputs[1:])]
    for tied, one, other, n in zip(
        model.embedding[0].words, twin.embedding[0].words, outputs, n_words, strict=True
    ):
        assert one.grad.any() and other.grad[:n].any(), "the case must use both"
        assert_same(tied.grad, one.grad + other.grad[:n])
    assert_same(model.output_layer.layer.head.tails.weight.grad, outputs[0].grad[short_list:])
    for (down, _), (twin_down, _) in zip(
        model.output_layer.layer.tail, twin.output_layer.layer.tail, strict=True
    ):
        assert_same(down.weight.grad, twin_down.weight.grad)


def output_words(untied_model):
    layer = untied_model.output_layer.layer
    return [layer.head.weight, *(out.weight for _, out in layer.tail)]


def untied(model):
    """torch's adaptive softmax with copies of a tied one's weights."""
    twin, tied = TorchAdaptiveSoftmax(model.config.adaptive).double(), model.output_layer.layer
    with torch.no_grad():
        rows = [tied.head.short_list.words, tied.head.tails.weight]
        twin.layer.head.weight.copy_(torch.cat(rows))
        for (down, out), (tied_down, tied_out) in zip(twin.layer.tail, tied.tail, strict=True):
            down.weight.copy_(tied_down.weight)
            out.weight.copy_(tied_out.words)
    return twin


@every_tied
def test_tied_probabilities_are_those_of_torchs_layer_with_the_same_weights(name):
    model = make(name)
    hidden = torch.randn(3, 4, model.config.hidden_size, dtype=torch.float64)
    assert_same(model.output_layer.log_prob(hidden), untied(model).log_prob(hidden))
    total = model.output_layer.log_prob(hidden).logsumexp(-1)
    assert_same(total, torch.zeros_like(total))
    assert torch.equal(model.output_layer.predict(hidden), untied(model).predict(hidden))


def test_words_that_only_targets_meet_learn_from_the_output_alone():
    """And those that nothing meets do not learn; their band is left out."""
    model = make("tied")
    tokens, targets = torch.tensor([[0, 1, 4]]), torch.tensor([[3, 12, 30]])
    model(tokens, targets).backward()
    short_list, middle, rare = (words.grad for words in model.embedding[0].words)
    assert short_list.any() and middle is None and rare.any(dim=1).all()
    twin = copy.deepcopy(model)
    twin.output_layer = untied(model)
    twin.zero_grad()
    twin(tokens, targets).backward()
    assert_same(rare, output_words(twin)[2].grad)
    assert twin.embedding[0].words[2].grad is None


def test_a_tie_survives_a_copy_and_a_change_of_precision():
    model = copy.deepcopy(make("tied")).float().to(torch.bfloat16)
    words = model.output_layer.layer.head.short_list.words
    assert words is model.embedding[0].words[0] and words.dtype == torch.bfloat16


def test_words_of_other_shapes_cannot_be_tied():
    config = AdaptiveSoftmaxConfig(8, 20, (5, 10), 2.0)
    words = [nn.Parameter(torch.zeros(shape)) for shape in band_shapes(config)]
    TorchAdaptiveSoftmax(config, words=words)
    for wrong in (words[:2], words[::-1], []):
        with pytest.raises(UsageError, match=r"must be \[\(5, 8\), \(5, 4\), \(10, 2\)\]"):
            TorchAdaptiveSoftmax(config, words=wrong)


def test_nothing_is_tied_to_a_full_softmax():
    model = make("full")
    assert model.output_layer.head.weight.shape == (31, 15)
    assert sum(p.numel() for p in model.output_layer.parameters()) == 31 * 15
    owned = {id(p) for p in model.output_layer.parameters()}
    assert not owned & {id(p) for p in model.embedding.parameters()}


# The loss


@every_config
def test_loss_is_one_number_the_mean_over_all_tokens(name):
    model, (tokens, targets) = make(name), batch(CONFIGS[name])
    loss = model(tokens, targets)
    assert loss.shape == ()
    log_prob = model.output_layer.log_prob(model.hidden(tokens))
    assert_same(loss, F.nll_loss(log_prob.flatten(0, 1), targets.flatten()))


@every_config
def test_every_parameter_gets_a_gradient(name):
    model, (tokens, targets) = make(name), batch(CONFIGS[name])
    model(tokens, targets).backward()
    without = [n for n, p in model.named_parameters() if p.grad is None or not p.grad.any()]
    assert without == []


@every_config
def test_training_lowers_the_loss(name):
    model, (tokens, targets) = make(name), batch(CONFIGS[name])
    optimizer, losses = nesterov(model, learning_rate=0.002), []
    for _ in range(30):
        optimizer.zero_grad()
        loss = model(tokens, targets)
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    assert losses[-1] < 0.7 * losses[0]


@every_config
def test_autocast_runs_and_stays_near_fp32(name):
    model, (tokens, targets) = make(name).float(), batch(CONFIGS[name])
    with torch.autocast("cpu", dtype=torch.bfloat16):
        loss = model(tokens, targets)
    loss.backward()
    assert loss.dtype == torch.float32
    torch.testing.assert_close(loss, model(tokens, targets), rtol=0.02, atol=0)


# Initialisation and owners


@every_config
def test_the_seed_alone_fixes_the_weights(name):
    first, again, other = make(name, 3), make(name, 3), make(name, 4)
    assert all(map(torch.equal, first.parameters(), again.parameters()))
    assert not all(map(torch.equal, first.parameters(), other.parameters()))


def test_weights_are_drawn_as_by_fairseq():
    torch.manual_seed(0)
    model = Transformer(
        TransformerConfig(
            hidden_size=64, ffn_size=256, n_heads=2, n_layers=1, vocab_size=9_000, cutoffs=(900,)
        )
    )
    for words in model.embedding[0].words:
        assert words.std().item() == pytest.approx(words.shape[1] ** -0.5, rel=0.02)
    for module in model.modules():
        if isinstance(module, nn.Linear):
            bound = math.sqrt(6 / sum(module.weight.shape))
            assert 0.9 * bound < module.weight.abs().max() <= bound
            assert module.bias is None or not module.bias.any()


@every_config
def test_owners_name_modules_and_leave_no_parameter_outside(name):
    model = make(name)
    optional = {"output_layer.cross_entropy"}  # of the full softmax alone
    assert set(model.owners) - optional <= {n for n, _ in model.named_modules()}
    ownership = Ownership(model, model.owners)
    owned = {n: ownership.owner_of_parameter(p) for n, p in model.named_parameters()}
    assert OUTSIDE not in owned.values()
    layers = {f"layer {i + 1}" for i in range(model.config.n_layers)}
    assert set(owned.values()) == {"embedding", "output layer", *layers}
    assert {o for n, o in owned.items() if n.startswith("embedding")} == {"embedding"}


def test_the_large_preset_has_the_published_number_of_parameters():
    """1026M, by fairseq's README; nothing is allocated."""
    with torch.device("meta"):
        model = Transformer(PRESETS["transformer-gbw-1536"])
    assert 1.025e9 < sum(p.numel() for p in model.parameters()) < 1.027e9
    sizes = [len(words) for words in model.embedding[0].words]
    assert sizes == [60_000, 100_000, 633_471], "sizes of bands, not cutoffs"
