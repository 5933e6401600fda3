"""What parked requests are promised: they come back whole, whatever happens meanwhile, and cost no copy that is not needed."""

from __future__ import annotations

import pytest
from cpu_swap_rig import CACHES, Rig, key_chain

from corekit.api import BlockRef


def test_siblings_park_their_prompt_once() -> None:
    rig, prompt = Rig(num_blocks=16, host=16), key_chain(1, 2, 3)
    leader = rig.fill(prompt)
    tables = [leader + (rig.take(1) or [])]
    for _ in range(3):
        tables.append((rig.hold(rig.find(prompt)) or []) + (rig.take(1) or []))
    tickets = [rig.swap_out(table) for table in tables]
    assert rig.host == (3 + 4, 0)
    for table in tables:
        rig.give(table)
    rig.evict()
    assert rig.journal.num_out == 3 + 4
    for ticket in tickets:
        assert ticket is not None
        assert rig.swap_in(ticket)
    assert rig.journal.num_in == 3 + 4, "the first one back brings the prompt, the others find it on the device"
    assert rig.host == (3, 3), "the prompt stays cached, what was private does not"


def test_what_stays_on_the_device_is_not_copied() -> None:
    rig, keys = Rig(), key_chain(1, 2, 3)
    rig.park(keys, num_private=1)
    assert rig.host == (4, 0)
    assert rig.journal.num_out == 1, "a key that is found on the device only reserves its slot"
    assert rig.places(keys) == "ddd"
    rig.take(rig.stack.available - 2)
    assert rig.journal.num_out == 2, "the copy is made when its block is evicted"
    assert rig.places(keys) == "ddh"
    rig.evict()
    assert rig.journal.num_out == 4
    assert rig.places(keys) == "hhh"


def test_who_comes_back_before_an_eviction_copies_nothing_but_what_is_private() -> None:
    rig, keys = Rig(), key_chain(1, 2, 3)
    ticket, table = rig.park(keys, num_private=1)
    back = rig.swap_in(ticket)
    assert back is not None
    assert back[:3] == table[:3]
    assert rig.journal.num_in == 1
    assert rig.host == (0, 0), "slots that were never filled are free again"


@pytest.mark.parametrize("evicted", range(5))
def test_a_half_evicted_request_copies_the_other_half(evicted: int) -> None:
    rig, keys = Rig(num_blocks=4), key_chain(1, 2, 3, 4)
    ticket, _ = rig.park(keys)
    rig.give(rig.take(evicted) or [])
    assert rig.places(keys) == "d" * (4 - evicted) + "h" * evicted
    assert rig.swap_in(ticket)
    assert (rig.journal.num_out, rig.journal.num_in) == (evicted, evicted)
    assert rig.places(keys) == "dddd", "what came back by copy is findable on the device"


def test_a_hole_in_the_middle_is_filled_from_the_host() -> None:
    rig, keys = Rig(), key_chain(1, 2, 3, 4)
    ticket, _ = rig.park(keys)
    rig.evict()
    third = rig.take(1) or []
    assert rig.publish(third[0], keys[2])
    first = rig.hold(rig.find(keys[:1]))
    assert rig.places(keys) == "dhdh"
    back = rig.swap_in(ticket)
    assert back is not None
    assert (back[0], back[2]) == ((first or [])[0], third[0])
    assert rig.journal.num_in == 1 + 2


def test_without_a_sink_beneath_everything_is_copied_at_once() -> None:
    rig, keys = Rig(beneath="silent"), key_chain(1, 2, 3)
    ticket, _ = rig.park(keys)
    assert rig.journal.num_out == 3
    rig.evict()
    assert rig.places(keys) == "hhh"
    assert rig.swap_in(ticket)


def test_a_key_that_nobody_published_is_copied_and_found() -> None:
    """The core publishes a block once one table lists it; who is parked before that has the key all the same."""
    rig, keys = Rig(), key_chain(1, 2)
    table = rig.fill(keys[:1]) + (rig.take(1) or [])
    rig.content[BlockRef(table[1])] = keys[1]
    ticket = rig.swap_out(table, keys)
    assert ticket is not None
    assert rig.journal.num_out == 1
    rig.give(table)
    assert rig.places(keys) == "dh"
    rig.evict()
    assert rig.journal.num_out == 2
    assert rig.swap_in(ticket)
    assert rig.places(keys) == "dd"


