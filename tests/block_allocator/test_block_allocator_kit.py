"""The kit on our own layers, and on right layers of the tests' own."""

from __future__ import annotations

from counting_layer import Counting
from host_layer import HostLayer

from corekit.api import Provider
from corekit.testing import BlockAllocatorKit
from corekit.testing.prefix_cache import PlainPrefixCache

COUNTING = Provider(name="counting", api=1, summary="counts the blocks that are taken", build=lambda context, options: Counting(context.inner))
CACHE = Provider(name="plain-cache", api=1, summary="keeps what was given back findable", build=lambda context, options: PlainPrefixCache(context.inner))
HOST = Provider(name="host", api=1, summary="parks blocks on the host", build=lambda context, options: HostLayer(context.inner, context.journal, 6))


class TestFreeList(BlockAllocatorKit):
    provider = "free-list"


class TestCounting(BlockAllocatorKit):
    provider = COUNTING


class TestPrefixCache(BlockAllocatorKit):
    provider = CACHE
    abilities = frozenset({"prefix_cache", "eviction_sink", "audit"})


class TestHostOverFreeList(BlockAllocatorKit):
    provider = HOST
    abilities = frozenset({"swap"})


class TestHostOverCache(BlockAllocatorKit):
    provider = HOST
    beneath = (CACHE, "free-list")
    abilities = frozenset({"swap", "prefix_cache"})
