"""The most memory that a step has allocated at once, beside what lives before it."""

from __future__ import annotations

import torch

from lmtime.timing.timer import Step


def peak_bytes(step: Step, device: str) -> int:
    """Of one call, told by the allocator; call the step once before.

    Nothing that lives before may be freed by the step: the profiler does not always see it.
    """
    if device == "cuda":
        torch.cuda.synchronize()
        torch.cuda.reset_peak_memory_stats()
        before = torch.cuda.memory_allocated()
        step()
        torch.cuda.synchronize()
        return torch.cuda.max_memory_allocated() - before
    with torch.profiler.profile(profile_memory=True) as profiler:
        step()
    events = profiler.profiler.kineto_results.events()
    changes = [(e.start_ns(), e.nbytes()) for e in events if e.name() == "[memory]"]
    live = peak = 0
    for _, change in sorted(changes, key=lambda change: change[0]):
        live += change
        peak = max(peak, live)
    return peak
