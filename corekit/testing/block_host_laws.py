"""Laws of allocator stacks that park blocks on the host. Knows no implementation and how many host blocks there are only when asked."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

from corekit.api import BlockKey, BlockRef, Ticket

from .block_calls import key_chain
from .block_ledger import Ledger
from .block_stack import StackKit

NUM_BLOCKS = 6
MOST = 32
"""Host blocks that a law fills; where there are more, it finds room by itself and proves less."""


class HostLaws(StackKit):
    """Asked of every stack that shows SupportsSwap with host blocks. Few of them (8 or so, by `options`) make the laws sharp and fast."""

    def swapping(self) -> Iterator[Callable[[int], Ledger]]:
        for make in self.makers():
            if make(NUM_BLOCKS).swap:
                yield make

    def test_a_parked_table_comes_back_with_its_content(self) -> None:
        """swap_out, give, anything, swap_in: the blocks hold what they held, once the journal's copies were made in program order."""
        for make in self.swapping():
            ledger = make(NUM_BLOCKS)
            table = ledger.fill(key_chain(1, 2)) if ledger.caches else ledger.take(2) or []
            table += ledger.take(1) or []
            ticket = put_away(ledger, table)
            ledger.give(ledger.take(NUM_BLOCKS) or [])
            assert ledger.swap_in(ticket) is not None, "swap_in refused although the whole device is available"

    def test_copies_keep_their_order(self) -> None:
        """A block that is evicted for one that comes back is saved first: its copy to the host stands before the copy that overwrites it."""
        for make in self.swapping():
            ledger, chain = make(2), key_chain(1, 2)
            if not ledger.caches:
                continue
            first = ledger.take(2) or []
            away = parked(ledger, first)
            ledger.give(first)
            second = ledger.fill(chain)
            saved = parked(ledger, second)
            ledger.give(second)
            ledger.give(ledger.swap_in(away) or [])
            assert ledger.swap_in(saved) is not None, "swap_in refused although the whole device is available"

    def test_what_is_parked_is_found(self) -> None:
        """While a ticket lists it, every key of it is found, on the device or on the host, and may be held."""
        for make in self.swapping():
            ledger, chain = make(NUM_BLOCKS), key_chain(1, 2)
            if not ledger.caches:
                continue
            table = ledger.fill(chain)
            ticket = put_away(ledger, table)
            for _ in range(2):
                match = ledger.find(chain)
                assert len(match.blocks) == 2, f"of 2 parked keys {len(match.blocks)} are found"
                ledger.give(ledger.hold(match) or [])
                ledger.give(ledger.take(NUM_BLOCKS) or [])
            assert ledger.swap_in(ticket) is not None, "swap_in refused although the whole device is available"

    def test_swap_in_takes_what_find_says(self) -> None:
        """It uses num_taken of a find of its keys, and one block for each that had none: with so many available it succeeds, with one less it does not."""
        for make in self.swapping():
            for short in (1, 0):
                ledger, chain = make(NUM_BLOCKS), key_chain(1, 2) if make(NUM_BLOCKS).caches else []
                table = [*ledger.fill(chain), *(ledger.take(1) or [])]
                ticket = parked(ledger, table)
                ledger.give(table[len(chain[:1]) :])  # a used block of its own chain costs it nothing
                needed = 1 + sum(ledger.find([key]).num_taken for key in chain)
                ledger.take(ledger.stack.available - needed + short)
                came = ledger.swap_in(ticket) is not None
                assert came is not bool(short), f"swap_in of a table that takes {needed} blocks {'came' if came else 'refused'} with {needed - short} available"

    def test_what_comes_back_is_on_the_device(self) -> None:
        """Each key that a ticket had is found in the table that came back, at its own place."""
        for make in self.swapping():
            ledger, chain = make(NUM_BLOCKS), key_chain(1, 2)
            if not ledger.caches:
                continue
            table = ledger.fill(chain)
            ticket = put_away(ledger, table)
            ledger.give(ledger.take(NUM_BLOCKS) or [])
            back = ledger.swap_in(ticket)
            found = [cached.place for cached in ledger.find(chain).blocks]
            assert found == [BlockRef(block) for block in back or ()], f"swap_in gave {back}, and its keys are found at {found}"

    def test_swap_out_gives_nothing_back(self) -> None:
        """swap_out copies; the blocks stay used until the core gives them."""
        for make in self.swapping():
            ledger = make(NUM_BLOCKS)
            table = ledger.take(3) or []
            parked(ledger, table)
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

    def test_a_dropped_ticket_leaves_the_others(self) -> None:
        """Of two that parked the same keys one is dropped: the other comes back whole, whatever was evicted since."""
        for make in self.swapping():
            ledger, chain = make(NUM_BLOCKS), key_chain(1, 2)
            if not ledger.caches:
                continue
            table, tickets = _siblings(ledger, chain)
            ledger.drop(tickets[0])
            others = ledger.take(2) or []
            ledger.swap_out(others)
            ledger.give(others)
            churn(ledger)
            assert ledger.swap_in(tickets[1]) is not None, f"swap_in of {len(table)} blocks refused although the whole device is available"

    def test_siblings_park_equal_keys_once(self) -> None:
        """Asked of those that declare `shared_slots`: tables with the same keys need as much of the host as one, and each comes back."""
        for make in self.swapping() if "shared_slots" in self.abilities else ():
            ledger, chain = make(NUM_BLOCKS), key_chain(1, 2)
            _, tickets = _siblings(ledger, chain)
            assert ledger.num_parked == 2, f"{ledger.num_parked} host blocks are parked for 2 tables with the same 2 keys"
            churn(ledger)
            for ticket in tickets:
                ledger.swap_in(ticket)

    def test_what_stays_is_not_copied(self) -> None:
        """Asked of those that declare `reservation`: a key that stays on the device is parked and brought back without a copy."""
        for make in self.swapping() if "reservation" in self.abilities else ():
            ledger, chain = make(NUM_BLOCKS), key_chain(1, 2)
            table = ledger.fill(chain)
            ticket = put_away(ledger, table)
            back = ledger.swap_in(ticket)
            assert back == table, f"blocks {table} were parked, nothing was taken meanwhile, and {back} came back"
            assert not ledger.num_copied, f"{ledger.num_copied} copies were made for two blocks that never left the device"

    def test_a_slot_is_read_before_it_is_used_again(self) -> None:
        """hold takes a device block for a host hit, which may evict, which may displace what the host caches: not what is held."""
        for make in self.swapping():
            for ledger, (oldest, *_) in full_host(make):
                ledger.give(ledger.fill(key_chain(*range(2))))
                match = ledger.find([oldest])
                if match.blocks:
                    assert ledger.hold(match) is not None, f"hold refused {match} right after its find"

    def test_a_stale_host_match_is_refused(self) -> None:
        """A match whose host hits were displaced since is None."""
        for make in self.swapping():
            for ledger, (oldest, *_) in full_host(make):
                match = ledger.find([oldest])
                park_everywhere(ledger)
                if match.blocks and not ledger.find([oldest]).blocks:
                    assert ledger.hold(match) is None, "hold gave what was displaced from the host since it was found"

    def test_what_was_held_makes_room(self) -> None:
        """Nothing stays pinned: after any number of host hits the whole host is there for who parks."""
        for make in self.swapping():
            for ledger, keys in full_host(make):
                for key in keys[:3]:
                    match = ledger.find([key])
                    ledger.give(ledger.hold(match) or [])
                park_everywhere(ledger)

    def test_what_nobody_parked_makes_room(self) -> None:
        """Slots that cache what was evicted or dropped are there for whoever parks next."""
        for make in self.swapping():
            for ledger, _ in full_host(make):
                park_everywhere(ledger)

    def test_counts_of_the_host_are_true(self) -> None:
        """num_host_cached <= num_host_used <= num_host_blocks, and the difference of the first two is what tickets list, at every moment."""
        for make in self.swapping():
            ledger = make(NUM_BLOCKS)
            table = ledger.fill(key_chain(1, 2)) if ledger.caches else ledger.take(2) or []
            tickets = [parked(ledger, table) for _ in range(2)]
            ledger.check_stats()
            ledger.give(table)
            ledger.give(ledger.take(NUM_BLOCKS) or [])
            ledger.check_stats()
            ledger.drop(tickets[0])
            ledger.check_stats()
            ledger.swap_in(tickets[1])
            ledger.check_stats()

    def test_a_full_host_refuses_and_changes_nothing(self) -> None:
        """When the host is full, swap_out is None; copies nothing, and what is parked comes back whole."""
        for make in self.swapping():
            ledger = make(NUM_BLOCKS)
            assert ledger.swap
            table, tickets = ledger.take(2) or [], []
            for _ in range(ledger.swap.num_host_blocks // 2):
                ledger.write(table[0])
                tickets.append(parked(ledger, table))
            assert ledger.swap_out(ledger.take(2) or []) is None, f"{len(tickets)} tables of 2 blocks are parked on {ledger.swap.num_host_blocks} host blocks"
            for ticket in tickets:
                ledger.give(ledger.swap_in(ticket) or [])

    def test_no_room_on_the_device_keeps_the_ticket(self) -> None:
        """swap_in without enough device blocks is None and changes nothing: later the ticket is as good as before."""
        for make in self.swapping():
            ledger = make(NUM_BLOCKS)
            table = ledger.take(3) or []
            ticket = put_away(ledger, table)
            others = ledger.take(NUM_BLOCKS - 1) or []
            assert ledger.swap_in(ticket) is None, "swap_in of 3 private blocks with 1 available must be None"
            ledger.give(others)
            assert ledger.swap_in(ticket) is not None, "a ticket that was refused once is never taken again"

    def test_a_refused_return_holds_nothing(self) -> None:
        """swap_in that finds room for a part of a ticket leaves that part as it was: `available`, and what is idle."""
        for make in self.swapping():
            ledger = make(NUM_BLOCKS)
            table = ledger.fill(key_chain(1, 2)) if ledger.caches else ledger.take(2) or []
            table += ledger.take(2) or []
            ticket = put_away(ledger, table)
            others = ledger.take(NUM_BLOCKS - 3) or []
            for _ in range(2):
                assert ledger.swap_in(ticket) is None, "swap_in of 4 blocks with 3 available must be None"
            assert ledger.take(3) is not None, "after a refused swap_in the 3 blocks that were available cannot be taken"
            ledger.give(others)
            assert ledger.swap_in(ticket) is None, "swap_in of 4 blocks with 3 available must be None"

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


def parked(ledger: Ledger, table: list[int]) -> Ticket:
    ticket = ledger.swap_out(table)
    assert ticket is not None, f"swap_out of {len(table)} blocks refused, with room on the host"
    return ticket


def put_away(ledger: Ledger, table: list[int]) -> Ticket:
    """Parked, and given back."""
    ticket = parked(ledger, table)
    ledger.give(table)
    return ticket


def _siblings(ledger: Ledger, chain: Sequence[BlockKey]) -> tuple[list[int], list[Ticket]]:
    """Two tables of the same blocks are parked, one after the other."""
    table = ledger.fill(chain)
    ledger.share(table)
    tickets = []
    for _ in range(2):
        tickets.append(parked(ledger, table))
        ledger.give(table)
    return table, tickets


def churn(ledger: Ledger) -> None:
    """Every block that nobody uses is taken, written and given back."""
    ledger.give(ledger.take(ledger.stack.available) or [])


def full_host(make: Callable[[int], Ledger]) -> Iterator[tuple[Ledger, list[BlockKey]]]:
    """A device of 2 blocks, and a host that caches as many keys as it likes; they were parked, evicted and dropped one by one."""
    ledger = make(2)
    if ledger.caches and ledger.swap:
        keys = [key_chain(name)[0] for name in range(100, 100 + min(ledger.swap.num_host_blocks, MOST))]
        for key in keys:
            table = ledger.fill([key])
            ticket = put_away(ledger, table)
            churn(ledger)
            ledger.drop(ticket)
        yield ledger, keys


def park_everywhere(ledger: Ledger) -> None:
    assert ledger.swap
    table = ledger.take(1) or []
    for turn in range(min(ledger.swap.num_host_blocks, MOST)):
        assert ledger.swap_out(table) is not None, f"after {turn} blocks that were parked, a host of {ledger.swap.num_host_blocks} is full"
