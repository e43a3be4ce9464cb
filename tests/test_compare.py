"""Laws of the side-by-side comparison of output layers."""

import dataclasses

import numpy as np
import pytest
import torch

from lmtime import compare, plans
from lmtime.compare import Shape, shapes_of, variation_of
from lmtime.config import AdaptiveSoftmaxConfig
from lmtime.errors import UsageError
from lmtime.softmax.contestants import ADAPTIVE, BUILDERS, FULL, Task, contestants
from lmtime.timing.memory import peak_bytes

SMALL = AdaptiveSoftmaxConfig(16, 500, (50, 200))


def task(n_tokens=40, config=SMALL):
    ids = np.random.default_rng(0).integers(config.vocab_size, size=n_tokens)
    variations = {"variation": variation_of(config)}
    return Task.of(ids, config, variations, device="cpu", seed=0)


def test_every_layer_runs_and_gives_all_gradients():
    given = task()
    for one in contestants([*BUILDERS, "variation"], given):
        one.step()
        assert given.hidden.grad is not None, one.name
        assert all(p.grad is not None for p in one.layer.parameters()), one.name
        one.plain()


@pytest.mark.parametrize("of", [ADAPTIVE, FULL])
def test_layers_of_the_same_model_have_the_same_loss(of):
    """With the same weights, which both kinds draw alike from the same seed."""
    given, gradients = task(), {}
    for name in BUILDERS:
        if name == "sampled":  # only at evaluation
            continue
        torch.manual_seed(3)
        (one,) = contestants([name], given)
        if one.same_as == of:
            one.step()
            gradients[name] = given.hidden.grad.clone()
    assert len(gradients) >= 3
    for name, gradient in gradients.items():
        torch.testing.assert_close(gradient, gradients[of], msg=name, rtol=1e-4, atol=1e-6)


def test_a_plan_made_on_the_host_leaves_nothing_to_wait_for():
    rows = compare.compare(
        ["fused-adaptive", "fused-adaptive-planned"],
        Shape(16, 500, 40, (50, 200)),
        max_s=0.1,
    )
    waits = {r["layer"]: r["syncs"] for r in rows}
    assert waits == {ADAPTIVE: 6, "fused-adaptive": 1, "fused-adaptive-planned": 0}
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


def test_the_variation_is_deeper_and_never_wider_than_the_hidden_state():
    found = variation_of(dataclasses.replace(SMALL, hidden_size=1024, vocab_size=33_278,
                                             cutoffs=(2_000, 10_000)))  # fmt: skip
    assert found.cutoffs == (60, 400, 2_000, 10_000)
    assert found.tail_widths == (256, 256, 64, 16)
    assert variation_of(SMALL).tail_widths == (4, 1)


def test_plans_name_partitions_that_fit_every_hidden_size():
    for preset in ("quick", "paper"):
        for shape, names in shapes_of(plans.comparison_plan(preset)):
            for config in shape.variations.values():
                assert config.hidden_size == shape.hidden_size
                assert max(config.tail_dims) <= shape.hidden_size
            assert set(names) <= set(BUILDERS) | set(shape.variations)


def test_the_peak_is_what_lives_at_once():
    def step():
        a = torch.ones(250_000)
        b = a + 1
        del a
        (b * 2).sum()

    step()
    assert peak_bytes(step, "cpu") == pytest.approx(2_000_000, rel=0.01)
