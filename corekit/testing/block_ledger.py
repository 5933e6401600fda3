"""Plays the core against an allocator stack one call at a time, for laws that need no step. Owned by the kit of slot `block_allocator`."""

from __future__ import annotations

from collections.abc import Sequence

from corekit.api import BlockAllocator, BlockKey, BlockRef, PrefixMatch, Ticket

from .block_calls import Calls, Clock, Journal


class Ledger(Calls):
    """Invariant: `content` is what each place holds. A published block holds its key.

    Every call is a step of its own: its copies run when it returns, and what it handed out is written then. The contract
    allows later steps only, so a law that needs several calls in one step belongs to the machine.
    """

    def __init__(self, stack: BlockAllocator, journal: Journal, num_blocks: int, clock: Clock) -> None:
        super().__init__(stack, journal, num_blocks, clock)
        self.content: dict[BlockRef, object] = {}
        self._parked: list[tuple[Ticket, list[object]]] = []
        self.num_copied = 0
        self._num_written = 0

    def _settle(self) -> None:
        """The copies of the journal, in program order."""
        for source, target in self.journal.drain():
            self.check_copy(source, target)
            self.check(source in self.content, f"the journal copies from {source}, which holds nothing")
            self.content[target] = self.content[source]
            self.num_copied += 1

    def write(self, block: int) -> None:
        """Something that no other block holds."""
        self._num_written += 1
        self.content[BlockRef(block)] = f"write {self._num_written}"

    def take(self, count: int) -> list[int] | None:
        ids = super().take(count)
        self._settle()
        for block in ids or ():
            self.write(block)
        return ids

    def give(self, ids: Sequence[int]) -> None:
        super().give(ids)
        self._settle()

    def publish(self, block: int, key: BlockKey, retain_until: float | None = None) -> bool:
        self.content[BlockRef(block)] = key
        return super().publish(block, key, retain_until)

    def find(self, keys: Sequence[BlockKey]) -> PrefixMatch:
        match = super().find(keys)
        for cached in match.blocks:
            self.check(self.content.get(cached.place) is cached.key, f"find says that {cached.place} holds {cached.key}, but it holds something else")
        return match

    def hold(self, match: PrefixMatch) -> list[int] | None:
        ids = super().hold(match)
        self._settle()
        for block, cached in zip(ids or (), match.blocks, strict=False):
            self.check(self.content.get(BlockRef(block)) is cached.key, f"block {block} was held for {cached.key}, and holds something else after the copies")
        return ids

    def forget(self) -> int:
        count = super().forget()
        self._settle()
        return count

    def swap_out(self, ids: Sequence[int], keys: Sequence[BlockKey | None] | None = None) -> Ticket | None:
        contents = [self.content[BlockRef(block)] for block in ids]
        ticket = super().swap_out(ids, keys)
        self._settle()
        if ticket is not None:
            self._parked.append((ticket, contents))
        return ticket

    def swap_in(self, ticket: Ticket) -> list[int] | None:
        ids = super().swap_in(ticket)
        self._settle()
        for block, content in zip(ids, self._unpark(ticket), strict=True) if ids is not None else ():
            there = self.content.get(BlockRef(block))
            self.check(there == content, f"swap_in gave block {block}, which holds {there!r} after the copies; what was parked is {content!r}")
        return ids

    def drop(self, ticket: Ticket) -> None:
        super().drop(ticket)
        self._settle()
        self._unpark(ticket)

    def _unpark(self, ticket: Ticket) -> list[object]:
        at = next(at for at, (parked, _) in enumerate(self._parked) if parked == ticket)
        return self._parked.pop(at)[1]

    # -- what several laws do

    def fill(self, keys: Sequence[BlockKey], retain_until: float | None = None) -> list[int]:
        """A new table with these keys, all published."""
        table = self.take(len(keys))
        assert table is not None, f"there was no room for {len(keys)} blocks"
        for block, key in zip(table, keys, strict=True):
            self.check(self.publish(block, key, retain_until), "publish answered False for a key that no other block holds")
        return table

    def cached(self, key: BlockKey) -> bool:
        """Whether the key is found on the device."""
        match = self.find([key])
        return bool(match.blocks) and not match.blocks[0].place.on_host
