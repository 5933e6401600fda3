"""The host as a second tier of the prefix cache: what is caught, found, brought back and displaced."""

from __future__ import annotations

import pytest
from corekit_cpu_swap.layer import CpuSwap
from cpu_swap_rig import Asked, Rig, Written, key_chain

from corekit.api import BlockKey, BlockRef, CachedBlock, PrefixMatch, PrefixQuery
from corekit.builtin.free_list import FreeList
from corekit.testing.prefix_cache import PlainPrefixCache


def _cached(rig: Rig, *names: int) -> list[BlockKey]:
    """A prefix that only the host still has."""
    keys = key_chain(*names)
    rig.give(rig.fill(keys))
    rig.evict()
    return keys


def test_what_was_evicted_comes_back_by_copy() -> None:
    rig = Rig(num_blocks=4)
    keys = _cached(rig, 1, 2, 3)
    assert (rig.places(keys), rig.host, rig.journal.num_out) == ("hhh", (3, 3), 3)
    match = rig.find(keys)
    assert match.num_taken == 3
    table = rig.hold(match)
    assert table is not None
    assert (rig.places(keys), rig.journal.num_in) == ("ddd", 3)
    rig.give(table)
    rig.evict()
    assert (rig.places(keys), rig.journal.num_out) == ("hhh", 3), "it stayed on the host, so the second eviction copies nothing"


def test_the_device_goes_before_the_host() -> None:
    rig = Rig(num_blocks=4)
    keys = _cached(rig, 1, 2, 3)
    table = rig.hold(rig.find(keys[:2]))
    assert rig.places(keys) == "ddh"
    assert rig.find(keys).num_taken == 1
    assert rig.hold(rig.find(keys)) is not None
    assert (table or [])[0] in rig.refs


def test_a_find_goes_on_behind_a_hole_in_the_device() -> None:
    rig = Rig(num_blocks=6)
    keys = _cached(rig, 1, 2, 3, 4)
    (second,) = rig.take(1) or [0]
    assert rig.publish(second, keys[1])
    assert rig.places(keys) == "hdhh"
    assert rig.find(keys).num_taken == 3
    assert (rig.hold(rig.find(keys)) or [])[1] == second
    assert rig.places(key_chain(1, root=keys[-1])) == ""


def test_a_find_ends_where_neither_has_the_key() -> None:
    rig = Rig(num_blocks=6)
    keys = _cached(rig, 1, 2)
    assert rig.places([*keys, *key_chain(3, 4, root=keys[-1])]) == "hh"
    assert rig.places(key_chain(9)) == ""


@pytest.mark.parametrize("parked", [False, True])
def test_the_usual_find_asks_once_beneath(parked: bool) -> None:
    asked = Asked(PlainPrefixCache(FreeList(8)))
    layer = CpuSwap(asked, Written(), num_slots=8, max_cached=8)
    keys = key_chain(1, 2, 3)
    taken = layer.take(3)
    assert taken is not None
    for block, key in zip(taken.ids, keys, strict=True):
        layer.publish(block, key)
    if parked:
        layer.swap_out(taken, keys)
    asked.num_finds = 0
    query = PrefixQuery((*keys, *key_chain(4, root=keys[-1])))
    assert len(layer.find(query).blocks) == 3
    assert asked.num_finds == 1
    layer.give(taken)
    layer.take(7)
    asked.num_finds = 0
    places = [cached.place.on_host for cached in layer.find(query).blocks]
    assert places == [False, True, True]
    assert asked.num_finds == 1 + 2, "one key at a time behind the gap: the last of the chain, and the one that nobody has"


def test_a_group_is_asked_for_by_its_own_number() -> None:
    asked = Asked(PlainPrefixCache(FreeList(4)))
    layer, keys = CpuSwap(asked, Written(), num_slots=8, max_cached=8), key_chain(1, 2, 3, 4, group=1)
    taken = layer.take(4)
    assert taken is not None
    for block, key in zip(taken.ids, keys, strict=True):
        layer.publish(block, key)
    ticket = layer.swap_out(taken, keys)
    layer.give(taken)
    layer.give(layer.take(2) or taken)
    match = layer.find(PrefixQuery(keys, 1))
    assert [cached.place.on_host for cached in match.blocks] == [False, False, True, True]
    assert layer.hold(match) is not None
    assert ticket is not None and layer.swap_in(ticket) is not None
    assert asked.groups == {1}


