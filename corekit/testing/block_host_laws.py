"""Laws of allocator stacks that park blocks on the host. Knows no implementation and how many host blocks there are only when asked."""

from __future__ import annotations

from collections.abc import Callable, Iterator

from corekit.api import Ticket

from .block_ledger import Ledger, key_chain
from .block_stack import StackKit

NUM_BLOCKS = 6


class HostLaws(StackKit):
    """Asked of every stack that shows SupportsSwap with host blocks. Few of them (8 or so, by `options`) make the laws sharp and fast."""

    def swapping(self) -> Iterator[Callable[..., Ledger]]:
        for make in self.makers():
            if make().swap:
                yield make

    def test_a_parked_table_comes_back_with_its_content(self) -> None:
        """swap_out, give, anything, swap_in: the blocks hold what they held, once the journal's copies were made in program order."""
        for make in self.swapping():
            ledger = make(NUM_BLOCKS)
            table = ledger.fill(key_chain(1, 2)) if ledger.caches else ledger.take(2) or []
            table += ledger.take(1) or []
            ticket = _parked(ledger, table)
            ledger.give(table)
            ledger.give(ledger.take(NUM_BLOCKS) or [])
            assert ledger.swap_in(ticket) is not None, "swap_in refused although the whole device is available"

    def test_swap_out_gives_nothing_back(self) -> None:
        """swap_out copies; the blocks stay used until the core gives them."""
        for make in self.swapping():
            ledger = make(NUM_BLOCKS)
            table = ledger.take(3) or []
            _parked(ledger, table)
            left = ledger.take(NUM_BLOCKS - 3)
            assert not set(left or ()).intersection(table), f"swap_out gave back {table}"
            assert ledger.stack.take(1) is None, "swap_out left more blocks than there were"

    def test_swap_in_drops_the_ticket(self) -> None:
        """A ticket that came back claims no host block any more: parking goes on for ever."""
        for make in self.swapping():
            ledger = make(NUM_BLOCKS)
            assert ledger.swap
            for turn in range(ledger.swap.num_host_blocks + 2):
                table = ledger.take(1) or []
                ticket = ledger.swap_out(table)
                assert ticket is not None, f"after {turn} tables that were parked and came back, the host is full"
                ledger.give(table)
                ledger.give(ledger.swap_in(ticket) or [])

    def test_drop_frees_the_host(self) -> None:
        """A dropped ticket claims no host block any more."""
        for make in self.swapping():
            ledger = make(NUM_BLOCKS)
            assert ledger.swap
            table = ledger.take(1) or []
            for turn in range(ledger.swap.num_host_blocks + 2):
                ticket = ledger.swap_out(table)
                assert ticket is not None, f"after {turn} tables that were parked and dropped, the host is full"
                ledger.drop(ticket)

    def test_a_full_host_refuses_and_changes_nothing(self) -> None:
        """When the host is full, swap_out is None; copies nothing, and what is parked comes back whole."""
        for make in self.swapping():
            ledger = make(NUM_BLOCKS)
            assert ledger.swap
            table, tickets = ledger.take(2) or [], []
            for _ in range(ledger.swap.num_host_blocks // 2):
                ledger.write(table[0])
                tickets.append(_parked(ledger, table))
            assert ledger.swap_out(ledger.take(2) or []) is None, f"{len(tickets)} tables of 2 blocks are parked on {ledger.swap.num_host_blocks} host blocks"
            for ticket in tickets:
                ledger.give(ledger.swap_in(ticket) or [])

    def test_no_room_on_the_device_keeps_the_ticket(self) -> None:
        """swap_in without enough device blocks is None and changes nothing: later the ticket is as good as before."""
        for make in self.swapping():
            ledger = make(NUM_BLOCKS)
            table = ledger.take(3) or []
            ticket = _parked(ledger, table)
            ledger.give(table)
            others = ledger.take(NUM_BLOCKS - 1) or []
            assert ledger.swap_in(ticket) is None, "swap_in of 3 private blocks with 1 available must be None"
            ledger.give(others)
            assert ledger.swap_in(ticket) is not None, "a ticket that was refused once is never taken again"

    def test_a_match_is_pinned_before_anything_is_taken(self) -> None:
        """hold takes a device block for a host hit: it must not evict a block of the same match for it."""
        for make in self.swapping():
            ledger, chain, (younger,) = make(3), key_chain(1, 2), key_chain(3)
            if not ledger.caches:
                continue
            ledger.give(ledger.fill(chain))
            first, _ = ledger.take(2) or (0, 0)
            ledger.publish(first, younger)
            ledger.give([first])
            match = ledger.find(chain)
            if match.num_taken <= ledger.stack.available:
                assert ledger.hold(match) is not None, f"hold refused {match} with {ledger.stack.available} blocks available"


def _parked(ledger: Ledger, table: list[int]) -> Ticket:
    ticket = ledger.swap_out(table)
    assert ticket is not None, f"swap_out of {len(table)} blocks refused, with room on the host"
    return ticket
