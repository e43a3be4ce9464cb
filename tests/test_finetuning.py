"""Batches, the three stages of a training, and one that is interrupted."""

import numpy as np
import pytest
import torch

from lmtime.config import EncoderConfig, sub_network
from lmtime.errors import UsageError
from lmtime.models import finetuning
from lmtime.models.batches import Tokenised, batches, n_batches, tokenise
from lmtime.models.checkpoint import minilm_folder
from lmtime.models.encoder import Encoder
from lmtime.models.finetuning import (
    DepthSchedule,
    Run,
    Schedule,
    evaluate,
    fine_tune,
    rate_at,
    train_depth,
    train_width,
)
from lmtime.models.progress import Checkpoint
from lmtime.tasks import Examples

TINY = EncoderConfig(
    hidden_size=16, head_size=4, heads=(4,) * 4, ffn_sizes=(24,) * 4, vocab_size=60,
    max_positions=16,
)  # fmt: skip
DEPTHS = (1, 0.75, 0.5)

pytestmark = pytest.mark.usefixtures("one_thread")


def network(seed=0):
    torch.manual_seed(seed)
    return Encoder(TINY).eval()


@pytest.fixture(scope="module")
def data():
    """The label is whether the first word, after [CLS], is of the upper half."""
    rng = np.random.default_rng(0)
    tokens = [[1, *rng.integers(2, 60, size=rng.integers(1, 9)).tolist()] for _ in range(90)]
    types = [[0] * len(t) for t in tokens]
    return Tokenised(tokens, types, np.array([int(t[1] > 30) for t in tokens]))


# Batches


def test_pairs_have_types_and_long_texts_are_cut():
    long = "a film that " * 100
    examples = Examples([("A film.", None), ("Yes.", "No!"), (long, "No!")], np.array([0, 1, 0]))
    found = tokenise(minilm_folder(), examples)
    assert found.tokens[0][:2] == [101, 1037] and found.tokens[0][-1] == 102
    assert len(found.tokens[0]) == 5, "no padding"
    assert found.types[0] == [0] * 5
    assert found.types[1] == [0] * 4 + [1] * 3
    assert len(found.tokens[2]) == 128
    assert found.types[2][-3:] == [1] * 3, "the longer text is cut, not the other"


def test_a_folder_without_a_tokenizer_is_refused(tmp_path):
    examples = Examples([("A film.", None)], np.array([0]))
    with pytest.raises(UsageError, match=r"has no tokenizer\.json"):
        tokenise(tmp_path, examples)
    (tmp_path / "tokenizer.json").write_text("{}")
    with pytest.raises(UsageError, match="is no tokenizer"):
        tokenise(tmp_path, examples)


@pytest.mark.parametrize("seed", [None, 0, 1])
def test_batches_hold_every_example_once(data, seed):
    rng = None if seed is None else np.random.default_rng(seed)
    found = list(batches(data, 8, rng))
    assert sorted(np.concatenate([b.rows for b in found])) == list(range(90))
    assert len(found) == n_batches(90, 8) == 12
    for batch in found:
        lengths = [len(data.tokens[i]) for i in batch.rows]
        assert batch.tokens.shape == (len(batch.rows), max(lengths)), "padded to the longest"
        assert batch.mask.sum(1).tolist() == lengths
        assert batch.labels.tolist() == data.labels[batch.rows].tolist()
        assert batch.tokens[0][batch.mask[0]].tolist() == data.tokens[batch.rows[0]]


def test_batches_are_of_like_length_and_in_an_order_of_their_own(data):
    first, again, other = (
        [b.rows.tolist() for b in batches(data, 8, np.random.default_rng(seed))]
        for seed in (0, 0, 1)
    )
    assert first == again != other
    padded = sum(b.tokens.numel() for b in batches(data, 8, np.random.default_rng(0)))
    assert padded <= 1.15 * sum(map(len, data.tokens))


@pytest.mark.parametrize(
    "n, size, expected", [(64, 2, 32), (65, 2, 33), (1, 32, 1), (7475, 32, 234)]
)
def test_batches_are_counted(n, size, expected):
    assert n_batches(n, size) == expected


# Stages


