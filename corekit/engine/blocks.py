"""Block tables, reference counts, forks, copy-on-write, prefix keys and the copy journal.

The only file that calls the allocator stack. Knows tokens only as parts of keys, and nothing of steps.
"""

from __future__ import annotations

import hashlib
import struct
from collections.abc import Callable, Iterator, Mapping, Sequence
from types import MappingProxyType
from typing import TypeVar
from weakref import WeakValueDictionary

from corekit.api import BlockAllocator, BlockKey, BlockRef, Blocks, Copy, PrefixMatch, PrefixQuery, SupportsAudit, SupportsPrefixCache

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


class KeyChain:
    """Interns keys: equal prefixes give the same object, so look-ups compare identity and a hash collision cannot matter."""

    def __init__(self, block_size: int, seed: bytes = b"") -> None:
        self._size = block_size
        self._seed = seed
        self._format = struct.Struct(f"<{block_size}q")
        self._keys: WeakValueDictionary[tuple[BlockKey | None, tuple[int, ...], tuple[str, ...]], BlockKey] = WeakValueDictionary()

    def extend(self, keys: list[BlockKey], tokens: Sequence[int], num_tokens: int, extra: tuple[str, ...] = ()) -> None:
        """Grow keys in place to cover the full blocks among the first num_tokens tokens."""
        size = self._size
        for at in range(len(keys), num_tokens // size):
            keys.append(self._child(keys[-1] if keys else None, tuple(tokens[at * size : (at + 1) * size]), extra))

    def _child(self, parent: BlockKey | None, tokens: tuple[int, ...], extra: tuple[str, ...]) -> BlockKey:
        key = self._keys.get((parent, tokens, extra))
        if key is None:
            digest = hashlib.sha256(parent.hash if parent else self._seed)
            digest.update(self._format.pack(*tokens))
            for tag in extra:
                digest.update(struct.pack("<q", len(tag)) + tag.encode())
            key = self._keys[parent, tokens, extra] = BlockKey(hash=digest.digest(), parent=parent, tokens=tokens, extra=extra)
        return key


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
        self.refs = [0] * (num_blocks + 1)

    @property
    def num_available(self) -> int:
        """Blocks that the stack can hand out: free and idle ones."""
        return self.stack.available

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
        fresh = list(taken.ids)
        for block in fresh:
            self.refs[block] += 1
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
        return None if held is None else self.share(held.ids)

    def publish(self, block: int, key: BlockKey) -> bool:
        """False: not yet, another table still has to copy it. True: offered to the stack, whatever it answered."""
        if self.refs[block] > 1:
            return False
        self._ask(self.stack.publish, block, key)
        return True

    def release(self, table: Sequence[int]) -> None:
        last = []
        for block in table:
            self.refs[block] -= 1
            if not self.refs[block]:
                last.append(block)
        if last:
            self._ask(self.stack.give, Blocks(tuple(last)))

    def _ask(self, method: Callable[..., T], *args: object) -> T:
        try:
            return method(*args)
        except Exception as error:
            raise BrokenStackError(f"block_allocator {type(self.stack).__name__}.{getattr(method, '__name__', method)} raised {error!r}") from error

    def audit(self) -> Iterator[str]:
        """Broken invariants, once no table is left."""
        left = [block for block, count in enumerate(self.refs) if count]
        if left:
            yield f"references are left on blocks {left[:8]}"
        if self.num_available != self.num_blocks:
            yield f"{self.num_available} of {self.num_blocks} blocks are available"
        layer: BlockAllocator | None = self.stack
        while layer is not None:
            if isinstance(layer, SupportsAudit):
                yield from layer.audit()
            layer = getattr(layer, "inner", None)
