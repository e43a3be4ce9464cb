"""Importance of each batch by itself, an order that changes nothing, and what a student learns."""

import math

import pytest
import torch
import torch.nn.functional as F
from encoders import SMALL, random_encoder

from lmtime.config import DEPTHS, EncoderConfig, SubNetwork, sub_network
from lmtime.models.batches import Batch
from lmtime.models.distillation import (
    Weights,
    distillation_loss,
    matched_states,
    outputs,
    soft_cross_entropy,
    states_loss,
)
from lmtime.models.encoder import Masks
from lmtime.models.supernet import Importance, importance, rewire, summed_sizes, task_loss

pytestmark = pytest.mark.usefixtures("one_thread")


def random_batch(seed=1, n_classes=3):
    generator = torch.Generator().manual_seed(seed)
    tokens = torch.randint(50, (4, 11), generator=generator)
    mask = torch.arange(11) < torch.tensor([[11], [1], [6], [10]])
    types = torch.randint(2, (4, 11), generator=generator)
    labels = torch.randint(n_classes, (4,), generator=generator)
    return Batch(tokens, mask, types, labels, torch.arange(4).numpy())


def loss_of(encoder, batch, **more):
    with torch.no_grad():
        return float(task_loss(encoder(*batch.inputs, **more), batch.labels))


# Importance


def test_each_batch_counts_by_itself():
    """Gradients that are never cleared would give A 2.0 and B 4.8, and the other order."""
    gradients = {"A": [1, -1, 1], "B": [0.8, 0.8, 0.8]}
    per_batch = [
        [torch.tensor(g, dtype=torch.float64)] for g in zip(*gradients.values(), strict=True)
    ]
    (found,) = summed_sizes(per_batch)
    assert found.tolist() == pytest.approx([3.0, 2.4])


def test_importance_of_batches_is_the_sum_of_theirs():
    encoder, batches = random_encoder(), [random_batch(seed) for seed in range(3)]
    together = importance(encoder, batches)
    alone = [importance(encoder, [batch]) for batch in batches]
    for kind in ("heads", "neurons"):
        for i, found in enumerate(getattr(together, kind)):
            torch.testing.assert_close(found, sum(getattr(a, kind)[i] for a in alone))


def test_importance_leaves_no_gradient_and_no_mode_behind():
    encoder = random_encoder().train()
    importance(encoder, [random_batch()])
    assert encoder.training
    assert all(parameter.grad is None for parameter in encoder.parameters())


def slope(f, step=1e-6):
    return (f(step) - f(-step)) / (2 * step)


def test_importance_of_a_head_is_the_slope_of_the_loss_in_its_mask():
    encoder, batch = random_encoder(), random_batch()
    found = importance(encoder, [batch])

    def masked(layer, head, change):
        masks = Masks(*([torch.ones(n).double() for n in sizes]
                        for sizes in (SMALL.heads, SMALL.ffn_sizes)))  # fmt: skip
        masks.heads[layer][head] += change
        return loss_of(encoder, batch, masks=masks)

    for layer, head in ((0, 3), (1, 0), (2, 1)):
        by_hand = abs(slope(lambda c, at=(layer, head): masked(*at, c)))
        assert found.heads[layer][head] == pytest.approx(by_hand, rel=1e-5, abs=1e-9)


def test_importance_of_a_neuron_is_two_slopes_of_the_loss_in_its_weights():
    encoder, batch = random_encoder(), random_batch()
    found = importance(encoder, [batch])

    def scaled(layer, neuron, side, change):
        parts = encoder.layers[layer]
        values = {
            "into": [parts.intermediate.weight.data[neuron], parts.intermediate.bias.data[neuron]],
            "out": [parts.output.weight.data[:, neuron]],
        }[side]
        before = [value.clone() for value in values]
        for value in values:
            value.mul_(1 + change)
        loss = loss_of(encoder, batch)
        for value, old in zip(values, before, strict=True):
            value.copy_(old)
        return loss

    for at in ((0, 16), (1, 4), (2, 0)):
        by_hand = sum(abs(slope(lambda c, s=s, at=at: scaled(*at, s, c))) for s in ("into", "out"))
        assert found.neurons[at[0]][at[1]] == pytest.approx(by_hand, rel=1e-5, abs=1e-9)


def test_where_a_number_is_predicted_importance_is_of_the_squared_error():
    logits, labels = torch.tensor([[1.0], [3.0]]), torch.tensor([1.5, 2.0], dtype=torch.float64)
    assert task_loss(logits, labels) == pytest.approx((0.25 + 1) / 2)


# Order


