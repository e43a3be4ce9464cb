"""Laws of the gated convolutional network: causality, seeds, owners, and that it learns."""

import dataclasses

import pytest
import torch
from torch import nn

from lmtime.config import OUTPUT_LAYER_NAMES, GCNConfig
from lmtime.models import build, nesterov
from lmtime.timing import OUTSIDE, Ownership

SHAPE = dict(
    hidden_size=13,
    final_hidden_size=13,
    embedding_size=9,
    kernel_size=3,
    n_layers=2,
    vocab_size=31,
    cutoffs=(5, 12),
    div_value=2.0,
    batch_size=2,
    seq_len=11,
)
CONFIGS = {
    "plain": GCNConfig(**SHAPE),
    "full": GCNConfig(**SHAPE | {"output_layer": "full"}),
    "the last layer widens": GCNConfig(**SHAPE | {"final_hidden_size": 29}),
    "the last layer narrows, full": GCNConfig(
        **SHAPE | {"final_hidden_size": 7, "output_layer": "full"}
    ),
    "one layer, one tap": GCNConfig(**SHAPE | {"n_layers": 1, "kernel_size": 1}),
    "the only layer widens": GCNConfig(**SHAPE | {"n_layers": 1, "final_hidden_size": 20}),
    "a kernel longer than the sequence": GCNConfig(**SHAPE | {"kernel_size": 14, "n_layers": 1}),
}
every_config = pytest.mark.parametrize("name", CONFIGS)


pytestmark = pytest.mark.usefixtures("one_thread")


def batch(config, seed=1):
    generator = torch.Generator().manual_seed(seed)
    shape = (2, config.batch_size, config.seq_len)
    return torch.randint(config.vocab_size, shape, generator=generator)


def positions_changed(model, tokens, position):
    """(seq_len,) bool: where the hidden state differs when one token of each sequence does."""
    other = tokens.clone()
    other[:, position] = (other[:, position] + 1) % model.config.vocab_size
    with torch.no_grad():
        return (model.hidden(tokens) != model.hidden(other)).any(-1).all(0)


# What a position sees


@every_config
def test_a_token_changes_the_states_it_should_and_no_earlier_one(name):
    """Each layer reaches kernel_size - 1 positions further; beyond that a token is not seen."""
    config = CONFIGS[name]
    model, (tokens, _) = build(config).double(), batch(config)
    reach = config.n_layers * (config.kernel_size - 1)
    for position in range(config.seq_len):
        wanted = [position <= i <= position + reach for i in range(config.seq_len)]
        assert positions_changed(model, tokens, position).tolist() == wanted


@every_config
def test_hidden_states_are_as_wide_as_the_configuration_says(name):
    config = CONFIGS[name]
    hidden = build(config).hidden(batch(config)[0])
    assert hidden.shape == (config.batch_size, config.seq_len, config.final_hidden_size)


def test_only_a_change_of_width_is_projected():
    for name, config in CONFIGS.items():
        projected = [not isinstance(conv.residual, nn.Identity) for conv in build(config).convs]
        assert projected == [False] * (config.n_layers - 1) + [config.widens], name
    assert {config.widens for config in CONFIGS.values()} == {True, False}


@every_config
def test_sequences_do_not_see_each_other(name):
    model, (tokens, _) = build(CONFIGS[name]).double(), batch(CONFIGS[name])
    alone = torch.cat([model.hidden(tokens[i : i + 1]) for i in range(len(tokens))])
    torch.testing.assert_close(model.hidden(tokens), alone, rtol=1e-12, atol=1e-12)


# The loss


@every_config
def test_loss_is_one_number_the_mean_over_all_tokens(name):
    model, (tokens, targets) = build(CONFIGS[name]), batch(CONFIGS[name])
    loss = model(tokens, targets)
    assert loss.shape == ()
    log_prob = model.output_layer.log_prob(model.hidden(tokens))
    wanted = -log_prob.gather(-1, targets[..., None]).mean()
    torch.testing.assert_close(loss, wanted)


