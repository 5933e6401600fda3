"""What every layer owes, over free-list; with blocks watched and retained as far as it goes."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar

from corekit.testing import BlockAllocatorKit


class TestLruPrefix(BlockAllocatorKit):
    provider = "lru-prefix"
    abilities = frozenset({"prefix_cache", "eviction_sink", "retention", "forgetting", "audit"})


class TestWatched(BlockAllocatorKit):
    """Every block is watched: the laws hold at the same cost class."""

    provider = "lru-prefix"
    options: ClassVar[Mapping[str, Any]] = {"sample_every": 1}
    abilities = frozenset({"prefix_cache", "eviction_sink", "retention", "forgetting", "audit"})
