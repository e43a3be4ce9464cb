"""A vocabulary in shards has the likelihoods of the whole."""

import torch
import torch.nn.functional as F
from hypothesis import given, settings
from hypothesis import strategies as st

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
