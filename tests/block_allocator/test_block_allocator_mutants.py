"""Every law of the kit is needed: a planted fault for each, which that law finds. The machine finds by itself what corrupts an answer."""

from __future__ import annotations

import pytest
from block_allocator_mutants import MUTANTS, Mutant
from kit_mutants import breaks, laws, subject
from test_block_allocator_kit import CACHE, HOST

from corekit.testing import BlockAllocatorKit, Kit

OF_ANY_KIT = {name for name in dir(Kit) if name.startswith("test_")}
STACKS = {"bottom": (), "layer": ("free-list",), "cache": ("free-list",), "host": (CACHE, "free-list"), "above": (HOST, CACHE, "free-list")}
ABILITIES = {
    "host": frozenset({"swap", "prefix_cache", "reservation", "shared_slots"}),
    "cache": frozenset({"prefix_cache", "retention"}),
}
WASTEFUL = (
    *("Sorts", "HidesCache", "Backwards", "Touches", "RootsFirst", "IdleFirst", "AlwaysCopies", "NoSlots", "NoInner", "Searches"),
    *("DropsRetention", "RetainsNothing", "RetainsItsOwn", "LastWordCounts", "NeverEnds"),
)
"""They do too much, or too little for others; no request reads what is not its own."""
UNASKED = (
    *("BelievesMatches", "BelievesHostMatches", "ByHash", "ByFields", "SilentEviction"),
    *("ForgetsTheIdle", "ForgetsInSilence", "LosesWhatIsAwaited", "KeepsTheHost"),
)
"""The machine keeps no match, knows one group and no colliding hashes, has no layer above the stack, and never forgets."""


@pytest.mark.parametrize("mutant", MUTANTS, ids=lambda mutant: mutant.part.__name__)
def test_a_planted_fault_is_found_by_its_law(mutant: Mutant) -> None:
    kit = subject(BlockAllocatorKit, mutant.provider, beneath=STACKS[mutant.kit], abilities=ABILITIES.get(mutant.kit, frozenset()))
    assert breaks(kit, mutant.law).startswith("AssertionError: "), "the law must say what is wrong"


@pytest.mark.parametrize("mutant", [mutant for mutant in MUTANTS if mutant.part.__name__ not in (*WASTEFUL, *UNASKED)], ids=lambda mutant: mutant.part.__name__)
def test_the_machine_finds_what_corrupts(mutant: Mutant) -> None:
    kit = subject(BlockAllocatorKit, mutant.provider, beneath=STACKS[mutant.kit])
    found = breaks(kit, "test_every_request_reads_its_own_tokens") or breaks(kit, "test_everything_is_back_at_the_end")
    assert found, "every request read its own tokens, and all came back"


def test_every_law_has_a_fault_of_its_own() -> None:
    wanted = [mutant.law for mutant in MUTANTS]
    assert set(wanted) == set(laws(subject(BlockAllocatorKit, "free-list"))) - OF_ANY_KIT
