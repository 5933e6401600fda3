"""Laws of allocator stacks that cache prefixes: publish, find, hold, and what is evicted first. Knows no implementation."""

from __future__ import annotations

from corekit.api import BlockKey, BlockRef, PrefixQuery, SupportsEvictionSink

from .block_calls import key_chain
from .block_ledger import Ledger
from .block_stack import StackKit

NUM_BLOCKS = 8


class PrefixLaws(StackKit):
    """Asked of every stack whose `prefix_cache` is True. A block that was given back may be forgotten at once: laws speak of what is found."""

    def test_what_is_published_is_found(self) -> None:
        """Published blocks are found while they are used, each at its own place, in the order of their chain."""
        for make in self.caching():
            ledger, chain = make(NUM_BLOCKS), key_chain(1, 2, 3)
            table = ledger.fill(chain)
            found = [cached.place.block for cached in ledger.find(chain).blocks]
            assert found == table, f"blocks {table} were published and are used; find gives {found}"

    def test_find_starts_anywhere_and_stops_at_a_gap(self) -> None:
        """The first key of a query need not be a root; a key that is not there ends the match, whatever comes after it."""
        for make in self.caching():
            ledger, chain = make(NUM_BLOCKS), key_chain(1, 2, 3, 4)
            table = ledger.take(4) or []
            for at in (0, 1, 3):
                ledger.publish(table[at], chain[at])
            for start, length in ((0, 2), (1, 1), (2, 0), (3, 1)):
                found = ledger.find(chain[start:]).blocks
                assert len(found) == length, (
                    f"keys 0, 1 and 3 are published; the query that starts at key {start} matches {len(found)} blocks, expected {length}"
                )

    def test_find_takes_nothing(self) -> None:
        """find changes neither counts nor what a second find says."""
        for make in self.caching():
            ledger, chain = make(NUM_BLOCKS), key_chain(1, 2, 3)
            ledger.give(ledger.fill(chain))
            before, first = ledger.stack.stats(), ledger.find(chain)
            assert ledger.find(chain) == first, "a second find says something else than the first"
            assert ledger.stack.stats() == before, f"find changed {before} into {ledger.stack.stats()}"

    def test_find_disturbs_no_order(self) -> None:
        """Which block is evicted next does not depend on what was looked for meanwhile."""
        for make in self.caching():
            assert _evictions(make(NUM_BLOCKS), looking=True) == _evictions(make(NUM_BLOCKS), looking=False), "a look-up changed the order of eviction"

    def test_leaves_go_before_their_parents(self) -> None:
        """Of a table that was given back, no block is evicted while a later one of it is still found: that one could not be reached any more."""
        for make in self.caching():
            ledger, chain = make(NUM_BLOCKS), key_chain(1, 2, 3, 4)
            ledger.give(ledger.fill(chain))
            for _ in range(NUM_BLOCKS):
                ledger.take(1)
                kept = [ledger.cached(key) for key in chain]
                assert kept == sorted(kept, reverse=True), f"of one chain, these are still cached: {kept}; evict from the end of a table"

    def test_nothing_is_evicted_without_need(self) -> None:
        """take gets free blocks before idle ones, and `num_evicted` counts the idle ones alone."""
        for make in self.caching():
            ledger, chain = make(NUM_BLOCKS), key_chain(1, 2, 3)
            ledger.give(ledger.fill(chain))
            before, cached = ledger.stack.stats(), [ledger.cached(key) for key in chain]
            ledger.take(before.num_free)
            kept, evicted = [ledger.cached(key) for key in chain], ledger.stack.stats().num_evicted - before.num_evicted
            assert kept == cached, f"take({before.num_free}) of {before} evicted blocks although as many were free: cached before {cached}, after {kept}"
            assert not evicted, f"take({before.num_free}) of {before} got free blocks alone, and num_evicted rose by {evicted}"

    def test_keys_are_compared_by_identity(self) -> None:
        """Another key with the same hash and tokens is another key: a collision costs time and never an answer."""
        for make in self.caching():
            ledger, (key,), (twin,) = make(NUM_BLOCKS), key_chain(1), key_chain(1)
            assert key.hash == twin.hash
            (block,) = ledger.fill([key])
            assert not ledger.find([twin]).blocks, f"block {block} is found by a key that only has the same hash"
            (other,) = ledger.fill([twin])
            assert ledger.find([key]).blocks[0].place.block == block, f"the key of block {block} finds block {other}, whose key only has the same hash"

    def test_a_second_block_of_a_key_stays_private(self) -> None:
        """publish answers False for a key that another block holds; that block stays the one that is found, the new one goes back unkeyed."""
        for make in self.caching():
            ledger, (key,) = make(2), key_chain(1)
            (first,) = ledger.fill([key])
            (second,) = ledger.take(1) or [0]
            assert ledger.publish(second, key) is False, f"block {first} holds the key already; publish of block {second} must answer False"
            assert ledger.find([key]).blocks[0].place.block == first, "the key moved to the second block; tables are never rewritten"
            ledger.give([second])
            assert ledger.take(1) == [second], "the private block could not be taken again"
            assert ledger.find([key]).blocks[0].place.block == first, "the private block took the key with it"

    def test_a_block_is_published_again(self) -> None:
        """A used block that holds the key already may be published under it again: that is True, and nothing moves."""
        for make in self.caching():
            ledger, chain = make(NUM_BLOCKS), key_chain(1, 2)
            table = ledger.fill(chain)
            for block, key in zip(table, chain, strict=True):
                assert ledger.publish(block, key) is True, f"publish of the used block {block} under the key that it holds must answer True"
            found = [cached.place.block for cached in ledger.find(chain).blocks]
            assert found == table, f"blocks {table} were published twice; find gives {found}"

    def test_groups_are_apart(self) -> None:
        """A key of another group is another key, and layers ask each other in the group that they were asked in."""
        for make in self.caching():
            ledger, (key,), chain = make(NUM_BLOCKS), key_chain(1), key_chain(1, 2, group=1)
            (block,) = ledger.fill([key])
            assert not ledger.find(chain).blocks, f"block {block} of group 0 is found by a query of group 1"
            table = ledger.fill(chain)
            found = [cached.place.block for cached in ledger.find(chain).blocks]
            assert found == table, f"blocks {table} of group 1 are used, and its query finds {found}"
            ledger.give(table)
            assert len(ledger.find([key]).blocks) == 1, f"block {block} of group 0 is not found any more"
            match = ledger.find(chain)
            held = ledger.hold(match)
            assert held is not None, f"hold refused {match} of group 1 right after its find"
            if ledger.swap and (ticket := ledger.swap_out(held)):
                ledger.give(held)
                assert ledger.swap_in(ticket) is not None, "swap_in of blocks of group 1 refused although they are on the device"

    def test_what_is_held_is_used(self) -> None:
        """hold makes idle blocks used: a take of everything that is left does not get them."""
        for make in self.caching():
            ledger, chain = make(NUM_BLOCKS), key_chain(1, 2, 3)
            ledger.give(ledger.fill(chain))
            match = ledger.find(chain)
            held = ledger.hold(match)
            assert held is not None, "hold refused a match right after its find"
            ledger.take(ledger.stack.available)
            assert ledger.stack.take(1) is None, "everything is used, and there is still a block to take"

    def test_num_taken_is_exact(self) -> None:
        """num_taken counts idle blocks and host hits, and not what is used already; `available` falls by it."""
        for make in self.caching():
            ledger, chain = make(NUM_BLOCKS), key_chain(1, 2, 3)
            ledger.give(ledger.fill(chain))
            first = ledger.hold(ledger.find(chain[:1]))
            before, match = ledger.stack.available, ledger.find(chain)
            assert match.num_taken == len(match.blocks) - len(first or []), f"{match} holds {first}, which is used already, so num_taken is too high or too low"
            ledger.hold(match)
            assert ledger.stack.available == before - match.num_taken, (
                f"num_taken was {match.num_taken}, but available fell by {before - ledger.stack.available}"
            )

    def test_a_stale_match_is_refused(self) -> None:
        """A match whose blocks were evicted since, or hold their keys elsewhere now, is None and changes nothing."""
        for make in self.caching():
            ledger, chain = make(6), key_chain(1, 2)
            ledger.give(ledger.fill(chain))
            match = ledger.find(chain)
            places = [cached.place for cached in match.blocks]
            if not places or places[0].on_host:
                continue
            others = [block for block in ledger.take(6) or [] if BlockRef(block) not in places]
            ledger.give(others[:3])  # so that it is not for want of blocks
            assert ledger.hold(match) is None, "hold gave blocks that were evicted since they were found"
            if not ledger.find(chain[:1]).blocks:
                ledger.publish(others[3], chain[0])
            assert ledger.hold(match) is None, "hold gave a match whose key another block holds now"

    def test_a_reused_block_is_not_found(self) -> None:
        """A block that take hands out has lost its key: nobody finds it by what it held before."""
        for make in self.caching():
            ledger, chain = make(4), key_chain(1, 2, 3, 4)
            ledger.give(ledger.fill(chain))
            table = ledger.take(4) or []
            places = [cached.place for key in chain for cached in ledger.stack.find(_query(key)).blocks]
            wrong = [place for place in places if not place.on_host and place.block in table]
            assert not wrong, f"{wrong} belong to a new owner, and are still found by their old keys"

    def test_blocks_in_use_keep_their_key(self) -> None:
        """What several tables list is given once, by the last: until then it stays used and findable whatever is taken."""
        for make in self.caching():
            ledger, chain = make(4), key_chain(1, 2)
            table = ledger.fill(chain)
            again = ledger.hold(ledger.find(chain))
            assert again == table, f"hold of the used blocks {table} gave {again}"
            ledger.give(table)
            ledger.take(ledger.stack.available)
            assert len(ledger.find(chain).blocks) == 2, "used blocks lost their keys"
            ledger.give(again or [])

    def test_the_sink_hears_of_every_eviction(self) -> None:
        """set_sink: called with block and key for each idle block that a take gets, before the take returns; for nothing else."""
        for make in self.caching():
            ledger, chain = make(4), key_chain(1, 2, 3)
            if not isinstance(ledger.stack, SupportsEvictionSink):
                continue
            told: list[tuple[int, BlockKey]] = []

            def hear(block: int, key: BlockKey, told: list[tuple[int, BlockKey]] = told) -> None:
                told.append((block, key))

            ledger.stack.set_sink(hear)
            table = ledger.fill(chain)
            ledger.give(table)
            assert not told, f"nothing was evicted, and the sink heard {told}"
            idle = [(block, key) for block, key in zip(table, chain, strict=True) if ledger.cached(key)]
            ledger.take(4)
            assert sorted(told, key=_block) == sorted(idle, key=_block), f"evicted were {idle}; the sink heard {told}"


def _block(pair: tuple[int, BlockKey]) -> int:
    return pair[0]


def _query(key: BlockKey) -> PrefixQuery:
    return PrefixQuery((key,))


def _evictions(ledger: Ledger, *, looking: bool) -> list[list[int] | None]:
    """Three tables are given back, then every block is taken: in which order they come."""
    chains = [key_chain(at, at + 10) for at in range(3)]
    tables = [ledger.fill(chain) for chain in chains]
    for table in tables:
        ledger.give(table)
    for chain in (chains[0], chains[1], chains[0]) if looking else ():
        ledger.find(chain)
    return [ledger.take(1) for _ in range(NUM_BLOCKS)]
