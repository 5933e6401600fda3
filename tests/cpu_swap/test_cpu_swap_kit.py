"""The kit of the slot on `cpu-swap`, over a bottom and over a prefix cache, with host pools of several sizes."""

from __future__ import annotations

from corekit.api import Provider
from corekit.testing import BlockAllocatorKit
from corekit.testing.prefix_cache import PlainPrefixCache

CACHE = Provider(name="plain-cache", api=1, summary="keeps what was given back findable", build=lambda context, options: PlainPrefixCache(context.inner))


class TestOverFreeList(BlockAllocatorKit):
    provider = "cpu-swap"
    options = {"num_host_blocks": 8}  # noqa: RUF012
    abilities = frozenset({"swap", "audit"})


class TestOverACache(BlockAllocatorKit):
    provider = "cpu-swap"
    options = {"num_host_blocks": 8}  # noqa: RUF012
    beneath = (CACHE, "free-list")
    abilities = frozenset({"swap", "prefix_cache", "audit"})


class TestManySlots(BlockAllocatorKit):
    provider = "cpu-swap"
    options = {"num_host_blocks": 64, "cache_share": 0.5}  # noqa: RUF012
    beneath = (CACHE, "free-list")
    abilities = frozenset({"swap", "prefix_cache", "audit"})


class TestNoSlots(BlockAllocatorKit):
    provider = "cpu-swap"
    options = {"swap_space_gib": 0.0}  # noqa: RUF012
    beneath = (CACHE, "free-list")
    abilities = frozenset({"prefix_cache", "audit"})
