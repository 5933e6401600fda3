"""Plays the core's part against an allocator stack: tables, references and contents in plain dictionaries.

Every call is checked against the contract. Owned by the kit of slot `block_allocator`; knows no implementation and no engine.
"""

from __future__ import annotations

import hashlib
from collections import Counter
from collections.abc import Sequence

from corekit.api import BlockAllocator, BlockKey, BlockRef, Blocks, Copy, PrefixMatch, PrefixQuery, SupportsPrefixCache, SupportsSwap, Ticket

BLOCK_SIZE = 4


def key_chain(*names: int, root: BlockKey | None = None) -> list[BlockKey]:
    """New keys, each the child of the one before. The core interns keys, so equal names of two calls are different keys here."""
    keys: list[BlockKey] = []
    for name in names:
        parent = keys[-1] if keys else root
        digest = hashlib.sha256((parent.hash if parent else b"") + str(name).encode()).digest()
        keys.append(BlockKey(hash=digest, parent=parent, tokens=(name,) * BLOCK_SIZE))
    return keys


class Journal:
    """The copy journal that a layer is built with. Nothing is dropped."""

    def __init__(self) -> None:
        self.copies: list[Copy] = []

    def copy(self, source: BlockRef, target: BlockRef) -> None:
        self.copies.append(Copy(source, target))


