"""Plausibly broken layers, each with the law of the kit that must catch it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from cache_mutants import CACHE_MUTANTS
from counting_layer import Counting
from host_layer import HostLayer
from host_mutants import HOST_MUTANTS

from corekit.api import AllocatorStats, BlockAllocator, BlockKey, Blocks, Provider
from corekit.builtin.free_list import FreeList
from corekit.testing.prefix_cache import PlainPrefixCache

# Bottoms


class FromZero(FreeList):
    """Hands out the null block."""

    def __init__(self, num_blocks: int) -> None:
        super().__init__(num_blocks)
        self._next = 0
        self._num_blocks -= 1


class KeepsOne(FreeList):
    """Off by one: the last block cannot be taken."""

    def take(self, count: int) -> Blocks | None:
        return None if count >= self.available and count > 1 else super().take(count)


class Greedy(FreeList):
    """Takes what is there before it sees that it is not enough."""

    def take(self, count: int) -> Blocks | None:
        if count > self.available:
            self._given.clear()
            self._next = self._num_blocks + 1
            return None
        return super().take(count)


class Forgets(FreeList):
    """A slip in give: of a table only the first block comes back."""

    def give(self, blocks: Blocks) -> None:
        super().give(Blocks(blocks.ids[:1]))


class CountsAll(FreeList):
    def stats(self) -> AllocatorStats:
        return AllocatorStats(num_free=self._num_blocks)


class Sorts(FreeList):
    """Hands out low blocks first, by sorting."""

    def take(self, count: int) -> Blocks | None:
        self._given.sort(reverse=True)
        return super().take(count)


class Twice(FreeList):
    """A long table is put back twice."""

    def give(self, blocks: Blocks) -> None:
        super().give(blocks if len(blocks.ids) < 4 else Blocks(blocks.ids + blocks.ids[:1]))


class CountsGives(FreeList):
    """Keeps a count for its audit, and forgets empty-handed takes and long gives."""

    def __init__(self, num_blocks: int) -> None:
        super().__init__(num_blocks)
        self.num_used = 0

    def take(self, count: int) -> Blocks | None:
        taken = super().take(count)
        self.num_used += len(taken.ids) if taken else 0
        return taken

    def give(self, blocks: Blocks) -> None:
        super().give(blocks)
        self.num_used -= min(3, len(blocks.ids))

    def audit(self) -> list[str]:
        return [f"{self.num_used} blocks are used"] if self.num_used else []


# Layers


class NoInner(Counting):
    """Keeps the layer beneath under a name of its own, so that nobody else finds it."""

    def __init__(self, inner: BlockAllocator) -> None:
        self._below = inner

    @property
    def prefix_cache(self) -> bool:
        return getattr(self._below, "prefix_cache", False)

    @property
    def available(self) -> int:
        return self._below.available

    def take(self, count: int) -> Blocks | None:
        return self._below.take(count)

    def give(self, blocks: Blocks) -> None:
        self._below.give(blocks)


class HidesCache(Counting):
    prefix_cache = False  # type: ignore[assignment]


class HidesSwap(Counting):
    """Fit for a stack that swaps nothing, and put above one that does."""


class Backwards(Counting):
    def give(self, blocks: Blocks) -> None:
        self.inner.give(Blocks(blocks.ids[::-1]))


class DropsRetention(Counting):
    """Written when publish had two arguments."""

    def publish(self, block: int, key: BlockKey, retain_until: float | None = None) -> bool:
        return bool(self.inner.publish(block, key))


@dataclass(frozen=True)
class Mutant:
    part: type
    law: str

    @property
    def kit(self) -> str:
        """Which stack it is tried on."""
        if self.part is HidesSwap:
            return "above"
        return next(
            name for name, kind in (("bottom", FreeList), ("layer", Counting), ("cache", PlainPrefixCache), ("host", HostLayer)) if issubclass(self.part, kind)
        )

    @property
    def provider(self) -> Provider[Any]:
        def build(context: Any, options: None) -> Any:
            if self.kit == "bottom":
                return self.part(context.num_blocks)
            if self.kit == "host":
                return self.part(context.inner, context.journal, 6)
            return self.part(context.inner, context.clock) if self.kit == "cache" else self.part(context.inner)

        return Provider(name="mutant", api=1, summary="a planted fault for the kit to find", build=build)


MUTANTS = [
    Mutant(FromZero, "test_the_whole_pool_is_handed_out_and_nothing_else"),
    Mutant(KeepsOne, "test_available_is_exact"),
    Mutant(Greedy, "test_a_refusal_changes_nothing"),
    Mutant(Forgets, "test_what_is_given_comes_back"),
    Mutant(CountsAll, "test_stats_add_up"),
    Mutant(Sorts, "test_the_cost_of_a_block_does_not_grow_with_the_pool"),
    Mutant(Twice, "test_every_request_reads_its_own_tokens"),
    Mutant(CountsGives, "test_everything_is_back_at_the_end"),
    Mutant(NoInner, "test_a_layer_stands_on_the_one_beneath"),
    Mutant(HidesCache, "test_a_layer_passes_on_the_prefix_cache"),
    Mutant(HidesSwap, "test_a_layer_passes_on_swapping"),
    Mutant(Backwards, "test_order_of_a_given_table_is_kept"),
    Mutant(DropsRetention, "test_a_layer_passes_on_retention"),
    *(Mutant(part, law) for part, law in (*CACHE_MUTANTS, *HOST_MUTANTS)),
]
