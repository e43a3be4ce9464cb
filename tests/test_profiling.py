"""Profiling a step that a user wrote, of a model that is not ours."""

import pytest
import torch
from torch import nn

from lmtime.errors import UsageError
from lmtime.timing import StopRule, profile, region
from lmtime.timing.profiling import default_groups

RULE = StopRule(n_min=3, n_max=3)


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.embedding = nn.Embedding(500, 16)
        self.layers = nn.ModuleList(nn.Linear(16, 16) for _ in range(3))
        self.head = nn.Linear(16, 500)

    def forward(self, tokens):
        hidden = self.embedding(tokens)
        for layer in self.layers:
            hidden = torch.tanh_(layer(hidden))
        return self.head(hidden)


@pytest.fixture
def parts():
    model = Net()
    optimizer = torch.optim.Adam(model.parameters())
    tokens, targets = torch.randint(500, (2, 40))

    def step():
        optimizer.zero_grad()
        logits = model(tokens)
        with region("criterion"):
            loss = nn.functional.cross_entropy(logits, targets)
        loss.backward()
        optimizer.step()

    return step, model, optimizer


def test_every_child_the_region_and_the_optimizer_have_rows_that_sum_to_the_step(parts):
    step, model, optimizer = parts
    found = profile(step, model=model, optimizer=optimizer, rule=RULE)
    rows = found.rows()
    names = {"embedding", "layers.0", "layers.1", "layers.2", "head", "criterion"}
    for phase in ("forward", "backward"):
        assert names <= {row["owner"] for row in rows if row["phase"] == phase}
    assert ("optimizer", "optimizer") in found.parts
    assert rows[-1]["owner"] == "step"
    assert rows[-1]["latency_ms"] == sum(row["latency_ms"] for row in rows[:-1])
    assert sum(row["share"] for row in rows[:-1]) == pytest.approx(1, rel=1e-12)


def test_groups_fold_modules_into_the_rows_asked_for(parts):
    step, model, optimizer = parts
    groups = {"": "rest", "layers": "body", "head": "output layer"}
    found = profile(step, model=model, optimizer=optimizer, groups=groups, rule=RULE)
    owners = {owner for owner, _ in found.parts}
    assert owners == {"rest", "body", "output layer", "criterion", "optimizer", "outside"}


def test_the_table_names_every_row_and_the_price_of_the_marks(parts):
    step, model, optimizer = parts
    found = profile(step, model=model, optimizer=optimizer, rule=RULE)
    lines = found.table().splitlines()
    assert len(lines) == len(found.parts) + 2, found.table()
    assert lines[0].startswith("step ")
    assert lines[-1].startswith("Marks cost ")


def test_a_group_for_no_module_is_refused_before_a_step_runs(parts):
    _, model, _ = parts

    def never():
        raise AssertionError("the step ran")

    with pytest.raises(UsageError, match="'decoder', which the model does not have"):
        profile(never, model=model, groups={"decoder": "body"})


def test_a_compiled_model_is_one_row_beside_the_regions_and_the_optimizer(parts):
    """Hooks inside it are ignored (pytorch #117758): said, not shown as if they were there."""
    _, model, optimizer = parts
    compiled = torch.compile(model, backend="aot_eager")
    tokens, targets = torch.randint(500, (2, 40))

    def step():
        optimizer.zero_grad()
        logits = compiled(tokens)
        with region("criterion"):
            loss = nn.functional.cross_entropy(logits, targets)
        loss.backward()
        optimizer.step()

    with pytest.warns(UserWarning, match="compiled by torch.compile: the model"):
        found = profile(step, model=compiled, optimizer=optimizer, rule=RULE)
    assert {"compiled model", "criterion", "optimizer"} == set(dict(found.parts)) - {"outside"}
    assert ("compiled model", "backward") in found.parts


def test_a_compiled_child_is_one_row_and_its_siblings_are_told_apart():
    model = nn.Sequential(nn.Linear(8, 8), nn.Sequential(nn.Linear(8, 8), nn.ReLU()))
    model[1] = torch.compile(model[1], backend="aot_eager")
    data = torch.randn(4, 8)
    groups = {"0": "first", "1": "second", "1._orig_mod.0": "inside"}
    with pytest.warns(UserWarning, match="compiled by torch.compile: 1"):
        found = profile(lambda: model(data).sum().backward(), model=model, groups=groups, rule=RULE)
    assert set(dict(found.parts)) - {"outside"} == {"first", "second"}


def test_work_is_counted_by_the_same_owners(parts):
    step, model, optimizer = parts
    rows = profile(step, model=model, optimizer=optimizer, rule=RULE).rows()
    flops = {(r["owner"], r["phase"]): r["flops"] for r in rows}
    assert flops["head", "forward"] == 2 * 40 * 16 * 500
    assert flops["head", "backward"] == 2 * flops["head", "forward"]
    assert flops["embedding", "forward"] == 0
    assert rows[-1]["flops"] == sum(r["flops"] for r in rows[:-1])
    assert all(r["bytes"] > 0 for r in rows if r["owner"] in ("head", "embedding", "optimizer"))


def test_lists_and_sequences_are_told_apart_member_by_member():
    model = nn.Sequential(nn.Linear(2, 2), nn.Sequential(nn.ReLU(), nn.Linear(2, 2)))
    assert default_groups(model) == {"0": "0", "1.0": "1.0", "1.1": "1.1"}