@pytest.mark.parametrize("output_layer", OUTPUT_LAYER_NAMES)
def test_every_parameter_gets_a_gradient(output_layer):
    config = GCNConfig(**SHAPE | {"final_hidden_size": 20, "output_layer": output_layer})
    model = build(config)
    tokens = torch.arange(22).reshape(2, 11)
    model(tokens, tokens + 4).backward()  # targets of every cluster
    without = [n for n, p in model.named_parameters() if p.grad is None or not p.grad.any()]
    assert without == []


@pytest.mark.parametrize("output_layer", OUTPUT_LAYER_NAMES)
def test_training_lowers_the_loss(output_layer):
    config = GCNConfig(**SHAPE | {"output_layer": output_layer})
    model, (tokens, targets) = build(config), batch(config)
    optimizer = nesterov(model, learning_rate=0.05)
    losses = []
    for _ in range(30):
        optimizer.zero_grad()
        loss = model(tokens, targets)
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    assert losses[-1] < 0.7 * losses[0]


def test_the_optimizer_is_accelerated_gradient_over_all_parameters():
    model = build(CONFIGS["plain"])
    (group,) = nesterov(model, learning_rate=0.25).param_groups
    assert (group["nesterov"], group["momentum"], group["lr"]) == (True, 0.99, 0.25)
    assert list(map(id, group["params"])) == list(map(id, model.parameters()))


# Seeds


@every_config
def test_the_seed_alone_fixes_the_weights(name):
    def weights(seed):
        torch.rand(seed + 1)  # whatever was drawn before
        return build(CONFIGS[name], seed=seed).state_dict()

    first, again, other = weights(3), weights(3), weights(4)
    assert all(torch.equal(first[key], again[key]) for key in first)
    assert any(not torch.equal(first[key], other[key]) for key in first)


def test_building_leaves_the_global_generator_alone():
    torch.manual_seed(11)
    wanted = torch.rand(5)
    torch.manual_seed(11)
    build(CONFIGS["plain"], seed=3)
    assert torch.equal(torch.rand(5), wanted)


def test_a_model_that_cannot_be_built_leaves_the_global_generator_alone(monkeypatch):
    def broken(config):
        torch.rand(1)
        raise MemoryError

    monkeypatch.setattr("lmtime.models.GCN", broken)
    state = torch.get_rng_state()
    with pytest.raises(MemoryError):
        build(CONFIGS["plain"])
    assert torch.equal(torch.get_rng_state(), state)


@pytest.mark.cuda
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
def test_building_leaves_the_gpus_generator_alone_and_gives_the_cpus_weights():
    state = torch.cuda.get_rng_state()
    on_gpu = build(CONFIGS["plain"], seed=3, device="cuda").state_dict()
    assert torch.equal(torch.cuda.get_rng_state(), state)
    on_cpu = build(CONFIGS["plain"], seed=3).state_dict()
    assert all(torch.equal(on_gpu[key].cpu(), on_cpu[key]) for key in on_cpu)


# Owners


@every_config
def test_owners_name_modules_and_leave_no_parameter_outside(name):
    config = CONFIGS[name]
    model = build(config)
    optional = {"output_layer.cross_entropy"}  # of the full softmax alone
    assert set(model.owners) - optional <= {n for n, _ in model.named_modules()}
    assert ("output_layer.cross_entropy" in dict(model.named_modules())) == (
        config.output_layer == "full"
    )
    ownership = Ownership(model, model.owners)
    owned = {n: ownership.owner_of_parameter(p) for n, p in model.named_parameters()}
    assert OUTSIDE not in owned.values()
    assert owned["embedding.weight"] == "embedding"
    convs = {f"conv {i + 1}" for i in range(config.n_layers)}
    assert set(owned.values()) == {"embedding", "input projection", "output layer", *convs}


def test_dropout_is_in_training_only():
    """In evaluation the network with dropout is the one without; in training another each time."""
    config = GCNConfig(hidden_size=24, final_hidden_size=24, embedding_size=16, vocab_size=97,
                       cutoffs=(20,), batch_size=2, seq_len=9)  # fmt: skip
    plain, dropped = (build(dataclasses.replace(config, dropout=p)) for p in (0.0, 0.5))
    tokens, targets = torch.randint(97, (2, 2, 9), generator=torch.Generator().manual_seed(1))
    assert dropped.eval()(tokens, targets) == plain.eval()(tokens, targets)
    dropped.train()
    assert dropped(tokens, targets) != dropped(tokens, targets)
