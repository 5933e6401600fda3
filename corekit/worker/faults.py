"""Finds the row that makes a batched part fail, so that its neighbours go on. Knows nothing of what the part does.

Running rows again is safe: KV writes hit only slots that a row owns, and draws are pure functions.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import TypeVar

import torch

T = TypeVar("T")
log = logging.getLogger(__name__)

_DEVICE_WORDS = ("CUDA error", "CUDA driver error", "CUBLAS_STATUS", "cuDNN error", "CUDNN_STATUS", "NCCL error")


def is_device_fault(error: Exception) -> bool:
    """The device, not a row, has failed: nothing that runs on it again can be trusted.

    Memory that an allocator refuses is none: nothing was touched, and half the rows may need no more than there is.
    """
    if isinstance(error, torch.AcceleratorError):
        return True
    return isinstance(error, RuntimeError) and not isinstance(error, torch.OutOfMemoryError) and any(word in str(error) for word in _DEVICE_WORDS)


def isolate(count: int, run: Callable[[int, int], T], name_part: Callable[[], str]) -> tuple[list[T], dict[int, str]]:
    """`run(first, end)` over 0..count, in halves where it raises: (results in order, row -> message for rows that fail alone).

    Device faults are raised. What was refused memory runs in halves like everything else: a row that gets none alone has failed.
    """
    results: list[T] = []
    faults: dict[int, str] = {}
    todo = [(0, count)] if count else []
    while todo:
        first, end = todo.pop()
        try:
            results.append(run(first, end))
        except Exception as error:
            if is_device_fault(error):
                raise
            if end - first == 1:
                faults[first] = f"{name_part()} raised {type(error).__name__}: {error}"
                log.debug("%s raised", name_part(), exc_info=error)
            else:
                middle = (first + end) // 2
                todo += [(middle, end), (first, middle)]
    return results, faults
