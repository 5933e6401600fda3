"""Laws of publish's `retain_until`. A layer need not retain anything: `num_retained` says whether it does. Knows no implementation."""

from __future__ import annotations

from collections.abc import Callable, Iterator

from .block_calls import key_chain
from .block_ledger import Ledger
from .block_stack import StackKit

NUM_BLOCKS = 12


class RetentionLaws(StackKit):
    """The clock of the kit's context stands still, far from the time of the machine; laws move it."""

    def retaining(self) -> Iterator[Callable[[int], Ledger]]:
        """Stacks that retain one block of 12 when they are asked to. Declare `retention` in `abilities` if this one does."""
        for make in self.caching():
            ledger, chain = make(NUM_BLOCKS), key_chain(1)
            ledger.give(ledger.fill(chain, ledger.clock.now + 10))
            if ledger.stack.stats().num_retained:
                yield make
            else:
                assert "retention" not in self.abilities, f"one of {NUM_BLOCKS} blocks was to be retained for 10 s and given back, and num_retained is 0"

    def test_a_layer_passes_on_retention(self) -> None:
        """Over a layer that retains, `retain_until` goes down with publish, and num_retained comes up with stats."""
        if self.passes_on:
            ledger = self.ledger(cache=True)
            ledger.fill(key_chain(1), ledger.clock.now + 10)
            assert ledger.stack.stats().num_retained == 1, "the layer beneath was not asked to retain a block, or its num_retained is not passed on"

    def test_retention_blocks_nothing(self) -> None:
        """Blocks that are to be retained are available as soon as nobody uses them: a take of everything gets them."""
        for make in self.caching():
            ledger = make(NUM_BLOCKS)
            ledger.give(ledger.fill(key_chain(*range(NUM_BLOCKS)), ledger.clock.now + 10))
            assert ledger.stack.available == NUM_BLOCKS, f"{ledger.stack.available} of {NUM_BLOCKS} blocks are available; all were given back"
            assert ledger.take(NUM_BLOCKS) is not None, f"take({NUM_BLOCKS}) refused: what is retained goes last, but it goes"
            left = ledger.check_stats().num_retained
            assert not left, f"num_retained is {left} after every block was evicted"

    def test_what_is_retained_goes_last(self) -> None:
        """Other blocks are evicted before it, though it was used longest ago."""
        for make in self.retaining():
            ledger, (old,), young = make(NUM_BLOCKS), key_chain(1), key_chain(2, 3)
            ledger.give(ledger.fill([old], ledger.clock.now + 10))
            ledger.give(ledger.fill(young))
            ledger.take(NUM_BLOCKS - 1)
            assert ledger.cached(old), "a retained block was evicted while others were there that nobody retains"

    def test_a_retention_grows_and_never_shrinks(self) -> None:
        """Publishing again prolongs it; with an earlier end, or with none, it changes nothing."""
        for make in self.retaining():
            for first, again in ((10, 100), (100, 10), (100, None)):
                ledger, (old,), young = make(NUM_BLOCKS), key_chain(1), key_chain(2, 3)
                start = ledger.clock.now
                (block,) = ledger.fill([old], start + first)
                ledger.publish(block, old, None if again is None else start + again)
                ledger.give([block])
                ledger.give(ledger.fill(young))
                ledger.clock.now = start + 50
                said = f"published until {first} s and again until {again}, a block is not retained after 50 s"
                assert ledger.stack.stats().num_retained == 1, f"{said}: num_retained is {ledger.stack.stats().num_retained}"
                ledger.take(NUM_BLOCKS - 1)
                assert ledger.cached(old), f"{said}: it was evicted before others"

    def test_the_key_is_retained_whoever_holds_it(self) -> None:
        """Computed again while an idle block holds it, so that publish answers False: the block that is found is retained."""
        for make in self.retaining():
            ledger, (old,), young = make(NUM_BLOCKS), key_chain(1), key_chain(2, 3)
            ledger.give(ledger.fill([old]))
            (block,) = ledger.take(1) or [0]
            ledger.publish(block, old, ledger.clock.now + 10)
            ledger.give([block])
            assert ledger.stack.stats().num_retained == 1, "publish was asked to retain a key that an idle block holds, and num_retained is 0"
            ledger.give(ledger.fill(young))
            ledger.take(NUM_BLOCKS - 1)
            assert ledger.cached(old), "a key that was to be retained was evicted while others were there that nobody retains"

    def test_a_retention_ends(self) -> None:
        """When its time has come by the context's clock, the block is one like any other."""
        for make in self.retaining():
            ledger, chain = make(NUM_BLOCKS), key_chain(1)
            ledger.give(ledger.fill(chain, ledger.clock.now + 10))
            ledger.clock.now += 11
            left = ledger.check_stats().num_retained
            assert not left, f"num_retained is {left} when the only retention is over; time is BuildContext.clock"
