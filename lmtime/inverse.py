"""Questions asked backwards: at which size does a formula reach a level? Standard library only.

Every formula here rises or falls with the size all along; halving the range finds the place.
"""

from __future__ import annotations

from collections.abc import Callable
from math import sqrt
from typing import Any

from lmtime.config.decoders import Decoder
from lmtime.cost import decoders, precision, vocabulary
from lmtime.cost.precision import Precision
from lmtime.cost.step import group_ms
from lmtime.errors import UsageError
from lmtime.hardware import Gpu

N_HALVINGS = 60
MOST_TOKENS = 2**20


def crossing(
    formula: Callable[[float], float],
    level: float,
    ends: tuple[float, float],
    of: str,
) -> float:
    """Where between two sizes a formula that only rises, or only falls, reaches a level.

    of: what the formula gives and over what, for the sentence where it is never reached.
    """
    low, high = ends
    at_low, at_high = formula(low), formula(high)
    if not min(at_low, at_high) <= level <= max(at_low, at_high):
        raise UsageError(
            f"{of} goes from {at_low:.4g} at {low:,.0f} to {at_high:.4g} at {high:,.0f} "
            f"and never is {level:.4g}: ask for something between"
        )
    for _ in range(N_HALVINGS):
        middle = sqrt(low * high)
        if (formula(middle) <= level) == (at_low <= at_high):
            low = middle
        else:
            high = middle
    return sqrt(low * high)


def vocabulary_ms(gpu: Gpu, hidden_size: int, batch_size: float, rule: str) -> Callable:
    """From a vocabulary to the predicted step in fp32; rule: full, fixed or scaled (cutoffs)."""

    def step_ms(vocab_size: float) -> float:
        sizes = (hidden_size, vocab_size, batch_size)
        rows = (
            vocabulary.full_rows(*sizes)
            if rule == "full"
            else vocabulary.adaptive_rows(*sizes, int(rule == "scaled"))
        )
        return sum(group_ms(rows, gpu.fp32_flops_per_s, gpu.bytes_per_s).values())

    return step_ms


def affordable_vocabulary(
    budget_ms: float, gpu: Gpu, hidden_size: int, batch_size: float, rule: str
) -> float:
    """The vocabulary with which a step takes `budget_ms` by the roofline, fp32."""
    low = vocabulary.SMALLEST if rule != "fixed" else vocabulary.CUTOFFS[-1] + 1
    step_ms = vocabulary_ms(gpu, hidden_size, batch_size, rule)
    of = f"the step in ms over the words of the vocabulary on a {gpu.title}"
    return crossing(step_ms, budget_ms, (low, vocabulary.LARGEST), of)


def launch_bound_tokens(
    gpu: Gpu, chosen: Precision, hidden_size: int, vocab_size: int, seq_len: int = 128
) -> float:
    """Tokens in a step below which launching its operators takes longer than they do: estimate."""
    flops_per_s = gpu.flops_per_s(chosen.rate)

    def shape(n_tokens: float) -> Any:
        return vocabulary.network(hidden_size, vocab_size, n_tokens / seq_len)

    def step_ms(n_tokens: float) -> float:
        rows = precision.step_rows(shape(n_tokens), chosen)
        return sum(group_ms(rows, flops_per_s, gpu.bytes_per_s).values())

    floor_ms = precision.launch_ms_of(shape(1), chosen)
    of = f"the step in ms over its tokens on a {gpu.title}"
    return crossing(step_ms, floor_ms, (1, MOST_TOKENS), of)


def tokens_for_share(
    share: float, decoder: Decoder, causal: int = 1, ends: tuple[float, float] = (1, MOST_TOKENS)
) -> float:
    """Length of the sequence at which the output layer has this share of the forward FLOPs."""

    def share_at(seq_len: float) -> float:
        return decoders.head_share(decoder, seq_len, causal)

    return crossing(
        share_at, share, ends, f"the output layer's share over the tokens of {decoder.name}"
    )