def test_the_least_recently_used_goes_first() -> None:
    rig = Rig(num_blocks=4, host=4)
    old, young = _cached(rig, 1, 2), _cached(rig, 3, 4)
    rig.give(rig.hold(rig.find(old)) or [])  # a hit
    _cached(rig, 5)
    assert (rig.places(old), rig.places(young)) == ("hh", "h"), "the end of the one that nobody hit"
    _cached(rig, 6)
    assert (rig.places(old), rig.places(young)) == ("hh", "")


def test_looking_for_it_is_not_using_it() -> None:
    rig = Rig(num_blocks=4, host=2)
    old = _cached(rig, 1)
    _cached(rig, 2)
    rig.find(old)
    _cached(rig, 3)
    assert rig.places(old) == ""


def test_an_eviction_of_what_is_there_already_is_a_use() -> None:
    rig = Rig(num_blocks=4, host=2)
    old = _cached(rig, 1)
    table = rig.hold(rig.find(old)) or []
    other = _cached(rig, 2)
    rig.give(table)
    rig.evict()
    _cached(rig, 3)
    assert (rig.places(old), rig.places(other)) == ("h", "")


def test_a_displaced_match_is_stale() -> None:
    rig = Rig(num_blocks=4, host=2)
    keys = _cached(rig, 1, 2)
    match = rig.find(keys)
    _cached(rig, 3)
    assert rig.stack.hold(match) is None
    assert rig.journal.num_in == 0
    gone = PrefixMatch((CachedBlock(keys[0], BlockRef(0, True)), CachedBlock(keys[1], BlockRef(1, True))), 2)
    assert rig.stack.hold(gone) is None


def test_a_match_that_is_on_the_device_by_now_is_stale() -> None:
    rig = Rig(num_blocks=6, host=4)
    keys = _cached(rig, 1, 2)
    match = rig.find(keys)
    rig.hold(rig.find(keys[:1]))
    assert rig.stack.hold(match) is None
    assert rig.stack.available == 5


def test_a_hold_without_room_changes_nothing() -> None:
    rig = Rig(num_blocks=4, host=2)
    old, young = _cached(rig, 1), _cached(rig, 2)
    rig.take(4)
    match, before = rig.find(old), rig.stack.stats()
    assert rig.stack.hold(match) is None
    assert (rig.stack.stats(), rig.journal.copies) == (before, [])
    rig.give(sorted(rig.refs))
    _cached(rig, 3)
    assert (rig.places(old), rig.places(young)) == ("", "h"), "what was refused is no use"


def test_what_is_held_is_pinned_on_the_host_too() -> None:
    """The blocks for a host hit come from evictions, whose copies want host blocks: not those of the hit."""
    rig = Rig(num_blocks=4, host=2)
    keys = _cached(rig, 1, 2)
    rig.give(rig.fill(key_chain(3, 4, 5, 6)))
    assert rig.stack.stats().num_free == 0
    assert rig.places(keys) == "hh"
    assert rig.hold(rig.find(keys)) is not None
    assert rig.places(keys) == "dd"
    assert rig.journal.num_out == 2, "there was no host block left for what was evicted"


@pytest.mark.parametrize(("host", "max_cached"), [(8, 0), (8, 1), (8, 3), (2, 2)])
def test_the_cache_keeps_to_its_share(host: int, max_cached: int) -> None:
    rig, keys = Rig(num_blocks=6, host=host, max_cached=max_cached), key_chain(1, 2, 3, 4)
    rig.give(rig.fill(keys))
    rig.evict()
    assert rig.host == (max_cached, max_cached)
    assert rig.places(keys) == "h" * max_cached, "what is kept of a chain is its beginning"
    if host >= 4:
        ticket, _ = rig.park(key_chain(5, 6, 7, 8))
        rig.evict()
        assert rig.host == (4 + max_cached, max_cached)
        rig.drop(ticket)
        assert rig.host == (max_cached, max_cached)


def test_without_a_cache_beneath_nothing_is_kept() -> None:
    rig = Rig(beneath="nothing")
    assert not rig.caches
    ticket, _ = rig.park((), num_private=3)
    assert rig.swap_in(ticket)
    assert rig.host == (0, 0)