def test_a_full_space_refuses_and_works_later() -> None:
    rig = Rig(host=4)
    ticket, _ = rig.park(key_chain(1, 2, 3))
    table = rig.take(2) or []
    assert rig.swap_out(table) is None
    assert rig.host == (3, 0)
    rig.drop(ticket)
    assert rig.host == (0, 0)
    assert rig.swap_out(table) is not None


def test_a_reserved_slot_is_as_good_as_taken() -> None:
    rig, keys = Rig(host=3), key_chain(1, 2, 3)
    rig.park(keys)
    assert rig.journal.num_out == 0
    assert rig.swap_out(rig.take(1) or []) is None, "the three slots are promised"
    rig.evict()
    assert rig.places(keys) == "hhh"


@pytest.mark.parametrize("beneath", CACHES)
def test_parking_displaces_what_is_cached(beneath: str) -> None:
    rig, old, new = Rig(num_blocks=4, host=4, beneath=beneath), key_chain(1, 2, 3), key_chain(4, 5, 6)
    ticket, _ = rig.park(old)
    rig.evict()
    rig.give(rig.swap_in(ticket) or [])
    assert rig.host == (3, 3)
    rig.evict()
    assert rig.places(old) == "hhh"
    ticket, _ = rig.park(new)
    assert rig.host[0] - rig.host[1] == 3
    assert rig.places(old) == "h", "the room of two more was needed, and a chain is displaced from its end"
    rig.evict()
    assert rig.swap_in(ticket)


def test_parking_does_not_displace_what_it_shares() -> None:
    rig, keys = Rig(num_blocks=4, host=4), key_chain(1, 2, 3)
    ticket, _ = rig.park(keys)
    rig.evict()
    table = rig.swap_in(ticket) or []
    assert rig.host == (3, 3)
    assert rig.swap_out([*table, *(rig.take(1) or [])]) is not None, "three slots hold their keys already, the fourth is free"
    assert rig.host == (4, 0)
    assert rig.journal.num_out == 3 + 1


def test_room_that_the_ticket_itself_shares_is_not_counted_twice() -> None:
    rig, keys = Rig(num_blocks=8, host=4), key_chain(1, 2, 3)
    ticket, _ = rig.park(keys)
    rig.evict()
    table = (rig.swap_in(ticket) or []) + (rig.take(2) or [])
    before = rig.stack.stats()
    assert rig.swap_out(table) is None, "one slot is free, the other three are cached and shared by this very table"
    assert rig.stack.stats() == before
    assert rig.places(keys) == "ddd"


def test_no_room_on_the_device_keeps_the_ticket() -> None:
    rig, keys = Rig(num_blocks=4), key_chain(1, 2)
    ticket, _ = rig.park(keys, num_private=1)
    others = rig.take(2) or []
    assert rig.places(keys) == "dd"
    more = rig.hold(rig.find(keys[:1])) or []
    others += more
    assert rig.stack.available == 1, "one idle block that the ticket needs, and none for what is private"
    assert rig.swap_in(ticket) is None
    assert (rig.journal.num_in, rig.places(keys)) == (0, "dd")
    rig.give(others[:1])
    assert rig.swap_in(ticket) is not None


def test_coming_back_does_not_evict_what_it_needs() -> None:
    rig, keys = Rig(num_blocks=4, host=8), key_chain(1, 2)
    ticket, _ = rig.park(keys, num_private=1)
    rig.give(rig.fill(key_chain(7, 8)))
    assert rig.stack.stats().num_free == 0
    assert rig.places(keys) == "dd"
    assert rig.swap_in(ticket) is not None
    assert rig.journal.num_in == 1, "the oldest idle blocks are its own: they are held before anything is taken"


def test_a_slot_is_used_again_in_the_step_that_reads_it() -> None:
    rig = Rig(num_blocks=4, host=1)
    first, _ = rig.park((), num_private=1)
    second = rig.take(1) or []
    assert rig.swap_in(first)
    assert rig.swap_out(second) is not None, "the copy out of the only slot is journaled before the copy into it"


def test_dropping_one_of_two_keeps_the_other() -> None:
    rig, keys = Rig(), key_chain(1, 2)
    table = rig.fill(keys)
    again = rig.hold(rig.find(keys)) or []
    one, two = rig.swap_out(table), rig.swap_out(again)
    assert one is not None and two is not None
    rig.give(table)
    rig.give(again)
    rig.drop(one)
    rig.evict()
    assert rig.places(keys) == "hh"
    assert rig.swap_in(two)
    assert rig.host == (2, 2)
