"""The kit on our own layers, and on right layers of the tests' own."""

from __future__ import annotations

import sys
from collections import deque
from collections.abc import Sequence
from pathlib import Path

import pytest
from counting_layer import COUNTING, Counting, block
from host_layer import HostLayer

from corekit.api import AllocatorStats, BlockKey, Blocks, BuildContext, PrefixMatch, PrefixQuery, Provider, Ticket
from corekit.compose.composition import find_catalog
from corekit.compose.config import load
from corekit.testing import BlockAllocatorKit
from corekit.testing.prefix_cache import PlainPrefixCache

CACHE = Provider(
    name="plain-cache", api=1, summary="keeps what was given back findable", build=lambda context, options: PlainPrefixCache(context.inner, context.clock)
)
HOST = Provider(name="host", api=1, summary="parks blocks on the host", build=lambda context, options: HostLayer(context.inner, context.journal, 6))


class TestFreeList(BlockAllocatorKit):
    provider = "free-list"


class TestCounting(BlockAllocatorKit):
    provider = COUNTING


class TestPrefixCache(BlockAllocatorKit):
    provider = CACHE
    abilities = frozenset({"prefix_cache", "eviction_sink", "forgetting", "audit", "retention"})


class Forgetful(PlainPrefixCache):
    """Findable means: while somebody uses it. Right, if not of much use."""

    def give(self, blocks: Blocks) -> None:
        for given in blocks.ids:
            if given in self._key_of:
                self._forget(given)
        self.inner.give(blocks)


class TestForgetfulCache(BlockAllocatorKit):
    provider = Provider(name="forgetful", api=1, summary="findable while it is used", build=lambda context, options: Forgetful(context.inner, context.clock))
    abilities = frozenset({"prefix_cache"})


class OldestFirst:
    """A bottom that hands out what was given back longest ago."""

    def __init__(self, context: BuildContext) -> None:
        if context.inner is not None:
            raise ValueError("it is a bottom")
        assert context.num_blocks is not None
        self.free = deque(range(1, context.num_blocks + 1))

    @property
    def available(self) -> int:
        return len(self.free)

    def take(self, count: int) -> Blocks | None:
        return Blocks(tuple(self.free.popleft() for _ in range(count))) if count <= len(self.free) else None

    def give(self, blocks: Blocks) -> None:
        self.free.extend(blocks.ids)

    def find(self, query: PrefixQuery) -> PrefixMatch:
        return PrefixMatch()

    def hold(self, match: PrefixMatch) -> Blocks | None:
        return None if match.blocks else Blocks()

    def publish(self, block: int, key: BlockKey, retain_until: float | None = None) -> bool:
        return True

    def stats(self) -> AllocatorStats:
        return AllocatorStats(num_free=len(self.free))


class TestOldestFirst(BlockAllocatorKit):
    provider = Provider(name="oldest-first", api=1, summary="a bottom of another order", build=lambda context, options: OldestFirst(context))


class TestHostOverFreeList(BlockAllocatorKit):
    provider = HOST
    abilities = frozenset({"swap"})


class TestHostOverCache(BlockAllocatorKit):
    provider = HOST
    beneath = (CACHE, "free-list")
    abilities = frozenset({"swap", "prefix_cache", "audit", "retention", "reservation", "shared_slots", "forgetting"})


class CountingSwap(Counting):
    """The layer of the page where it stands above one that swaps."""

    @property
    def num_host_blocks(self) -> int:
        return self.inner.num_host_blocks

    def swap_out(self, blocks: Blocks, keys: Sequence[BlockKey | None]) -> Ticket | None:
        return self.inner.swap_out(blocks, keys)

    def swap_in(self, ticket: Ticket) -> Blocks | None:
        return self.inner.swap_in(ticket)

    def drop(self, ticket: Ticket) -> None:
        self.inner.drop(ticket)


class TestCountingOverAll(BlockAllocatorKit):
    provider = Provider(name="counting-swap", api=1, summary="counts above a layer that swaps", build=lambda context, options: CountingSwap(context.inner))
    beneath = (HOST, CACHE, "free-list")
    abilities = frozenset({"swap", "prefix_cache"})


def test_the_page_shows_how_to_use_the_layer(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "counting.py").write_text(block("counting.py"), "utf-8")
    (tmp_path / "counting.toml").write_text(block("counting.toml"), "utf-8")
    monkeypatch.syspath_prepend(str(tmp_path))
    config = load(tmp_path / "counting.toml", environ={})
    assert find_catalog(config).find("block_allocator", "counting", "here").plugin.module == "counting"
    assert config.block_allocator.stack == ("counting", "free-list")
    monkeypatch.delitem(sys.modules, "counting")
