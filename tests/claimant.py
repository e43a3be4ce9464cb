"""A worker of its own process: evaluates twelve keys through a storage, and notes what it did."""

import sys
import time
from pathlib import Path

from lmtime.pareto.claims import Claims, evaluate_all

KEYS = [f"sub-network {i}" for i in range(12)]


def work(storage, notes, stall, stale_after_s):
    """notes: a file with one line an evaluation. stall: a key that this worker never ends."""
    claims = Claims(storage, "twelve", {"score": "max", "ms": "min"}, stale_after_s=stale_after_s)

    def evaluate(key):
        with Path(notes).open("a", encoding="utf-8") as file:
            file.write(f"{key}\n")
        time.sleep(60 if key == stall else 0.02)
        return len(key), KEYS.index(key)

    done = evaluate_all(KEYS, evaluate, claims, poll_s=0.05)
    assert done == {key: (len(key), i) for i, key in enumerate(KEYS)}


if __name__ == "__main__":
    work(*sys.argv[1:4], float(sys.argv[4]))