def test_the_rate_rises_in_a_line_and_falls_in_a_line():
    rates = [rate_at(i, 20) for i in range(20)]
    assert rates[:3] == [0.5, 1.0, 1.0]
    assert np.diff(rates[2:]) == pytest.approx(-1 / 18)
    assert rate_at(20, 20) == 0


def test_fine_tuning_learns(data):
    net, seen = network(), []
    progress = fine_tune(net, data, Schedule(5, 5e-3, 8), run=Run(say=seen.append))
    assert not net.training
    assert progress.steps == 5 * 12 and progress.epochs == len(progress.losses) == 5
    assert (evaluate(net, data, [None])[0] == data.labels).mean() > 0.95
    assert seen[0].startswith("fine-tuning: 25 of 60 steps, loss 0.")


@pytest.fixture
def asked(monkeypatch):
    """(which network, its sub-network) of every forward pass of a distillation."""
    found, outputs = [], finetuning.outputs
    monkeypatch.setattr(
        finetuning,
        "outputs",
        lambda net, batch, sub=None: (
            found.append((net, sub and (sub.layers, sub.heads[0]), torch.is_grad_enabled()))
            or outputs(net, batch, sub)
        ),
    )
    return found


def test_width_takes_every_width_in_every_step_and_leaves_the_teacher(data, asked):
    net, teacher = network(), network(1)
    before = [p.clone() for p in teacher.parameters()]
    train_width(net, teacher, data, Schedule(1, 1e-3, 45))
    step = [(sub[1] if sub else None, learns) for _, sub, learns in asked[:5]]
    assert step == [(None, False), (4, True), (3, True), (2, True), (1, True)]
    assert len(asked) == 2 * 5
    assert all(map(torch.equal, before, teacher.parameters()))


@pytest.mark.parametrize("teacher_width, of_teacher", [("full", {4}), ("same", {4, 3, 2, 1})])
def test_depth_takes_every_depth_and_width(data, asked, teacher_width, of_teacher):
    net = network()
    train_depth(net, data, DepthSchedule(1, 1e-3, 90, teacher_width), depths=DEPTHS)
    students = [sub for used, sub, _ in asked if used is net]
    assert len(students) == len(set(students)) == 12
    assert {layers for layers, _ in students} == {(0, 1, 2, 3), (0, 1, 2), (0, 2)}
    teachers = [sub for used, sub, _ in asked if used is not net]
    assert {heads for _, heads in teachers} == of_teacher
    assert len(teachers) == len(of_teacher), "once a step and width"
    assert all(layers == (0, 1, 2, 3) for layers, _ in teachers)


def test_the_sandwich_is_of_the_largest_the_smallest_and_some_between(data, asked):
    net = network()
    train_depth(net, data, DepthSchedule(1, 1e-3, 8, n_random=2), depths=DEPTHS)
    students = [sub for used, sub, _ in asked if used is net]
    assert len(students) == 12 * 4
    assert set(students[0::4]) == {((0, 1, 2, 3), 4)}
    assert set(students[3::4]) == {((0, 2), 1)}
    between = set(students[1::4]) | set(students[2::4])
    assert len(between) >= 8, "of ten, drawn 24 times"
    assert not between & {students[0], students[3]}
    assert all(a != b for a, b in zip(students[1::4], students[2::4], strict=True))


def test_gradients_of_a_step_are_added_then_clipped_once():
    net, seen = network(), {}
    losses = [lambda: 30 * net.classifier.bias[0], lambda: 40 * net.classifier.bias[1]]
    optimizer = torch.optim.SGD(net.parameters(), lr=9.0)
    before = net.classifier.bias.detach().clone()
    total = finetuning._step(net, optimizer, (loss() for loss in losses), 0.5)
    seen = (before - net.classifier.bias.detach()) / 0.5
    assert seen.tolist() == pytest.approx([0.6, 0.8], rel=1e-5), "of norm 1, and both in it"
    assert total == pytest.approx(float(30 * before[0] + 40 * before[1]))


