"""What `retain_until` promises: others go first until then, while there are others, and never the whole pool."""

from __future__ import annotations

import pytest
from lru_prefix_model import Clock, chain, filled, kept, layer

from corekit.api import Blocks, PrefixQuery


def test_a_retained_prefix_outlives_younger_ones() -> None:
    clock = Clock()
    cache, old, young = layer(8, clock=clock), chain(1, 2), chain(3, 4)
    cache.give(filled(cache, old, clock.now + 10))
    cache.give(filled(cache, young))
    assert cache.take(6) is not None  # four are free
    assert kept(cache, old) == [True, True] and kept(cache, young) == [False, False]


def test_after_the_deadline_it_is_as_old_as_it_is() -> None:
    """Passed over once, and yet it goes before what was used after it."""
    clock = Clock()
    cache, old, young = layer(8, clock=clock), chain(1, 2), chain(3, 4, 5, 6, 7, 8)
    cache.give(filled(cache, old, clock.now + 10))
    cache.give(filled(cache, young))
    cache.give(cache.take(1) or Blocks())
    assert kept(cache, young) == [True] * 5 + [False]
    clock.now += 10
    cache.take(1)
    cache.take(2)
    assert kept(cache, old) == [False, False] and kept(cache, young) == [True] * 5 + [False]


def test_those_whose_deadline_passed_go_in_the_order_of_their_use() -> None:
    clock = Clock()
    cache, first, second, third = layer(12, clock=clock), chain(1), chain(2), chain(3)
    for keys, seconds in ((first, 20), (second, 10)):
        cache.give(filled(cache, keys, clock.now + seconds))
    cache.give(filled(cache, third))
    assert cache.take(10) is not None and kept(cache, [*first, *second, *third]) == [True, True, False]
    clock.now += 20
    assert cache.stats().num_retained == 0
    assert cache.take(1) is not None and kept(cache, [*first, *second]) == [False, True]


def test_retained_blocks_are_available_and_go_last() -> None:
    """A prefix is kept while memory allows: nobody is refused for it, and the least recently used of it goes first."""
    clock = Clock()
    cache, old, new = layer(8, clock=clock), chain(1), chain(2)
    cache.give(filled(cache, old, clock.now + 10))
    cache.give(filled(cache, new, clock.now + 5))
    assert cache.available == 8
    assert cache.take(7) is not None and kept(cache, [*old, *new]) == [False, True]
    assert cache.take(1) is not None and kept(cache, new) == [False]
    assert cache.stats().num_retained == 0
    assert cache.stats().num_evicted == 2


@pytest.mark.parametrize(("max_retained", "most"), [(0.0, 0), (0.25, 2), (0.5, 5), (0.9, 9)])
def test_retention_never_fills_the_pool(max_retained: float, most: int) -> None:
    """However many ask, the bound holds, and the first of a table are those that are kept."""
    clock = Clock()
    cache, keys = layer(10, clock=clock, max_retained=max_retained), chain(*range(10))
    cache.give(filled(cache, keys, clock.now + 10))
    assert cache.stats().num_retained == most
    cache.give(cache.take(10 - most) or Blocks())
    assert kept(cache, keys) == [True] * most + [False] * (10 - most)
    for turn in range(5):
        cache.give(filled(cache, chain(*range(100 * turn, 100 * turn + 10 - most)), clock.now + 1000))
        assert cache.stats().num_retained == most
        assert kept(cache, keys[:most]) == [True] * most


def test_room_under_the_bound_comes_back_when_deadlines_pass() -> None:
    clock = Clock()
    cache, old, new = layer(8, clock=clock), chain(1, 2), chain(3, 4)
    cache.give(filled(cache, old, clock.now + 10))
    table = filled(cache, new, clock.now + 100)
    assert cache.stats().num_retained == 2
    clock.now += 10
    for block, key in zip(table.ids, new, strict=True):
        assert cache.publish(block, key, clock.now + 100)
    assert cache.stats().num_retained == 2
    cache.give(table)
    assert cache.take(6) is not None and kept(cache, [*old, *new]) == [False, False, True, True]


def test_publishing_again_prolongs_and_never_shortens() -> None:
    clock = Clock()
    cache, keys = layer(4, clock=clock), chain(1)
    (block,) = filled(cache, keys, clock.now + 10).ids
    for seconds in (5, 20, 1):
        assert cache.publish(block, keys[0], clock.now + seconds)
        assert cache.publish(block, keys[0])
    for left in (15, 4.5, 0.5):
        assert cache.stats().num_retained == 1
        clock.now += left
    assert cache.stats().num_retained == 0


def test_a_retained_block_that_is_used_again_is_retained_still() -> None:
    clock = Clock()
    cache, keys, others = layer(4, clock=clock), chain(1), chain(2, 3, 4)
    cache.give(filled(cache, keys, clock.now + 10))
    table = cache.hold(cache.find(PrefixQuery(keys)))
    assert table is not None and cache.stats().num_retained == 1
    cache.give(table)
    cache.give(filled(cache, others))
    assert cache.take(3) is not None and kept(cache, keys) == [True]


def test_deadlines_of_evicted_blocks_do_not_pile_up() -> None:
    """A pool that is turned over for ever, always with long retentions: what is remembered is remembered of blocks that are there."""
    clock = Clock()
    cache = layer(8, clock=clock)
    for turn in range(2000):
        cache.give(filled(cache, chain(turn, -turn), clock.now + 1e6))
        cache.give(cache.take(8) or Blocks())
    assert not cache._retention.keys and len(cache._numbers) <= 8


def test_what_was_retained_and_is_used_again_does_not_pile_up() -> None:
    """A pool in which nothing is ever evicted, and retentions pass: whoever is used again waits for its eviction no more."""
    clock = Clock()
    cache, keys = layer(8, clock=clock), chain(1, 2)
    filled(cache, chain(3))
    table = filled(cache, keys)
    for _ in range(100):
        for block, key in zip(table.ids, keys, strict=True):
            assert cache.publish(block, key, clock.now + 1)
        cache.give(table)
        clock.now += 1
        assert cache.stats().num_retained == 0 and cache._ripe.keys == {*keys}
        table = cache.hold(cache.find(PrefixQuery(keys))) or Blocks()
        assert len(cache._ripe.keys) == 0 and cache.audit() == []


def test_retaining_what_nobody_uses_ends_with_its_eviction() -> None:
    """Nobody may ask for that. If somebody does, the block goes in its turn, and takes its deadline along."""
    clock = Clock()
    cache, keys = layer(4, clock=clock), chain(1)
    table = filled(cache, keys)
    cache.give(table)
    assert cache.publish(table.ids[0], keys[0], clock.now + 10)
    assert cache.take(4) is not None
    assert cache.stats().num_retained == 0 and cache.audit() == []


def test_only_retained_and_watched_blocks_cost_a_look_at_the_clock() -> None:
    clock = Clock()
    cache = layer(8, clock=clock)
    for turn in range(50):
        keys = chain(turn, turn + 1, turn + 2)
        cache.give(filled(cache, keys))
        cache.give(cache.hold(cache.find(PrefixQuery(keys))) or Blocks())
        cache.stats()
    assert cache.stats().num_evicted and not clock.num_calls
    filled(cache, chain(1000), clock.now + 1)
    cache.take(4)
    assert clock.num_calls == 1
