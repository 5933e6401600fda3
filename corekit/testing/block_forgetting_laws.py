"""Laws of allocator stacks that can drop what they cache. Knows no implementation."""

from __future__ import annotations

from collections.abc import Callable, Iterator

from corekit.api import BlockKey, SupportsEvictionSink, SupportsForgetting

from .block_calls import key_chain
from .block_host_laws import churn, full_host, park_everywhere, put_away
from .block_ledger import Ledger
from .block_stack import StackKit

NUM_BLOCKS = 8


class ForgettingLaws(StackKit):
    """Asked of every stack that caches prefixes and shows SupportsForgetting."""

    def forgetting(self) -> Iterator[Callable[[int], Ledger]]:
        """Those that can drop what they cache."""
        for make in self.caching():
            if isinstance(make(NUM_BLOCKS).stack, SupportsForgetting):
                yield make

    def test_what_is_forgotten_is_not_found(self) -> None:
        """forget: no key that was published is found, whether its block is idle or used; used blocks stay used, and what is published next is found."""
        for make in self.forgetting():
            ledger, used, idle = make(NUM_BLOCKS), key_chain(1, 2), key_chain(3, 4)
            table = ledger.fill(used)
            ledger.give(ledger.fill(idle))
            num_cached = sum(map(ledger.cached, (*used, *idle)))
            count = ledger.forget()
            found = [key for key in (*used, *idle) if ledger.find([key]).blocks]
            assert not found, f"after forget, {found} are still found"
            assert count >= num_cached, f"forget says {count}, and {num_cached} device blocks lost their key"
            again = ledger.fill(used)
            ledger.give(table)
            places = [cached.place.block for cached in ledger.find(used).blocks]
            assert places == again, f"after forget the same keys were published for blocks {again}; find gives {places}"
            ledger.take(ledger.stack.available)
            assert ledger.find(used).blocks, "used blocks lost their keys"

    def test_the_sink_hears_what_is_forgotten(self) -> None:
        """forget: the sink hears of each device block that loses its key, idle or used, before forget returns."""
        for make in self.forgetting():
            ledger, used, idle = make(NUM_BLOCKS), key_chain(1, 2), key_chain(3, 4)
            if not isinstance(ledger.stack, SupportsEvictionSink):
                continue
            told: list[tuple[int, BlockKey]] = []

            def hear(block: int, key: BlockKey, told: list[tuple[int, BlockKey]] = told) -> None:
                told.append((block, key))

            ledger.stack.set_sink(hear)
            tables = [*zip(ledger.fill(used), used, strict=True), *zip(given := ledger.fill(idle), idle, strict=True)]
            ledger.give(given)
            wanted = [(block, key) for block, key in tables if ledger.cached(key)]
            ledger.forget()
            assert sorted(told, key=_block) == sorted(wanted, key=_block), f"forgotten were {wanted}; the sink heard {told}"

    def test_what_is_parked_survives_forgetting(self) -> None:
        """forget: a table that is parked comes back whole, whoever shares its blocks; until then its keys are found."""
        for make in self.forgetting():
            ledger, chain = make(NUM_BLOCKS), key_chain(1, 2)
            if not ledger.swap:
                continue
            for shared in (False, True):
                table = ledger.fill(chain)
                if shared:
                    ledger.share(table)
                ticket = put_away(ledger, table)
                ledger.forget()
                churn(ledger)
                assert len(ledger.find(chain).blocks) == 2, "what is parked is found, whatever was forgotten"
                if shared:
                    ledger.give(table)
                back = ledger.swap_in(ticket)
                assert back is not None, "swap_in refused although the whole device is available"
                ledger.give(back)
                ledger.forget()

    def test_the_host_forgets_too(self) -> None:
        """forget: what the host caches and nobody parked is not found any more, nor is what the device loses by it kept there."""
        for make in self.forgetting():
            for ledger, keys in full_host(make):
                ledger.give(ledger.fill(new := key_chain(1, 2)))
                ledger.forget()
                found = [key for key in (*keys, *new) if ledger.find([key]).blocks]
                assert not found, f"after forget, {len(found)} keys are still found"
                park_everywhere(ledger)


def _block(pair: tuple[int, BlockKey]) -> int:
    return pair[0]