def test_a_loss_that_is_no_number_stops(data):
    with pytest.raises(RuntimeError, match="lower the learning rate"), torch.no_grad():
        net = network()
        net.classifier.bias.fill_(float("nan"))
        with torch.enable_grad():
            fine_tune(net, data, Schedule(1, 1e-3, 8))


@pytest.mark.parametrize("fields", [{"epochs": 0}, {"batch_size": 1.5}, {"learning_rate": 2}])
def test_a_schedule_that_cannot_be_is_refused(fields):
    with pytest.raises(UsageError, match=next(iter(fields))):
        Schedule(**fields)


def test_a_teacher_of_no_known_width_is_refused():
    with pytest.raises(UsageError, match="full, same"):
        DepthSchedule(teacher_width="half")
    with pytest.raises(UsageError, match="n_random=-1"):
        DepthSchedule(n_random=-1)


# Interrupted


def stage(name, net, data, run, epochs=3):
    if name == "fine-tuning":
        return fine_tune(net, data, Schedule(epochs, 1e-3, 16), run=run)
    if name == "width":
        return train_width(net, network(1), data, Schedule(epochs, 1e-3, 16), run=run)
    schedule = DepthSchedule(epochs, 1e-3, 16, n_random=1)
    return train_depth(net, data, schedule, depths=DEPTHS, run=run)


@pytest.mark.parametrize("name", finetuning.STAGES)
def test_an_interrupted_stage_ends_with_the_same_weights(data, tmp_path, monkeypatch, name):
    whole = network()
    undisturbed = stage(name, whole, data, Run(seed=3))
    run = Run(seed=3, checkpoint=Checkpoint(tmp_path / "kept.safetensors", "this"))
    step, left = finetuning._step, [16]  # in the third epoch of six steps each

    def interrupted(*args):
        left[0] -= 1
        if left[0] < 0:
            raise KeyboardInterrupt
        return step(*args)

    monkeypatch.setattr(finetuning, "_step", interrupted)
    with pytest.raises(KeyboardInterrupt):
        stage(name, network(), data, run)
    monkeypatch.setattr(finetuning, "_step", step)
    torch.manual_seed(99)
    resumed = network()
    progress = stage(name, resumed, data, run)
    assert all(map(torch.equal, whole.state_dict().values(), resumed.state_dict().values()))
    assert progress.losses == undisturbed.losses and progress.steps == 18
    done = network()
    monkeypatch.setattr(finetuning, "_step", None)  # what is done is not done again
    assert stage(name, done, data, run).losses == undisturbed.losses
    assert all(map(torch.equal, whole.state_dict().values(), done.state_dict().values()))


def test_another_training_starts_anew_and_a_damaged_file_is_refused(data, tmp_path):
    path = tmp_path / "kept.safetensors"
    stage("fine-tuning", network(), data, Run(checkpoint=Checkpoint(path, "this")), epochs=1)
    other, fresh = network(), network()
    stage("fine-tuning", other, data, Run(checkpoint=Checkpoint(path, "that")), epochs=1)
    stage("fine-tuning", fresh, data, Run(), epochs=1)
    assert all(map(torch.equal, other.state_dict().values(), fresh.state_dict().values()))
    path.write_bytes(path.read_bytes()[:100])
    with pytest.raises(UsageError, match="is damaged"):
        stage("fine-tuning", network(), data, Run(checkpoint=Checkpoint(path, "that")))


# What is predicted


def test_predictions_stand_in_the_order_of_the_examples(data):
    net = network()
    subs = [None, sub_network(TINY, 0.5, 0.5)]
    found = evaluate(net, data, subs, batch_size=7)
    for i in (0, 41, 89):
        for row, sub in zip(found, subs, strict=True):
            assert row[i] == net(torch.tensor([data.tokens[i]]), sub=sub).argmax()


def test_numbers_are_predicted_as_they_are(data):
    torch.manual_seed(0)
    fields = {name: getattr(TINY, name) for name in TINY.__dataclass_fields__}
    net = Encoder(EncoderConfig(**fields | {"n_classes": 1})).eval()
    found = evaluate(net, data, [None])[0]
    alone = net(torch.tensor([data.tokens[5]])).item()
    assert found.dtype == np.float64 and found[5] == pytest.approx(alone, abs=1e-6)
