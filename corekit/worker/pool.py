"""The rank's threads for native code. Knows no kernel; the threads themselves are in `csrc/pool`."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from ._pool import Pool

SPIN = 200
"""Pauses that every wait begins with, a few microseconds. How much longer it spins before it sleeps is learnt (csrc/pool)."""


class NativePool:
    """A `ThreadPool`. Pickled as its number of threads: another process has threads of its own."""

    def __init__(self, num_threads: int) -> None:
        self._num_threads = num_threads
        self._pool: Pool | None = None
        self._process = 0

    @property
    def num_threads(self) -> int:
        return self._num_threads

    @property
    def address(self) -> int:
        if self._pool is None:
            from ._pool import Pool

            self._pool, self._process = Pool(self._num_threads, SPIN), os.getpid()
        if self._process != os.getpid():  # whoever ran a job on it would wait for threads that are not there
            raise RuntimeError(
                f"the thread pool was made in process {self._process}, and a fork copies no threads. Make the engine in the process that uses it, "
                'or start processes by the method "spawn".'
            )
        return self._pool.address

    def __reduce__(self) -> tuple[type[NativePool], tuple[int]]:
        return NativePool, (self._num_threads,)


def open_pool(num_threads: int) -> NativePool | None:
    """None where corekit was installed without native code."""
    try:
        from . import _pool  # noqa: F401
    except ImportError:
        return None
    return NativePool(num_threads)


def computes_bfloat16() -> bool:
    """Whether this processor multiplies bfloat16 numbers itself; elsewhere they are no faster than float32, only smaller."""
    try:
        from ._pool import has_bfloat16
    except ImportError:
        return False
    return has_bfloat16()
