"""The threads of one rank, for parts with native code of their own. Knows no kernel."""

from __future__ import annotations

from pathlib import Path
from typing import Protocol


class ThreadPool(Protocol):
    """One pool for all native parts of a rank: two pools on the same cores would wait for each other, spinning.

    Native code runs on it through a C struct, whose header lies in `include_dir()`: `#include <corekit/pool.h>`.
    """

    @property
    def num_threads(self) -> int:
        """The calling thread included."""
        ...

    @property
    def address(self) -> int:
        """Of the `corekit_pool`, valid as long as this object lives. Its threads start when it is first asked for."""
        ...


def include_dir() -> Path:
    """The folder of C headers that native parts compile against."""
    return Path(__file__).parent / "include"
