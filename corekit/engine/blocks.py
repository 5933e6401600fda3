"""Block tables, reference counts, forks, copy-on-write, parking and the copy journal.

The only file that calls the allocator stack. Knows keys, but nothing of tokens or steps.
"""

from __future__ import annotations

import traceback
from collections.abc import Callable, Iterator, Mapping, Sequence
from types import MappingProxyType
from typing import TypeVar

from corekit.api import (
    AllocatorStats,
    BlockAllocator,
    BlockKey,
    BlockRef,
    Blocks,
    Copy,
    PrefixMatch,
    PrefixQuery,
    RequestFailed,
    SupportsAudit,
    SupportsForgetting,
    SupportsPrefixCache,
    SupportsSwap,
    Ticket,
)

NO_MATCH = PrefixMatch()
NOBODY: Mapping[int, int] = MappingProxyType({})
T = TypeVar("T")


class BrokenStackError(RuntimeError):
    """A layer of the allocator stack raised: nobody knows any more which blocks are whose, so the engine has to end."""


class CopyJournal:
    """Program order is execution order; drained by the next step that is submitted, never dropped."""

    def __init__(self) -> None:
        self._copies: list[Copy] = []

    def copy(self, source: BlockRef, target: BlockRef) -> None:
        self._copies.append(Copy(source, target))

    def drain(self) -> tuple[Copy, ...]:
        copies, self._copies = tuple(self._copies), []
        return copies