class Ledger:
    """What the core knows of a stack. Invariant: `refs[b]` tables list block b, and `content` is what each place holds.

    Copies are made as soon as the call returns that journaled them, before anything is written: program order. A published
    block holds its key as content, so a hit or a parked block that comes back with another content is seen.
    """

    def __init__(self, stack: BlockAllocator, journal: Journal, num_blocks: int) -> None:
        self.stack = stack
        self.journal = journal
        self.num_blocks = num_blocks
        self.caches = isinstance(stack, SupportsPrefixCache) and bool(stack.prefix_cache)
        self.swap: SupportsSwap | None = stack if isinstance(stack, SupportsSwap) and stack.num_host_blocks > 0 else None
        self.refs: Counter[int] = Counter()
        self.key_of: dict[int, BlockKey] = {}
        self.content: dict[BlockRef, object] = {}
        self.parked: list[tuple[Ticket, list[object]]] = []
        self.said: list[str] = []
        self._num_written = 0

    @property
    def used(self) -> set[int]:
        return {block for block, count in self.refs.items() if count}

    def check(self, fine: object, message: str) -> None:
        """Fails with the message and the last calls."""
        assert fine, f"{message}. The last calls: {'; '.join(self.said[-8:])}"

    def _say(self, call: str) -> None:
        self.said.append(call)
        del self.said[:-8]

    def _settle(self) -> None:
        """The copies of the journal, in program order."""
        most = self.swap.num_host_blocks if self.swap else 0
        for source, target in self.journal.copies:
            legal = 0 <= target.block < most if target.on_host else 1 <= target.block <= self.num_blocks
            self.check(legal, f"the journal copies to {target}; the device has blocks 1..{self.num_blocks}, the host 0..{most - 1}")
            self.check(source in self.content, f"the journal copies from {source}, which holds nothing")
            self.content[target] = self.content[source]
        self.journal.copies.clear()

    def _unchanged(self, before: int, call: str) -> None:
        self.check(self.stack.available == before, f"{call} refused, but available went from {before} to {self.stack.available}: a refusal changes nothing")
        self.check(not self.journal.copies, f"{call} refused, but journaled {self.journal.copies}: a refusal changes nothing")

    def _blocks(self, given: object, call: str) -> Blocks | None:
        self.check(given is None or isinstance(given, Blocks), f"{call} gave {given!r}, expected Blocks, or None for a refusal")
        return given if isinstance(given, Blocks) else None

    def _own(self, ids: Sequence[int], call: str) -> None:
        """New owners of blocks that nobody had."""
        self.check(all(1 <= block <= self.num_blocks for block in ids), f"{call} handed out {ids}: ids are 1..{self.num_blocks}, 0 is the null block")
        self.check(len(set(ids)) == len(ids), f"{call} handed out a block twice: {ids}")
        self.check(not self.used.intersection(ids), f"{call} handed out {sorted(self.used.intersection(ids))}, which are used")

    # -- what the core asks of a stack

    def take(self, count: int) -> list[int] | None:
        before, call = self.stack.available, f"take({count})"
        taken = self._blocks(self.stack.take(count), call)
        self._say(f"{call} -> {taken and taken.ids}")
        if taken is None:
            self.check(count > before, f"{call} refused although {before} were available")
            self._unchanged(before, call)
            return None
        ids = list(taken.ids)
        self.check(len(ids) == count, f"{call} handed out {len(ids)} blocks")
        self._own(ids, call)
        self.check(self.stack.available == before - count, f"{call}: available went from {before} to {self.stack.available}, expected {before - count}")
        self._settle()
        for block in ids:
            self.refs[block] = 1
            self.write(block)
        return ids

    def write(self, block: int) -> None:
        """Something that no other block holds."""
        self.key_of.pop(block, None)
        self._num_written += 1
        self.content[BlockRef(block)] = f"write {self._num_written}"

    def give(self, ids: Sequence[int]) -> None:
        """One table less lists these blocks."""
        last = []
        for block in ids:
            self.refs[block] -= 1
            if not self.refs[block]:
                last.append(block)
        if not last:
            return
        before = self.stack.available
        self.stack.give(Blocks(tuple(last)))
        self._say(f"give({tuple(last)})")
        self.check(
            self.stack.available == before + len(last),
            f"give of {len(last)} blocks: available went from {before} to {self.stack.available}, expected all of them",
        )
        self._settle()

    def publish(self, block: int, key: BlockKey) -> bool:
        """The only owner of the block has filled it with what the key stands for."""
        holder = next((other for other in self.used if self.key_of.get(other) is key), None)
        self.content[BlockRef(block)] = key
        published = self.stack.publish(block, key)
        self._say(f"publish({block}, {key.tokens[0]}) -> {published}")
        if holder is not None:
            self.check(not published, f"publish answered {published} for a key that the used block {holder} holds: it stays private, which is False")
        if published:
            self.key_of[block] = key
            self.check(self.find([key]).blocks[:1], "publish answered True, but the key is not found")
        else:
            self.check(self.find([key]).blocks, "publish answered False, so another block holds that key, but it is not found")
        return published

    def find(self, keys: Sequence[BlockKey]) -> PrefixMatch:
        before = self.stack.available
        match = self.stack.find(PrefixQuery(tuple(keys)))
        places = [cached.place for cached in match.blocks]
        self._say(f"find({[key.tokens[0] for key in keys]}) -> {places}, taking {match.num_taken}")
        self.check(self.stack.available == before and not self.journal.copies, "find takes nothing and copies nothing")
        self.check(
            len(places) <= len(keys) and all(c.key is key for c, key in zip(match.blocks, keys, strict=False)),
            "a match holds the first keys of its query, in order",
        )
        for cached in match.blocks:
            self.check(self.content.get(cached.place) is cached.key, f"find says that {cached.place} holds {cached.key}, but it holds something else")
            if not cached.place.on_host:
                ours = self.key_of.get(cached.place.block)
                self.check(ours is cached.key, f"find gives {cached.place} for {cached.key}, but that block was never published under it")
        wanted = sum(place.on_host or not self.refs[place.block] for place in places)
        self.check(match.num_taken == wanted, f"num_taken is {match.num_taken}; idle blocks and host hits of this match are {wanted}")
        if len(places) < len(keys):
            holder = [block for block in self.used if self.key_of.get(block) is keys[len(places)]]
            self.check(not holder, f"find stops before {keys[len(places)]}, which the used block {holder} holds")
        return match

    def hold(self, match: PrefixMatch) -> list[int] | None:
        """Right after its find, and with num_taken blocks available."""
        before, call = self.stack.available, f"hold({[cached.place for cached in match.blocks]})"
        held = self._blocks(self.stack.hold(match), call)
        self._say(f"{call} -> {held and held.ids}")
        if held is None:
            self._unchanged(before, call)
            return None
        ids = list(held.ids)
        self.check(len(ids) == len(match.blocks), f"{call} gave {len(ids)} blocks")
        moved = [block for block, cached in zip(ids, match.blocks, strict=True) if cached.place.on_host]
        stayed = [(block, cached.place.block) for block, cached in zip(ids, match.blocks, strict=True) if not cached.place.on_host]
        self.check(all(block == place for block, place in stayed), f"{call} gave {ids}: a device hit is the block itself, in order")
        self._own(moved, call)
        self.check(not set(moved).intersection(block for block, _ in stayed), f"{call} took a block of the match itself for a host hit: pin it first")
        after = before - match.num_taken
        self.check(self.stack.available == after, f"{call}: available went from {before} to {self.stack.available}, expected {after}")
        self._settle()
        for block, cached in zip(ids, match.blocks, strict=True):
            self.check(self.content.get(BlockRef(block)) is cached.key, f"{call}: block {block} does not hold {cached.key} once the journal has run")
            self.refs[block] += 1
            self.key_of[block] = cached.key
        return ids

    def swap_out(self, ids: Sequence[int]) -> Ticket | None:
        """Park a table. Its references are given back by the caller."""
        assert self.swap is not None
        before, call = self.stack.available, f"swap_out({tuple(ids)})"
        contents = [self.content[BlockRef(block)] for block in ids]
        ticket = self.swap.swap_out(Blocks(tuple(ids)), [self.key_of.get(block) for block in ids])
        self._say(f"{call} -> {ticket}")
        if ticket is None:
            self._unchanged(before, call)
            return None
        self.check(self.stack.available == before, f"{call}: available went from {before} to {self.stack.available}, but swap_out gives nothing back")
        self.check(len(ticket.slots) == len(ids), f"{call}: the ticket has {len(ticket.slots)} slots for {len(ids)} blocks")
        self._settle()
        self.parked.append((ticket, contents))
        return ticket

    def swap_in(self, ticket: Ticket) -> list[int] | None:
        assert self.swap is not None
        before, call = self.stack.available, f"swap_in({ticket.slots})"
        blocks = self._blocks(self.swap.swap_in(ticket), call)
        self._say(f"{call} -> {blocks and blocks.ids}")
        if blocks is None:
            self.check(before < len(ticket.slots), f"{call} refused although {before} blocks were available for {len(ticket.slots)}")
            self._unchanged(before, call)
            return None
        self._settle()
        contents = self._unpark(ticket)
        self.check(len(blocks.ids) == len(contents), f"{call} gave {len(blocks.ids)} blocks for {len(contents)}")
        fresh = [block for block in blocks.ids if not self.refs[block]]
        self._own(fresh, call)
        self.check(
            self.stack.available == before - len(fresh), f"{call}: available went from {before} to {self.stack.available}, expected {before - len(fresh)}"
        )
        for block, content in zip(blocks.ids, contents, strict=True):
            there = self.content.get(BlockRef(block))
            self.check(there == content, f"{call}: block {block} holds {there!r} once the journal has run; what was parked is {content!r}")
            self.refs[block] += 1
            self.key_of.pop(block, None)
            if isinstance(content, BlockKey):
                self._learn(block, content)
        return list(blocks.ids)

    def _learn(self, block: int, key: BlockKey) -> None:
        """A parked block that comes back may have its key again, or be private now."""
        match = self.stack.find(PrefixQuery((key,)))
        if match.blocks and match.blocks[0].place == BlockRef(block):
            self.key_of[block] = key

    def drop(self, ticket: Ticket) -> None:
        assert self.swap is not None
        self.swap.drop(ticket)
        self._say(f"drop({ticket.slots})")
        self._settle()
        self._unpark(ticket)

    def _unpark(self, ticket: Ticket) -> list[object]:
        """Siblings may have equal tickets, which then stand for equal contents."""
        at = next(at for at, (parked, _) in enumerate(self.parked) if parked == ticket)
        return self.parked.pop(at)[1]

    # -- what several laws do

    def fill(self, keys: Sequence[BlockKey]) -> list[int]:
        """A new table with these keys, all published."""
        table = self.take(len(keys))
        self.check(table is not None, f"there was no room for {len(keys)} blocks")
        assert table is not None
        for block, key in zip(table, keys, strict=True):
            self.check(self.publish(block, key), "publish answered False for a key that no other block holds")
        return table

    def cached(self, key: BlockKey) -> bool:
        """Whether the key is found on the device."""
        match = self.find([key])
        return bool(match.blocks) and not match.blocks[0].place.on_host
