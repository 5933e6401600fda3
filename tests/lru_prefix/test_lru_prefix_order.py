"""Which block goes next: the exact order against a model in plain dictionaries, and that the comparison sees what is broken."""

from __future__ import annotations

import pytest
from corekit_lru_prefix.layer import LruPrefix
from lru_prefix_model import NUM_SEEDS, chain, filled, kept, layer, walk
from lru_prefix_mutants import MUTANTS

from corekit.api import BlockRef, Blocks, CachedBlock, PrefixMatch, PrefixQuery


@pytest.mark.parametrize("seed", range(NUM_SEEDS))
def test_walks_agree_with_plain_dictionaries(seed: int) -> None:
    walk(seed)


@pytest.mark.parametrize("mutant", MUTANTS, ids=lambda mutant: mutant.__name__)
def test_the_walks_see_a_mutant(mutant: type[LruPrefix]) -> None:
    assert any(parts(seed, mutant) for seed in range(NUM_SEEDS)), f"no walk sees: {mutant.__doc__}"


def parts(seed: int, mutant: type[LruPrefix]) -> bool:
    try:
        walk(seed, mutant)
    except AssertionError:
        return True
    return False


def test_a_pool_of_three_blocks() -> None:
    """The end of a prompt goes first, what is left of it is a hit, and a block with new content is not found by its old key."""
    cache, keys, (other,) = layer(3), chain(1, 2, 3), chain(4)
    table = filled(cache, keys)
    cache.give(table)
    taken = cache.take(1)
    assert taken == Blocks(table.ids[2:])
    match = cache.find(PrefixQuery(keys))
    assert [cached.place.block for cached in match.blocks] == list(table.ids[:2]) and match.num_taken == 2
    assert cache.publish(taken.ids[0], other)
    assert kept(cache, [keys[2], other]) == [False, True]
    assert cache.hold(match) == Blocks(table.ids[:2])
    assert cache.available == 0 and cache.take(1) is None  # blocks in use are never evicted


def test_a_key_finds_one_block_for_as_long_as_that_is_there() -> None:
    cache, (key,) = layer(4), chain(1)
    (first,) = filled(cache, [key]).ids
    (second,) = (cache.take(1) or Blocks()).ids
    assert cache.publish(first, key) and not cache.publish(second, key)
    cache.give(Blocks((first,)))
    assert not cache.publish(second, key)  # an idle block holds it still
    assert cache.take(3) is not None and kept(cache, [key]) == [False]
    assert cache.publish(second, key) and kept(cache, [key]) == [True]


def test_a_match_that_a_layer_above_made_anew_is_held() -> None:
    """What counts is that each key still finds that block, not who made the match."""
    cache, keys = layer(4), chain(1, 2)
    table = filled(cache, keys)
    cache.give(table)
    anew = PrefixMatch(tuple(CachedBlock(key, BlockRef(block)) for key, block in zip(keys, table.ids, strict=True)), 2)
    assert cache.hold(anew) == table
    on_host = PrefixMatch((CachedBlock(keys[0], BlockRef(table.ids[0], on_host=True)),))
    assert cache.hold(on_host) is None


def test_a_block_has_one_key() -> None:
    """A full block does not change: a second key for it would make the first one find other content."""
    cache, (one, two) = layer(4), chain(1, 2)
    (block,) = filled(cache, [one]).ids
    with pytest.raises(ValueError, match=r"holds .* already"):
        cache.publish(block, two)
    assert kept(cache, [one, two]) == [True, False]


def test_the_sink_hears_before_take_returns() -> None:
    cache, keys = layer(3), chain(1, 2, 3)
    table, told = filled(cache, keys), list[object]()
    cache.set_sink(lambda block, key: told.append((block, key, cache.take(0))))
    cache.give(table)
    assert cache.take(4) is None and not told
    assert cache.take(2) is not None
    assert told == [(table.ids[2], keys[2], Blocks()), (table.ids[1], keys[1], Blocks())]


@pytest.mark.parametrize(
    ("harm", "says"),
    [
        (lambda cache: cache._key_of.popitem(), "differ"),
        (lambda cache: cache._aside.update({next(iter(cache._idle)): 1}), "idle twice"),
        (lambda cache: cache._idle.update({chain(9)[0]: 1}), "1 idle blocks are not found"),
        (lambda cache: cache._lifetimes.watch(chain(9)[0]), "1 watched blocks"),
        (lambda cache: cache._retention.prolong(chain(9)[0], 1e9), "1 retained blocks"),
        (lambda cache: setattr(cache._retention, "most", -1), "0 blocks are retained, -1 are allowed"),
        (lambda cache: cache._aside.update([cache._idle.popitem()]), "retention that is over"),
        (lambda cache: cache._ripe.put(next(iter(cache._idle)), 1), "1 keys of blocks that are not aside"),
        (lambda cache: cache._aside.update([cache._idle.popitem()]), "order of its numbers"),
    ],
)
def test_the_audit_finds_what_is_wrong(harm: object, says: str) -> None:
    cache, keys = layer(6), chain(1, 2, 3)
    cache.give(filled(cache, keys))
    assert cache.audit() == []
    assert callable(harm)
    harm(cache)
    assert any(says in problem for problem in cache.audit())
