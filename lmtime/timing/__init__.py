"""Measuring: the clock, when to stop, and who owns which part of a step."""

import os

os.environ.setdefault("KINETO_LOG_LEVEL", "99")  # torch.profiler tells of its starts and stops

from lmtime.timing.breakdown import Breakdown, Span, measure, record_step
from lmtime.timing.clock import Clock, CudaClock, WallClock, clock_for
from lmtime.timing.ownership import OPTIMIZER, OUTSIDE, Ownership, region
from lmtime.timing.profiling import profile
from lmtime.timing.timer import StopRule, time_once, time_step, warm_up

__all__ = [
    "OPTIMIZER",
    "OUTSIDE",
    "Breakdown",
    "Clock",
    "CudaClock",
    "Ownership",
    "Span",
    "StopRule",
    "WallClock",
    "clock_for",
    "measure",
    "profile",
    "record_step",
    "region",
    "time_once",
    "time_step",
    "warm_up",
]
