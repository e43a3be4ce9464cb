"""A vocabulary in shards has the likelihoods of the whole."""

import math

import pytest
import torch
import torch.nn.functional as F
from hypothesis import given, settings
from hypothesis import strategies as st

from lmtime.errors import UsageError
from lmtime.softmax import merge_shards, score_shard


def test_shards_of_the_vocabulary_give_the_likelihood_of_the_whole():
    """Case 26, the numbers of Megatron-LM: four shards of 32 words each."""
    logits = torch.arange(8.0).repeat(16, 16)
    targets = torch.arange(0, 32, 2)
    shards = [score_shard(logits[:, i : i + 32], targets, i) for i in range(0, 128, 32)]
    nll = merge_shards(shards)
    wanted = torch.tensor([10.2309, 8.2309, 6.2309, 4.2309]).repeat(4)
    torch.testing.assert_close(nll, wanted, rtol=0, atol=1e-4)
    torch.testing.assert_close(nll, F.cross_entropy(logits, targets, reduction="none"))


@given(st.lists(st.integers(1, 9), min_size=1, max_size=5), st.floats(-1e3, 1e3))
@settings(deadline=None, max_examples=50)
def test_any_shards_of_any_scores(sizes, shift):
    generator = torch.Generator().manual_seed(sum(sizes))
    logits = 30 * torch.randn(6, sum(sizes), generator=generator, dtype=torch.float64) + shift
    targets = torch.randint(sum(sizes), (6,), generator=generator)
    first = [sum(sizes[:i]) for i in range(len(sizes))]
    parts = [
        score_shard(part, targets, i) for part, i in zip(logits.split(sizes, 1), first, strict=True)
    ]
    wanted = F.cross_entropy(logits, targets, reduction="none")
    torch.testing.assert_close(merge_shards(parts), wanted, rtol=1e-9, atol=1e-9)


def test_a_shard_of_padding_alone_changes_nothing():
    """As flash-attention#1930: a row whose scores are all -inf gave nan."""
    generator = torch.Generator().manual_seed(1)
    logits = torch.randn(5, 12, generator=generator, requires_grad=True)
    targets = torch.tensor([0, 7, 3, 4, 1])
    padded = logits.masked_fill(torch.arange(12) >= 8, -math.inf)
    nll = merge_shards([score_shard(padded[:, i : i + 4], targets, i) for i in (0, 4, 8)])
    wanted = F.cross_entropy(logits[:, :8], targets, reduction="none")
    torch.testing.assert_close(nll, wanted)
    pair = (torch.autograd.grad(x.sum(), logits, retain_graph=True)[0] for x in (nll, wanted))
    torch.testing.assert_close(*pair)


def test_a_target_that_no_shard_holds_has_no_finite_loss():
    logits = torch.zeros(3, 8)
    targets = torch.tensor([-100, 8, 3])
    nll = merge_shards([score_shard(logits[:, i : i + 4], targets, i) for i in (0, 4)])
    assert nll.tolist() == [math.inf, math.inf, pytest.approx(math.log(8))]
    with pytest.raises(UsageError, match=r"must be torch\.int64"):
        score_shard(logits, targets.int(), 0)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_scores_of_16_bits_are_summed_in_32(dtype):
    logits = torch.zeros(1, 100_000, dtype=dtype)
    parts = [score_shard(logits[:, i : i + 50_000], torch.tensor([7]), i) for i in (0, 50_000)]
    torch.testing.assert_close(merge_shards(parts), torch.tensor([math.log(1e5)]))
