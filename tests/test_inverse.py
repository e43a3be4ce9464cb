"""An answer put back gives the level that was asked for; where there is none, a sentence."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lmtime import inverse
from lmtime.config.decoders import DECODERS
from lmtime.cost import decoders, precision, vocabulary
from lmtime.cost.precision import PRECISIONS
from lmtime.cost.step import group_ms
from lmtime.errors import UsageError
from lmtime.hardware import GPUS, find_gpu

V100 = find_gpu("v100-sxm2")


@given(st.floats(0.01, 50), st.sampled_from([1, -1]), st.floats(0, 1))
def test_an_answer_put_back_gives_the_level(power, sign, place):
    def formula(size):
        return sign * size**power

    low, high = formula(2), formula(1_000)
    level = low + place * (high - low)
    found = inverse.crossing(formula, level, (2, 1_000), "a power of the size")
    assert 2 <= found <= 1_000
    assert formula(found) == pytest.approx(level, rel=1e-9, abs=1e-9 * abs(high - low))


@pytest.mark.parametrize("rule, ms", [("full", 15), ("full", 200), ("scaled", 15), ("fixed", 40)])
def test_an_affordable_vocabulary_takes_the_time_that_was_given(rule, ms):
    words = inverse.affordable_vocabulary(ms, V100, 256, 64, rule)
    assert inverse.vocabulary_ms(V100, 256, 64, rule)(words) == pytest.approx(ms, rel=1e-3)


def test_a_budget_out_of_range_is_refused_with_the_range():
    with pytest.raises(UsageError, match=r"Tesla V100 SXM2 goes from .* at 2,000 to .* never is 1"):
        inverse.affordable_vocabulary(1, V100, 256, 64, "full")


@pytest.mark.parametrize("gpu", ["v100-sxm2", "h100-sxm", "b200-sxm"])
def test_where_launches_rule_the_step_takes_as_long_as_they_do(gpu):
    gpu, chosen = GPUS[gpu], PRECISIONS["fp32"]
    n_tokens = inverse.launch_bound_tokens(gpu, chosen, 128, 4_096)
    shape = vocabulary.network(128, 4_096, n_tokens / 128)
    rows = precision.step_rows(shape, chosen)
    ms = sum(group_ms(rows, gpu.fp32_flops_per_s, gpu.bytes_per_s).values())
    assert ms == pytest.approx(precision.launch_ms_of(shape, chosen), rel=1e-9)


def test_launches_never_rule_a_step_that_reads_much_more_than_its_tokens():
    with pytest.raises(UsageError, match="step in ms over its tokens"):
        inverse.launch_bound_tokens(V100, PRECISIONS["fp32"], 4_096, 10**6)


def test_a_precision_that_a_gpu_lacks_is_refused():
    with pytest.raises(UsageError, match="no bf16 arithmetic"):
        inverse.launch_bound_tokens(V100, PRECISIONS["bf16"], 256, 10_000)


@pytest.mark.parametrize("causal", [0, 1])
@pytest.mark.parametrize("decoder", DECODERS, ids=lambda d: d.name)
def test_the_length_for_a_share_has_that_share(decoder, causal):
    share = 0.9 * decoders.head_share(decoder, 256, causal)
    n_tokens = inverse.tokens_for_share(share, decoder, causal)
    assert decoders.head_share(decoder, n_tokens, causal) == pytest.approx(share, rel=1e-9)
