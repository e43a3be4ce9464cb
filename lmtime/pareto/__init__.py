"""Pareto fronts: which points stand out, how much they cover, and how sure that is. NumPy only."""
