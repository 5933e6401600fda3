"""What is particular to free-list; what every bottom owes is in the kit."""

from __future__ import annotations

import pytest

from corekit.api import BlockKey, BlockRef, Blocks, CachedBlock, PrefixMatch, PrefixQuery, SupportsAudit, SupportsPrefixCache, SupportsSwap
from corekit.builtin.free_list import FreeList

KEY = BlockKey(hash=b"x" * 32, parent=None, tokens=(1, 2))


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


def test_a_negative_count_is_refused() -> None:
    assert FreeList(3).take(-1) is None


@pytest.mark.parametrize("num_blocks", [0, -3])
def test_a_pool_has_a_block(num_blocks: int) -> None:
    with pytest.raises(ValueError, match="at least 1"):
        FreeList(num_blocks)


def test_a_pool_of_a_hundred_million_blocks_is_built_at_once() -> None:
    layer = FreeList(100_000_000)
    assert layer.take(3) == Blocks((1, 2, 3))
    assert layer.available == 99_999_997
