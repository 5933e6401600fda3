"""Options of lru-prefix, with their bounds. Light: importing it imports no layer."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True, slots=True, kw_only=True)
class LruPrefixOptions:
    """Plain values as written in TOML, each within its bounds. Raises ValueError with every problem at once."""

    max_retained: float = 0.25
    """Most of the pool that requests may retain (`cache_retention`), as a share, rounded down to whole blocks: 0 to 0.9; 0: retention is ignored."""
    sample_every: int = 64
    """One published block in so many, on average, is watched for the statistics of residency and reuse; 0 to 2**20; 0: none."""

    def __post_init__(self) -> None:
        found = [
            *_bounded("max_retained", self.max_retained, float, 0.9, "a share of the pool; the rest stays for those who ask for nothing"),
            *_bounded("sample_every", self.sample_every, int, 2**20, "one block in so many is watched; 0 watches none"),
        ]
        if found:
            raise ValueError("out of bounds: " + "; ".join(found) + ". Correct them in [block_allocator.options.lru-prefix]")


def _bounded(name: str, value: Any, kind: type[float], most: float, meaning: str) -> list[str]:
    """kind: int, for what is counted; float for any number."""
    if isinstance(value, (int, kind)) and not isinstance(value, bool) and 0 <= value <= most:
        return []
    return [f"{name} must be {'an integer ' if kind is int else ''}from 0 to {most:.7g}, got {_shown(value)} ({meaning})"]


def _shown(value: object) -> str:
    """As Python writes it, however long it is."""
    try:
        shown = repr(value)
    except ValueError:  # Python refuses to write integers of more than 4300 digits
        return f"a {type(value).__name__} too long to write"
    return shown if len(shown) <= 60 else shown[:57] + "..."
