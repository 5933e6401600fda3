"""Memory of a KV pool: taken from the system page by page as it is written, in large pages from where a pool is no longer small."""

from __future__ import annotations

import contextlib
import mmap

import torch
from torch import Tensor

LARGE = 2 << 20
"""Blocks lie anywhere in a pool, and looking up small pages costs a third of the time that reading them takes. But a large page is there
as a whole once a byte of it is: a pool's first bytes, all that a single short request touches, stay in small ones."""


def page_aligned(num_bytes: int) -> Tensor:
    """Bytes, zero until they are written."""
    if not num_bytes:
        return torch.empty(0, dtype=torch.uint8)
    flags = {"flags": mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS} if hasattr(mmap, "MAP_PRIVATE") else {}
    memory = mmap.mmap(-1, num_bytes, **flags)
    if hasattr(mmap, "MADV_HUGEPAGE") and num_bytes > LARGE:
        with contextlib.suppress(OSError):  # a kernel without them
            memory.madvise(mmap.MADV_HUGEPAGE, LARGE, num_bytes - LARGE)
    return torch.frombuffer(memory, dtype=torch.uint8)
