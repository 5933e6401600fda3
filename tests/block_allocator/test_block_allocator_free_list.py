"""The bottom of the allocator stack against a plain set of free blocks."""

from __future__ import annotations

import time

import pytest
from hypothesis import given
from hypothesis import strategies as st

from corekit.api import BlockKey, BlockRef, Blocks, CachedBlock, PrefixMatch, PrefixQuery, SupportsAudit, SupportsPrefixCache, SupportsSwap
from corekit.builtin.free_list import FreeList

KEY = BlockKey(hash=b"x" * 32, parent=None, tokens=(1, 2))


@given(num_blocks=st.integers(1, 12), moves=st.lists(st.tuples(st.booleans(), st.integers(0, 14)), max_size=60))
def test_a_block_is_free_or_used_and_never_both(num_blocks: int, moves: list[tuple[bool, int]]) -> None:
    layer = FreeList(num_blocks)
    used: list[Blocks] = []
    free = set(range(1, num_blocks + 1))
    for taking, number in moves:
        if taking:
            blocks = layer.take(number)
            if number > len(free):
                assert blocks is None
            else:
                assert blocks is not None
                assert len(blocks.ids) == len(set(blocks.ids)) == number
                assert set(blocks.ids) <= free
                free -= set(blocks.ids)
                used.append(blocks)
        elif used:
            blocks = used.pop(number % len(used))
            layer.give(blocks)
            free |= set(blocks.ids)
        assert layer.available == layer.stats().num_free == len(free)
    for blocks in used:
        layer.give(blocks)
    assert layer.audit() == []
    everything = layer.take(num_blocks)
    assert everything is not None
    assert sorted(everything.ids) == list(range(1, num_blocks + 1))


def test_a_refusal_changes_nothing() -> None:
    layer = FreeList(3)
    first = layer.take(2)
    assert layer.take(2) is None
    assert layer.take(-1) is None
    assert layer.available == 1
    assert first is not None
    layer.give(first)
    assert layer.audit() == []


def test_nothing_is_findable() -> None:
    layer = FreeList(4)
    blocks = layer.take(1)
    assert blocks is not None
    assert layer.publish(blocks.ids[0], KEY)
    assert layer.find(PrefixQuery((KEY,))) == PrefixMatch()
    assert layer.hold(PrefixMatch()) == Blocks()
    assert layer.hold(PrefixMatch((CachedBlock(KEY, BlockRef(1)),))) is None
    assert isinstance(layer, SupportsAudit)
    assert not isinstance(layer, SupportsPrefixCache | SupportsSwap)


def test_the_audit_finds_what_is_wrong() -> None:
    kept = FreeList(4)
    kept.take(1)
    assert kept.audit() == []  # a layer above may keep idle blocks
    twice = FreeList(4)
    blocks = twice.take(1)
    assert blocks is not None
    twice.give(blocks)
    twice.give(blocks)
    assert any("twice" in problem for problem in twice.audit())
    stray = FreeList(4)
    stray.give(Blocks((4,)))
    assert any("never taken" in problem for problem in stray.audit())


@pytest.mark.parametrize("num_blocks", [0, -3])
def test_a_pool_has_a_block(num_blocks: int) -> None:
    with pytest.raises(ValueError, match="at least 1"):
        FreeList(num_blocks)


def test_the_size_of_the_pool_costs_nothing() -> None:
    begun = time.perf_counter()
    layer = FreeList(100_000_000)
    for _ in range(100):
        blocks = layer.take(10)
        assert blocks is not None
        layer.give(blocks)
    assert time.perf_counter() - begun < 1.0
