"""A vocabulary split among devices: three numbers a token are exchanged, not the logits.

The scheme of Megatron-LM's `vocab_parallel_cross_entropy`.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from lmtime.softmax.interface import check_int64


class ShardScores(NamedTuple):
    """What one shard of the vocabulary knows of each token, (n_tokens,) each, fp32 at least."""

    highest: Tensor  # logit
    exp_sum: Tensor  # of exp(logit - highest)
    target: Tensor  # logit of the target; -inf where another shard holds it


def score_shard(logits: Tensor, targets: Tensor, first_word: int) -> ShardScores:
    """logits: (n_tokens, words of the shard), of words from `first_word`; targets: global ids."""
    check_int64(targets)
    logits = logits.to(torch.promote_types(logits.dtype, torch.float32))
    highest = logits.amax(-1)
    shift = highest.masked_fill(highest == -math.inf, 0.0)  # a shard of padding alone
    exp_sum = (logits - shift[:, None]).exp().sum(-1)
    place = targets - first_word
    elsewhere = (place < 0) | (place >= logits.shape[-1])
    target = logits.gather(1, place.masked_fill(elsewhere, 0)[:, None])[:, 0]
    return ShardScores(highest, exp_sum, target.masked_fill(elsewhere, -math.inf))


def merge_shards(shards: Sequence[ShardScores]) -> Tensor:
    """Negative log-likelihood of the targets, (n_tokens,), over the words of all shards.

    Of a target that no shard holds it is infinite.
    """
    highest, exp_sum, target = (torch.stack(parts) for parts in zip(*shards, strict=True))
    top = highest.amax(0)
    return top + (exp_sum * (highest - top).exp()).sum(0).log() - target.amax(0)
