"""Laws of the side-by-side comparison of output layers."""

import numpy as np
import pytest
import torch

from lmtime import compare, plans
from lmtime.compare import Shape
from lmtime.config import AdaptiveSoftmaxConfig
from lmtime.errors import UsageError
from lmtime.softmax.contestants import ADAPTIVE, BUILDERS, FULL, Task, contestants
from lmtime.timing.memory import peak_bytes

SMALL = AdaptiveSoftmaxConfig(16, 500, (50, 200))


def task(n_tokens=40, config=SMALL):
    ids = np.random.default_rng(0).integers(config.vocab_size, size=n_tokens)
    partitions = Shape(config.hidden_size, config.vocab_size).partitions
    return Task.of(ids, config, partitions, device="cpu", seed=0)


def test_every_layer_runs_and_gives_all_gradients():
    given = task()
    for one in contestants([*BUILDERS, *given.partitions], given):
        one.step()
        assert given.hidden.grad is not None, one.name
        assert all(p.grad is not None for p in one.layer.parameters()), one.name
        one.products()


@pytest.mark.parametrize("of", [ADAPTIVE, FULL])
def test_layers_of_the_same_model_have_the_same_loss(of):
    """With the same weights, which both kinds draw alike from the same seed."""
    given, gradients = task(), {}
    for name in BUILDERS:
        torch.manual_seed(3)
        (one,) = contestants([name], given)
        if one.same_as == of:
            one.step()
            gradients[name] = given.hidden.grad.clone()
    assert len(gradients) >= 3
    for name, gradient in gradients.items():
        torch.testing.assert_close(gradient, gradients[of], msg=name, rtol=1e-4, atol=1e-6)


def test_the_bare_products_are_those_of_the_layer():
    rows = compare.compare(
        ["fused-adaptive-fast", "fast-products"], Shape(16, 500, 40, (50, 200)), max_s=0.1
    )
    assert len(rows) == 3
    assert len({r["flops"] for r in rows}) == 1
    assert rows[-1]["gradient_bytes"] == 0 and not rows[-1]["exact"]


def test_a_plan_made_on_the_host_leaves_nothing_to_wait_for():
    rows = compare.compare(
        ["fused-adaptive", "fused-adaptive-planned", "fused-adaptive-fast"],
        Shape(16, 500, 40, (50, 200)),
        max_s=0.1,
    )
    waits = {r["layer"]: r["syncs"] for r in rows}
    assert waits == {
        ADAPTIVE: 6, "fused-adaptive": 1, "fused-adaptive-planned": 0, "fused-adaptive-fast": 1
    }  # fmt: skip
    for r in rows:
        assert r["latency_ms_low"] <= r["latency_ms"] <= r["latency_ms_high"]
        assert r["n"] >= 3
        assert r["exact"]
    assert rows[0]["ratio_to_torch_adaptive"] == 1
    assert not rows[0]["difference_shown"]
    assert rows[0]["flops"] == rows[1]["flops"]


def test_an_unknown_layer_shows_the_choices():
    with pytest.raises(UsageError, match="layer 'fast': choose one of torch-adaptive, fused"):
        contestants(["fast"], task())


def test_partitions_fit_the_sizes_that_are_compared():
    at_home = Shape().partitions
    assert at_home.keys() == plans.PARTITIONS.keys()
    for name, options in plans.PARTITIONS.items():
        assert at_home[name] == AdaptiveSoftmaxConfig(1024, 33_278, **options)
    small = Shape(16, 500).partitions
    assert small["six tails"].cutoffs == (15, 182)
    assert small["six tails"].tail_widths == (16, 16)
    assert "two tails" not in small, "it has no cut inside"
    assert small["four tails with a shared projection"].shared_rank is None


@pytest.mark.parametrize("preset", ["quick", "paper"])
def test_plans_name_layers_that_there_are(preset):
    shapes = plans.comparison_plan(preset) + plans.returned_plan(preset)
    for hidden_size, n_tokens, names in shapes:
        shape = Shape(hidden_size, n_tokens=n_tokens)
        assert set(names) <= set(BUILDERS) | set(shape.partitions)


def test_a_process_that_keeps_pages_is_none_that_returns_them(monkeypatch):
    monkeypatch.setattr(compare, "are_kept", lambda: True)
    with pytest.raises(UsageError, match="this process keeps pages"):
        compare.run_missing([], device="cpu", command="a test", study=compare.RETURNED)


def test_layers_with_the_same_products_share_them():
    chunked, full, own = contestants(["chunked", FULL, "fused-adaptive"], task())
    assert chunked.products is full.products is not own.products


def test_the_peak_is_what_lives_at_once():
    def step():
        a = torch.ones(250_000)
        b = a + 1
        del a
        (b * 2).sum()

    step()
    assert peak_bytes(step, "cpu") == pytest.approx(2_000_000, rel=0.01)
