"""No call is long: what each costs is counted in instructions, in a small pool and in one of eight times as many retained blocks."""

from __future__ import annotations

import random
from collections.abc import Callable

import pytest
from corekit_lru_prefix.layer import MAX_EXPIRED, LruPrefix
from corekit_lru_prefix.ranking import Ranking
from lru_prefix_model import Clock, chain, filled, kept, layer

from corekit.api import BlockKey, Blocks, PrefixQuery
from corekit.testing.cost import cost_of

SIZES = (500, 4_000)
LIFE = 1_000.0

Prepare = Callable[[LruPrefix, Clock, list[BlockKey]], object]
Call = Callable[[LruPrefix, Clock], object]


def pool(num_retained: int) -> tuple[LruPrefix, Clock, list[BlockKey]]:
    """That many retained blocks, the most that may be, at the head of the order; a few others behind them; nothing is free."""
    clock = Clock()
    cache = layer(num_retained * 10 // 9 + 1, clock=clock, max_retained=0.9)
    keys = [key for number in range(num_retained // 10) for key in chain(*range(10 * number, 10 * number + 10))]
    tables = [filled(cache, keys[at : at + 10], clock.now + LIFE) for at in range(0, num_retained, 10)]
    tables.append(filled(cache, chain(*range(-cache.available, 0))))
    for table in tables:
        cache.give(table)
    assert cache.stats().num_retained == num_retained and cache.take(0) == Blocks()
    return cache, clock, keys


def nothing(cache: LruPrefix, clock: Clock, keys: list[BlockKey]) -> None: ...


def all_pass(cache: LruPrefix, clock: Clock, keys: list[BlockKey]) -> None:
    clock.now += LIFE


def all_were_ripe(cache: LruPrefix, clock: Clock, keys: list[BlockKey]) -> None:
    """All are used again after their time, and given back."""
    clock.now += LIFE
    while cache.stats().num_retained:
        pass
    for at in range(0, len(keys), 10):
        cache.give(cache.hold(cache.find(PrefixQuery(keys[at : at + 10]))) or Blocks())


def take(cache: LruPrefix, clock: Clock) -> None:
    assert cache.take(2) is not None


def look(cache: LruPrefix, clock: Clock) -> None:
    cache.stats()


def retain(cache: LruPrefix, clock: Clock) -> None:
    """One more than may be, unless others' time is over."""
    table = cache.take(1)
    assert table is not None
    cache.publish(table.ids[0], chain(-(10**6))[0], clock.now + LIFE)
    cache.give(table)


@pytest.mark.parametrize("call", [take, look, retain], ids=lambda call: call.__name__)
@pytest.mark.parametrize("prepare", [nothing, all_pass, all_were_ripe], ids=lambda prepare: prepare.__name__)
def test_no_call_walks_what_is_retained(prepare: Prepare, call: Call) -> None:
    costs = []
    for size in SIZES:
        cache, clock, keys = pool(size)
        prepare(cache, clock, keys)
        costs.append(cost_of(lambda cache=cache, clock=clock: call(cache, clock)).num_instructions)  # type: ignore[misc]
        assert cache.audit() == []
    few, many = costs
    assert many < 1.5 * few + 64, f"{few} instructions with {SIZES[0]} retained blocks, {many} with {SIZES[1]}"


def test_those_that_pass_together_are_blocks_like_others_after_a_few_calls() -> None:
    """Each call brings its share; then the oldest goes first, and nothing is retained."""
    cache, clock, keys = pool(250)
    clock.now += LIFE
    for num_retained in (250 - MAX_EXPIRED, 250 - 2 * MAX_EXPIRED, 250 - 3 * MAX_EXPIRED, 0):
        assert cache.stats().num_retained == num_retained
    assert cache.take(12) is not None
    assert kept(cache, keys) == [False] * 10 + [True] * 8 + [False] * 2 + [True] * 230
    assert cache.audit() == []


@pytest.mark.parametrize("seed", range(10))
def test_a_ranking_is_sorted_whatever_is_put_and_removed(seed: int) -> None:
    rng = random.Random(seed)
    ranking, expected, keys = Ranking(), dict[BlockKey, float](), chain(*range(60))
    for _ in range(600):
        key = rng.choice(keys)
        if rng.random() < 0.6:
            expected[key] = rng.randrange(40)
            ranking.put(key, expected[key])
        else:
            expected.pop(key, None)
            ranking.remove(key)
        assert ranking.keys == expected.keys() and ranking.rank(key) == expected.get(key)
        assert not expected or ranking.first == (min(expected.values()), ranking.first[1]) == (expected[ranking.first[1]], ranking.first[1])
    ranks = []
    while ranking.keys:
        ranks.append(ranking.first[0])
        ranking.remove(ranking.first[1])
    assert ranks == sorted(expected.values())
