"""Every law of the kit is needed: a planted fault for each, which that law finds."""

from __future__ import annotations

import pytest
from block_allocator_mutants import MUTANTS, Mutant
from kit_mutants import breaks, laws, subject
from test_block_allocator_kit import CACHE, HOST

from corekit.testing import BlockAllocatorKit, Kit

OF_ANY_KIT = {name for name in dir(Kit) if name.startswith("test_")}
STACKS = {"bottom": (), "layer": ("free-list",), "cache": ("free-list",), "host": (CACHE, "free-list"), "above": (HOST, CACHE, "free-list")}
ABILITIES = {"host": frozenset({"swap", "prefix_cache"}), "cache": frozenset({"prefix_cache"})}


@pytest.mark.parametrize("mutant", MUTANTS, ids=lambda mutant: mutant.part.__name__)
def test_a_planted_fault_is_found_by_its_law(mutant: Mutant) -> None:
    kit = subject(BlockAllocatorKit, mutant.provider, beneath=STACKS[mutant.kit], abilities=ABILITIES.get(mutant.kit, frozenset()))
    assert breaks(kit, mutant.law).startswith("AssertionError: "), "the law must say what is wrong"


def test_every_law_has_a_fault_of_its_own() -> None:
    wanted = [mutant.law for mutant in MUTANTS]
    assert sorted(wanted) == sorted(set(laws(subject(BlockAllocatorKit, "free-list"))) - OF_ANY_KIT)
