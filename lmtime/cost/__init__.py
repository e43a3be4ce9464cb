"""FLOPs and bytes from shapes alone, and the time they take at best. Standard library only."""

from lmtime.cost.gcn import gcn, parameters
from lmtime.cost.operators import Cost
from lmtime.cost.roofline import Band, band_ms, shares
from lmtime.cost.zipf import tail_tokens

__all__ = ["Band", "Cost", "band_ms", "gcn", "parameters", "shares", "tail_tokens"]
