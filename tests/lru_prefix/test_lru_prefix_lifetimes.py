"""What is seen of watched blocks: how long they stay, how long they lie idle, how soon they are used again."""

from __future__ import annotations

from bisect import bisect_left

import pytest
from corekit_lru_prefix.lifetimes import BOUNDS
from lru_prefix_model import Clock, chain, filled, layer

from corekit.api import Blocks, Durations, PrefixQuery


def durations(*seconds: float) -> Durations:
    counts = [0] * (len(BOUNDS) + 1)
    for one in seconds:
        counts[bisect_left(BOUNDS, one)] += 1
    return Durations(bounds=BOUNDS, counts=tuple(counts), sum=sum(seconds))


def test_a_life_is_measured_from_publish_to_eviction() -> None:
    clock = Clock()
    cache, keys = layer(2, clock=clock, sample_every=1), chain(1)
    table = filled(cache, keys)
    clock.now += 3  # in use
    cache.give(table)
    clock.now += 8  # idle
    table = cache.hold(cache.find(PrefixQuery(keys))) or Blocks()
    assert cache.stats().reuse_gap == durations(8)
    clock.now += 1  # in use
    cache.give(table)
    clock.now += 100  # idle
    before = cache.stats()
    assert before.residency == before.idle_before_evict == durations()
    cache.take(2)
    stats = cache.stats()
    assert (stats.residency, stats.idle_before_evict, stats.reuse_gap) == (durations(112), durations(100), durations(8))


def test_sharing_a_used_block_is_no_reuse() -> None:
    """It was not idle between."""
    clock = Clock()
    cache, keys = layer(2, clock=clock, sample_every=1), chain(1)
    filled(cache, keys)
    clock.now += 5
    cache.hold(cache.find(PrefixQuery(keys)))
    assert cache.stats().reuse_gap == durations()


def test_a_duration_on_a_bound_counts_below_it() -> None:
    """bounds[i - 1] < seconds <= bounds[i]; what is above all bounds goes into the last count."""
    clock = Clock()
    clock.now = 0.0
    cache = layer(1, clock=clock, sample_every=1)
    told = []
    for number, seconds in enumerate((0.0, BOUNDS[0], BOUNDS[3], BOUNDS[-1], 2 * BOUNDS[-1])):
        clock.now = 0.0
        cache.give(filled(cache, chain(number)))
        clock.now = seconds
        cache.give(cache.take(1) or Blocks())
        told.append(seconds)
    residency = cache.stats().residency
    assert residency.counts[0] == 2 and residency.counts[3] == residency.counts[-2] == residency.counts[-1] == 1
    assert sum(residency.counts) == 5 and len(residency.counts) == len(residency.bounds) + 1
    assert residency.sum == pytest.approx(sum(told))


def test_bounds_reach_from_a_millisecond_to_hours() -> None:
    assert BOUNDS[0] == 0.001 and 4 * 3600 < BOUNDS[-1] < 5 * 3600 and list(BOUNDS) == sorted(set(BOUNDS))


@pytest.mark.parametrize("every", [2, 8, 64])
def test_one_block_in_so_many_is_watched(every: int) -> None:
    """On average, whatever the rhythm: the blocks of a table at every position are among them."""
    length, rounds = 8, 40 * every
    cache, watched = layer(length, sample_every=every), [0] * length
    for turn in range(rounds):
        keys = chain(*range(turn, turn + length))
        cache.give(filled(cache, keys))
        for at, key in enumerate(keys):
            watched[at] += key in cache._lifetimes.watched
    assert sum(watched) * every == pytest.approx(length * rounds, rel=0.25)
    assert all(count * every > 0.3 * rounds for count in watched)


def test_none_is_watched() -> None:
    clock = Clock()
    cache = layer(2, clock=clock)
    for turn in range(200):
        cache.give(filled(cache, chain(turn)))
    assert not cache._lifetimes.watched and not clock.num_calls
    assert cache.stats().residency == durations()


def test_looking_again_makes_no_new_histogram() -> None:
    cache = layer(2, sample_every=1)
    for turn in range(3):
        cache.give(filled(cache, chain(turn)))
    first = cache.stats()
    assert first.residency is cache.stats().residency
    cache.give(filled(cache, chain(9)))
    assert cache.stats().residency is not first.residency and first.residency == durations(0.0)
