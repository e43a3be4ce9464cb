"""FLOPs and bytes from shapes alone, and the time they take at best. Standard library only."""

from lmtime.cost.gcn import gcn, parameters
from lmtime.cost.operators import Cost

__all__ = ["Cost", "gcn", "parameters"]
