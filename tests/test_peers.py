"""What other counters say, held to what was seen of them, beside the truth."""

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from lmtime.timing import peers
from lmtime.timing.peers import forward_flops, step_flops


class ConvTbc(nn.Module):
    """Case 1: fairseq's convolution."""

    def __init__(self):
        super().__init__()
        self.weight = nn.Parameter(torch.randn(4, 128, 256))
        self.bias = nn.Parameter(torch.zeros(256))

    def forward(self, x):
        return torch.conv_tbc(x, self.weight, self.bias, 3)


class Thrice(nn.Module):
    """Case 8: a layer with three-dimensional input, called three times."""

    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(128, 128, bias=False)

    def forward(self, x):
        return self.layer(self.layer(self.layer(x)))


class Attention(nn.Module):
    """Case 2: fused attention on a CPU."""

    def forward(self, q, k, v):
        return F.scaled_dot_product_attention(q, k, v)


def told(answers):
    return {answer.tool: answer.flops for answer in answers}


CASES = {
    # torchinfo multiplies the parameter by the positions twice: it takes it for a layer's weight
    "conv_tbc": (ConvTbc(), (torch.randn(64, 2, 128),), 35_127_296, (0, 0, 0, 4_505_075_712)),
    "thrice": (
        Thrice(), (torch.randn(2, 64, 128),), 12_582_912,
        (12_582_912, 12_582_912, 12_582_912, 2 * 98_304),
    ),
    "attention": (Attention(), tuple(torch.randn(3, 2, 4, 64, 32)), 4_194_304, (0, 0, 0, 0)),
}  # fmt: skip


@pytest.mark.parametrize("name", CASES)
def test_lmtime_tells_the_truth_and_the_others_what_they_are_known_to(name):
    model, inputs, truth, others = CASES[name]
    found = told(forward_flops(model, inputs))
    assert found.pop("lmtime") == truth
    assert tuple(found.values()) == others


def test_a_step_is_counted_by_those_that_see_a_backward_pass():
    class Loss(nn.Linear):
        def forward(self, x):
            return super().forward(x).sum()

    forward = 2 * 5 * 32 * 8
    answers = step_flops(Loss(32, 8, bias=False), (torch.randn(5, 32),))
    assert told(answers)["lmtime"] == told(answers)["FlopCounterMode"] == 2 * forward
    remarks = {answer.tool: answer.remark for answer in answers if answer.flops is None}
    assert remarks == dict.fromkeys(("fvcore", "torchinfo"), "forward only")


def test_a_tool_that_is_missing_or_fails_says_so(monkeypatch):
    def missing(*_):
        raise ImportError

    def failing(*_):
        raise RuntimeError("no such layer\nmore")

    monkeypatch.setattr(peers, "_fvcore", missing)
    monkeypatch.setattr(peers, "_torchinfo", failing)
    *_, fvcore, torchinfo = forward_flops(nn.Linear(3, 2), (torch.randn(1, 3),))
    assert (fvcore.flops, fvcore.remark) == (None, "not installed")
    assert (torchinfo.flops, torchinfo.remark) == (None, "fails: no such layer")