def random_importance(seed, config=SMALL):
    generator = torch.Generator().manual_seed(seed)
    sizes = (config.heads, config.ffn_sizes)
    return Importance(*([torch.rand(n, generator=generator) for n in part] for part in sizes))


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("dtype, worst", [(torch.float64, 1e-12), (torch.float32, 1e-5)])
def test_order_changes_nothing_of_the_whole_network(seed, dtype, worst):
    encoder, batch = random_encoder(seed, dtype), random_batch(seed)
    before = {name: value.clone() for name, value in encoder.state_dict().items()}
    with torch.no_grad():
        logits = encoder(*batch.inputs)
        rewire(encoder, random_importance(seed))
        assert (encoder(*batch.inputs) - logits).abs().max() <= worst
    for name in ("query.weight", "attention_output.weight", "intermediate.bias", "output.weight"):
        name = f"layers.0.{name}"
        assert not torch.equal(encoder.state_dict()[name], before[name]), name


def test_what_is_kept_first_is_what_was_important():
    """A narrow sub-network of the ordered network is the old one with the rest masked."""
    encoder, batch, sizes = random_encoder(), random_batch(), random_importance(5)
    sub = SubNetwork((0, 1, 2), (2, 1, 1), (5, 4, 11))

    def best(values, kept):
        return [v >= v.sort(descending=True)[0][n - 1] for v, n in zip(values, kept, strict=True)]

    masks = Masks(
        [m.double() for m in best(sizes.heads, sub.heads)],
        [m.double() for m in best(sizes.neurons, sub.ffn_sizes)],
    )
    with torch.no_grad():
        masked = encoder(*batch.inputs, masks=masks)
        rewire(encoder, sizes)
        assert (encoder(*batch.inputs, sub=sub) - masked).abs().max() <= 1e-12


def test_after_ordering_importance_falls():
    encoder, batch = random_encoder(), random_batch()
    rewire(encoder, importance(encoder, [batch]))
    again = importance(encoder, [batch])
    for values in (*again.heads, *again.neurons):
        assert (values.diff() <= 1e-12).all()


# What a student learns


@pytest.mark.parametrize(
    "depth, matched", [(0, (0, 1, 2, 3, 4, 5, 6)), (2, (0, 1, 3, 4, 6)), (3, (0, 2, 4, 6))]
)
def test_states_are_matched_to_what_goes_into_the_layers_that_stay(depth, matched):
    config = EncoderConfig(heads=(12,) * 6, ffn_sizes=(3072,) * 6)
    sub = sub_network(config, 1, DEPTHS["minilm-l6"][depth])
    assert matched_states(sub, 6) == matched


def test_cross_entropy_to_a_teacher_is_least_at_the_teacher():
    teacher = torch.tensor([[1.0, -2.0, 0.5], [0.0, 3.0, 1.0]], dtype=torch.float64)
    student = torch.tensor([[0.3, 0.1, -1.0], [2.0, 0.0, 0.7]], dtype=torch.float64)
    p = teacher.exp() / teacher.exp().sum(1, keepdim=True)
    by_hand = []
    for chances, row in zip(p.tolist(), student.tolist(), strict=True):
        total = math.log(sum(math.exp(x) for x in row))
        by_hand.append(-sum(q * (x - total) for q, x in zip(chances, row, strict=True)))
    assert float(soft_cross_entropy(student, teacher)) == pytest.approx(sum(by_hand) / 2)
    entropy = float(-(p * p.log()).sum(1).mean())
    assert float(soft_cross_entropy(teacher, teacher)) == pytest.approx(entropy)


def test_states_are_compared_over_tokens_and_not_over_padding():
    mask = random_batch().mask
    a, b = torch.randn(
        2, 3, 4, 11, 12, dtype=torch.float64, generator=torch.Generator().manual_seed(0)
    )
    by_hand = sum(F.mse_loss(x[mask], y[mask]) for x, y in zip(a, b, strict=True))
    assert float(states_loss(a, b, mask)) == pytest.approx(float(by_hand))


@pytest.mark.parametrize("n_classes", [3, 1])
def test_logits_count_unless_a_number_is_predicted(n_classes):
    fields = {name: getattr(SMALL, name) for name in SMALL.__dataclass_fields__}
    config = EncoderConfig(**fields | {"n_classes": n_classes})
    student, teacher = (random_encoder(seed, config=config) for seed in (0, 1))
    batch, sub = random_batch(), SubNetwork((0, 2), (3, 1), (8, 9))
    found, wanted = outputs(student, batch, sub), outputs(teacher, batch)
    assert len(found.states) == 3 and len(wanted.states) == 4
    loss = distillation_loss(found, wanted, sub, batch.mask, Weights(2.0, 0.1))
    states = states_loss(found.states, [wanted.states[i] for i in (0, 2, 3)], batch.mask)
    is_class = n_classes == 3
    logits = is_class * soft_cross_entropy(found.logits, wanted.logits)
    assert loss.item() == pytest.approx((0.1 * states + 2 * logits).item())
    loss.backward()
    assert all(p.grad is None for p in teacher.parameters()), "the teacher is given"
