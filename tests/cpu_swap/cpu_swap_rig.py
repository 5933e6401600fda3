"""Stacks with the swap space on top, beneath a ledger that holds every call to the contract and knows what each place holds."""

from __future__ import annotations

from collections.abc import Sequence

import corekit_lru_prefix
from corekit_cpu_swap.layer import CpuSwap

from corekit.api import BlockAllocator, BlockKey, BlockRef, BuildContext, PrefixMatch, PrefixQuery
from corekit.builtin.free_list import FreeList
from corekit.testing.block_calls import Clock, Journal, key_chain
from corekit.testing.block_ledger import Ledger
from corekit.testing.prefix_cache import PlainPrefixCache

__all__ = ["BENEATH", "CACHES", "Asked", "Rig", "Written", "key_chain"]


class Written(Journal):
    """A journal that remembers how many copies went to the host and back, after they were made too."""

    def __init__(self) -> None:
        super().__init__()
        self.num_out = self.num_in = 0

    def copy(self, source: BlockRef, target: BlockRef) -> None:
        super().copy(source, target)
        self.num_out += target.on_host
        self.num_in += source.on_host


class Silent:
    """A prefix cache that tells nobody what it evicts."""

    def __init__(self, inner: BlockAllocator) -> None:
        self.inner = PlainPrefixCache(inner)

    def __getattr__(self, name: str) -> object:
        if name == "set_sink":
            raise AttributeError(name)
        return getattr(self.inner, name)


class Asked:
    """Hands everything on; counts the questions, and remembers the groups that they were asked in."""

    def __init__(self, inner: BlockAllocator) -> None:
        self.inner = inner
        self.num_finds = 0
        self.groups: set[int] = set()

    def __getattr__(self, name: str) -> object:
        return getattr(self.inner, name)

    def find(self, query: PrefixQuery) -> PrefixMatch:
        self.num_finds += 1
        self.groups.add(query.group)
        return self.inner.find(query)


def _lru_prefix(inner: BlockAllocator) -> BlockAllocator:
    (provider,) = corekit_lru_prefix.corekit_register_block_allocators()
    assert provider.options is not None
    return provider.build(BuildContext(inner=inner), provider.options())


BENEATH = {"nothing": lambda inner: inner, "lru-prefix": _lru_prefix, "plain": PlainPrefixCache, "silent": Silent}
"""What stands between the swap space and the free list."""
CACHES = ("lru-prefix", "plain", "silent")


class Rig(Ledger):
    """The core's side of a stack; what happens on the host besides."""

    journal: Written

    def __init__(self, num_blocks: int = 8, *, host: int = 8, max_cached: int | None = None, beneath: str = "lru-prefix") -> None:
        inner = BENEATH[beneath](FreeList(num_blocks))
        self.layer = CpuSwap(inner, journal := Written(), num_slots=host, max_cached=host if max_cached is None else max_cached)
        super().__init__(self.layer, journal, num_blocks, Clock())

    @property
    def host(self) -> tuple[int, int]:
        """Host blocks that are used, and how many of them nobody parked."""
        stats = self.stack.stats()
        return stats.num_host_used, stats.num_host_cached

    def park(self, keys: Sequence[BlockKey], num_private: int = 0) -> tuple[object, list[int]]:
        """A request with these keys, and private blocks behind them, that is preempted: its ticket, and the blocks that it had."""
        table = self.fill(keys) + (self.take(num_private) or [])
        ticket = self.swap_out(table)
        assert ticket is not None
        self.give(table)
        return ticket, table

    def evict(self) -> None:
        """Everything idle makes room for somebody else, who ends at once."""
        taken = self.take(self.stack.available)
        assert taken is not None
        self.give(taken)

    def places(self, keys: Sequence[BlockKey]) -> str:
        """Where the found ones of the keys lie: d for the device, h for the host."""
        return "".join("h" if cached.place.on_host else "d" for cached in self.find(keys).blocks)
