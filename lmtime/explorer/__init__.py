"""Charts with sliders: the formulas of `cost`, traced into the page by Altair parameters.

There is no second implementation: the functions that compute numbers are called with parameters
in place of numbers, and what comes out is the expression that the page evaluates. Only what a
search found is looked up, in a table.
"""

from lmtime.cost.step import GROUPS
from lmtime.explorer.decoders import decoder_explorer
from lmtime.explorer.devices import device_explorer
from lmtime.explorer.fronts import front_explorer
from lmtime.explorer.gpus import gpu_explorer
from lmtime.explorer.growth import group_ms, growth_explorer
from lmtime.explorer.partitions import partition_explorer
from lmtime.explorer.tracing import expression
from lmtime.explorer.vocabulary import vocabulary_explorer

__all__ = [
    "GROUPS",
    "decoder_explorer",
    "device_explorer",
    "expression",
    "front_explorer",
    "gpu_explorer",
    "group_ms",
    "growth_explorer",
    "partition_explorer",
    "vocabulary_explorer",
]
