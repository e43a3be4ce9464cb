"""Memory pages that stay with the process: on a CPU, half of what makes steps unlike each other.

glibc gives arrays above 32 MiB, and the end of its heap, back to the system when they are freed;
at the next step their pages are new ones, which the system clears and maps one by one, and an
update that meets them runs at half the rate. A GPU's caching allocator, and allocators such as
jemalloc and tcmalloc that PyTorch's guide to CPUs advises, keep them. So can glibc.
"""

from __future__ import annotations

import ctypes
import gc
import sys
from collections.abc import Callable

import torch

# <malloc.h>: parameters of mallopt
_M_TRIM_THRESHOLD, _M_MMAP_MAX = -1, -4
_NEVER = 2**31 - 1
_kept = False


def keep_pages() -> bool:
    """Make this process keep every page that it frees, from now on; whether that was possible.

    Only where the C library is glibc. It holds for the rest of the process, whose memory then
    does not shrink any more.
    """
    global _kept
    if mallopt := _of_c("mallopt"):
        _kept = bool(mallopt(_M_MMAP_MAX, 0)) and bool(mallopt(_M_TRIM_THRESHOLD, _NEVER))
    return _kept


def _of_c(name: str) -> Callable[..., int] | None:
    """A function of the C library, on Linux, and where it has one of this name."""
    return getattr(ctypes.CDLL(None), name, None) if sys.platform.startswith("linux") else None


def release_pages() -> None:
    """Give the memory that is free now back: of glibc to the system, of torch to the GPU."""
    gc.collect()
    torch.cuda.empty_cache()  # nothing where no GPU was used
    if trim := _of_c("malloc_trim"):
        trim(0)


def are_kept() -> bool:
    """Whether `keep_pages` was called, and could."""
    return _kept