class BlockTables:
    """Invariant: refs[b] is the number of tables that list b; it is 0 exactly when the stack may hand b out.

    A block is written, and published, only while one table lists it. Otherwise a sibling could be left alone with a
    half-shared block that its leader had filled and published, and write into it.
    """

    def __init__(self, stack: BlockAllocator, journal: CopyJournal, *, block_size: int, num_blocks: int) -> None:
        self.stack = stack
        self.journal = journal
        self.block_size = block_size
        self.num_blocks = num_blocks
        self.caches_prefixes = isinstance(stack, SupportsPrefixCache) and stack.prefix_cache
        self._swap = stack if isinstance(stack, SupportsSwap) else None
        self.num_host_blocks = self._swap.num_host_blocks if self._swap is not None else 0
        self.refs = [0] * (num_blocks + 1)
        self.num_given = 0
        """Blocks that went back to the stack so far: there is no more room than that since anybody looked."""
        self.fault: BrokenStackError | None = None
        """What a layer raised, even where a policy caught it."""

    @property
    def num_available(self) -> int:
        """Blocks that the stack can hand out: free and idle ones."""
        try:
            return self.stack.available
        except Exception as error:
            raise self._broken(self._place(error, "available"), f"raised {error!r}") from error

    def span(self, num_tokens: int) -> int:
        """Blocks that num_tokens positions take."""
        return -(-num_tokens // self.block_size)

    def needed(self, table: Sequence[int], start: int, end: int, away: Mapping[int, int] = NOBODY) -> int:
        """New blocks that writing positions start..end-1 takes. away: references by block that do not count."""
        first = start // self.block_size
        copied = first < len(table) and self.refs[table[first]] > 1 + away.get(table[first], 0)
        return max(0, self.span(end) - len(table)) + copied

    def extend(self, table: list[int], start: int, end: int) -> int | None:
        """Make positions start..end-1 writable; the first index of the table that changed (its old length if none did).

        None, changing nothing, when the stack gives no blocks although it said it could.
        """
        count, changed = self.needed(table, start, end), len(table)
        if not count:
            return changed
        taken = self._ask(self.stack.take, count)
        if taken is None:
            return None
        fresh = self._counted(taken.ids, count, "take")
        for block in fresh:
            if self.refs[block]:
                raise self._broken(self._top("take"), f"gave block {block}, which is used")
            self.refs[block] = 1
        first = start // self.block_size
        if first < len(table) and self.refs[table[first]] > 1:
            old, table[first], changed = table[first], fresh.pop(0), first
            self.journal.copy(BlockRef(old), BlockRef(table[first]))
            self.refs[old] -= 1
        table.extend(fresh)
        return changed

    def share(self, table: Sequence[int]) -> list[int]:
        for block in table:
            self.refs[block] += 1
        return list(table)

    def find(self, keys: Sequence[BlockKey]) -> PrefixMatch:
        return self._ask(self.stack.find, PrefixQuery(keys)) if keys else NO_MATCH

    def hold(self, match: PrefixMatch) -> list[int] | None:
        """A table of the matched blocks; None, changing nothing, when the stack no longer has them."""
        if not match.blocks:
            return []
        held = self._ask(self.stack.hold, match)
        return None if held is None else self.share(self._counted(held.ids, len(match.blocks), "hold"))

    def publish(self, block: int, key: BlockKey, retain_until: float | None) -> bool:
        """False: not yet, another table still has to copy it. True: offered to the stack, whatever it answered."""
        if self.refs[block] > 1:
            return False
        self._ask(self.stack.publish, block, key, retain_until)
        return True

    def retain(self, match: PrefixMatch, table: Sequence[int], until: float) -> None:
        """Keep what was just held longer. However many tables list it, it is full."""
        for block, cached in zip(table, match.blocks, strict=True):
            self._ask(self.stack.publish, block, cached.key, until)

    def release(self, table: Sequence[int]) -> None:
        last = []
        for block in table:
            self.refs[block] -= 1
            if not self.refs[block]:
                last.append(block)
        if last:
            self.num_given += len(last)
            self._ask(self.stack.give, Blocks(tuple(last)))

    # -- parking

    def park(self, table: Sequence[int], keys: Sequence[BlockKey]) -> Ticket | None:
        """Have the leading blocks of a table copied to the host; keys of its first ones. None: there is no room. Releases nothing."""
        if not self.num_host_blocks:
            return None
        assert self._swap is not None
        return self._ask(self._swap.swap_out, Blocks(tuple(table)), (*keys, *(None,) * (len(table) - len(keys))))

    def unpark(self, ticket: Ticket) -> list[int] | None:
        """The table that was parked. None, changing nothing, when the stack gives no blocks."""
        assert self._swap is not None
        blocks = self._ask(self._swap.swap_in, ticket)
        return None if blocks is None else self.share(self._counted(blocks.ids, len(ticket.slots), "swap_in"))

    def forget(self, ticket: Ticket) -> None:
        """Whoever was parked does not come back."""
        assert self._swap is not None
        self._ask(self._swap.drop, ticket)

    def forget_prefixes(self) -> int:
        """No later prompt finds what was published so far; how many blocks. Raises RequestFailed, changing nothing, where a layer hides how."""
        if not self.caches_prefixes:
            return 0
        if not isinstance(self.stack, SupportsForgetting):
            top = type(self.stack).__name__
            raise RequestFailed(f"the prefix cache cannot be reset: {top}, the top of the allocator stack, has no forget(). Restart the process instead")
        return self._ask(self.stack.forget)

    def stats(self) -> AllocatorStats:
        return self._ask(self.stack.stats)

    # -- layers that break

    def _ask(self, method: Callable[..., T], *args: object) -> T:
        try:
            return method(*args)
        except Exception as error:
            raise self._broken(self._place(error, getattr(method, "__name__", str(method))), f"raised {error!r}") from error

    def _counted(self, ids: Sequence[int], count: int, method: str) -> list[int]:
        if len(ids) != count:
            raise self._broken(self._top(method), f"gave {len(ids)} blocks, asked for {count}")
        return list(ids)

    def _broken(self, place: str, what: str) -> BrokenStackError:
        names = " over ".join(type(layer).__name__ for layer in self._layers())
        self.fault = BrokenStackError(f"block_allocator {place} {what} (the stack is {names}). This is a fault of a layer: run `corekit plugins check` on it")
        return self.fault

    def _top(self, method: str) -> str:
        return f"{type(self.stack).__name__}.{method}"

    def _place(self, error: Exception, method: str) -> str:
        """The innermost layer that it came through."""
        layers, place = {id(layer) for layer in self._layers()}, self._top(method)
        for frame, _ in traceback.walk_tb(error.__traceback__):
            if id(owner := frame.f_locals.get("self")) in layers:
                place = f"{type(owner).__name__}.{frame.f_code.co_name}"
        return place

    def _layers(self) -> Iterator[BlockAllocator]:
        """Top to bottom."""
        layer: BlockAllocator | None = self.stack
        while layer is not None:
            yield layer
            layer = getattr(layer, "inner", None)

    def audit(self) -> Iterator[str]:
        """Broken invariants, once no table is left."""
        left = [block for block, count in enumerate(self.refs) if count]
        if left:
            yield f"references are left on blocks {left[:8]}"
        if self.num_available != self.num_blocks:
            yield f"{self.num_available} of {self.num_blocks} blocks are available"
        for layer in self._layers():
            if isinstance(layer, SupportsAudit):
                yield from layer.audit()
