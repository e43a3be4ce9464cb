"""What a network that one device chose costs on another. NumPy only."""

from __future__ import annotations

import numpy as np

from lmtime.pareto.dominance import non_dominated


def excess_latency(chosen_on: np.ndarray, run_on: np.ndarray, quality: np.ndarray) -> np.ndarray:
    """(n_front,): how much longer, as a share, the chosen network takes than the best one there.

    chosen_on, run_on: latencies of the same networks on two devices, quality: the more the better,
    (n_networks,) each. One value for each member of the front of `run_on`: of the networks at
    least as good as the member, the fastest by `chosen_on`, of equals the best, runs in its place.
    """
    excess = []
    for best in np.flatnonzero(non_dominated(np.stack([run_on, quality], 1), ["min", "max"])):
        good = np.flatnonzero(quality >= quality[best])
        chosen = good[np.lexsort((-quality[good], chosen_on[good]))[0]]
        excess.append(run_on[chosen] / run_on[best] - 1)
    return np.array(excess)
