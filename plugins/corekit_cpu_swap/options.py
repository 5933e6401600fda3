"""What a user may set for the swap space, and the bounds. Light: importing it imports no part."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

MAX_GIB = 1 << 16
MAX_HOST_BLOCKS = 1 << 30
MAX_SHOWN = 60
"""Characters of a wrong value in a message."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CpuSwapOptions:
    """Plain values as written in TOML, each within its bounds. Raises ValueError with every problem at once."""

    swap_space_gib: float | None = None
    """Memory of the host for blocks, 0 to 65536. Not set: 4, but at most a quarter of what the host has available (on a CPU, beside the pool).

    0: none, unless `num_host_blocks` says how many."""
    num_host_blocks: int = 0
    """Host blocks, 0 to 1073741824; 0: as many as `swap_space_gib` holds."""
    cache_share: float = 1.0
    """Share of the host blocks that may keep what nobody parked, 0 to 1: evicted prefixes, until somebody parks. 0: parked requests alone."""

    def __post_init__(self) -> None:
        found = [
            *([] if self.swap_space_gib is None else _bounded("swap_space_gib", self.swap_space_gib, MAX_GIB)),
            *_bounded("num_host_blocks", self.num_host_blocks, MAX_HOST_BLOCKS, int),
            *_bounded("cache_share", self.cache_share, 1),
        ]
        if found:
            raise ValueError("; ".join(found))


def _bounded(name: str, value: Any, most: float, *kinds: type) -> list[str]:
    """kinds: int, for what is counted; any number otherwise."""
    right = isinstance(value, kinds or (int, float)) and not isinstance(value, bool)
    if not right or not 0 <= value <= most:
        return [f"{name} must be {'an integer' if kinds else 'a number'} from 0 to {most}, got {_shown(value)}"]
    return []


def _shown(value: Any) -> str:
    """However long it is."""
    try:
        text = repr(value)
    except ValueError:  # Python writes no integer of more than some thousands of digits
        return "an integer of thousands of digits"
    return text if len(text) <= MAX_SHOWN else text[: MAX_SHOWN - 3] + "..."
