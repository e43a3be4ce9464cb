"""What other counters say about the same forward pass or step, in FLOPs.

Tools that count multiply-adds are given twice. A tool that is not installed, or that fails, says
so in place of a number.
"""

from __future__ import annotations

import contextlib
import io
import logging
import warnings
from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.profiler import ProfilerActivity
from torch.utils.flop_counter import FlopCounterMode

from lmtime.timing.counters import count
from lmtime.timing.ownership import Ownership


@dataclass(frozen=True)
class Answer:
    """What one tool says: FLOPs, or why there are none."""

    tool: str
    flops: int | None
    remark: str = ""


def forward_flops(model: nn.Module, inputs: tuple[Tensor, ...]) -> list[Answer]:
    """One forward pass of `model(*inputs)` as each tool counts it, lmtime first."""

    def forward() -> None:
        model(*inputs)

    tools: dict[str, Callable[[], int]] = {
        "lmtime": lambda: _lmtime(model, forward),
        "torch.profiler": lambda: _profiler(forward),
        "FlopCounterMode": lambda: _flop_counter_mode(forward),
        "fvcore": lambda: 2 * _fvcore(model, inputs),
        "torchinfo": lambda: 2 * _torchinfo(model, inputs),
    }
    return [_answer(name, tool) for name, tool in tools.items()]


def step_flops(model: nn.Module, inputs: tuple[Tensor, ...]) -> list[Answer]:
    """Forward and backward of the loss `model(*inputs)`; two of the tools count no backward."""

    def step() -> None:
        model(*inputs).backward()

    tools: dict[str, Callable[[], int]] = {
        "lmtime": lambda: _lmtime(model, step),
        "torch.profiler": lambda: _profiler(step),
        "FlopCounterMode": lambda: _flop_counter_mode(step),
    }
    none = [Answer(name, None, "forward only") for name in ("fvcore", "torchinfo")]
    return [*(_answer(name, tool) for name, tool in tools.items()), *none]


def _answer(name: str, tool: Callable[[], int]) -> Answer:
    try:
        with warnings.catch_warnings(), contextlib.redirect_stdout(io.StringIO()):
            warnings.simplefilter("ignore")
            return Answer(name, int(tool()))
    except ImportError:
        return Answer(name, None, "not installed")
    except (RuntimeError, TypeError, ValueError, NotImplementedError) as error:
        return Answer(name, None, f"fails: {str(error).splitlines()[0][:80]}")


def _lmtime(model: nn.Module, step: Callable[[], object]) -> int:
    return count(step, Ownership(model, {})).total.flops


def _profiler(step: Callable[[], object]) -> int:
    """The sum over its events, as its table shows them with `with_flops=True`."""
    with torch.profiler.profile(
        activities=[ProfilerActivity.CPU], record_shapes=True, with_flops=True
    ) as found:
        step()
    return sum(event.flops for event in found.key_averages())


def _flop_counter_mode(step: Callable[[], object]) -> int:
    with FlopCounterMode(display=False) as found:
        step()
    return found.get_total_flops()


def _fvcore(model: nn.Module, inputs: tuple[Tensor, ...]) -> int:
    from fvcore.nn import FlopCountAnalysis

    logging.getLogger("fvcore").setLevel(logging.ERROR)
    analysis = FlopCountAnalysis(model, inputs).unsupported_ops_warnings(False)
    return analysis.uncalled_modules_warnings(False).total()


def _torchinfo(model: nn.Module, inputs: tuple[Tensor, ...]) -> int:
    from torchinfo import summary

    return summary(model, input_data=list(inputs), verbose=0).total_mult_adds
