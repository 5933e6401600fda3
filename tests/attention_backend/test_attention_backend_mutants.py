"""Every law of the kit is needed: a planted fault for each, which that law finds."""

from __future__ import annotations

import pytest
from attention_backend_mutants import MUTANTS, Mutant
from kit_mutants import breaks, laws, subject
from plain_attention import PLAIN

from corekit.testing import AttentionBackendKit, Kit
from corekit.testing.attention_features import FEATURES

OF_ANY_KIT = {name for name in dir(Kit) if name.startswith("test_")}


@pytest.mark.parametrize("mutant", MUTANTS, ids=lambda mutant: mutant.part.__name__)
def test_a_planted_fault_is_found_by_its_law(mutant: Mutant) -> None:
    features = FEATURES if mutant.features is None else mutant.features
    kit = subject(AttentionBackendKit, mutant.provider, dtypes=("float32", "float64"), features=features)
    assert breaks(kit, mutant.law).startswith("AssertionError: "), "the law must say what is wrong"


def test_every_law_has_a_fault_of_its_own() -> None:
    wanted = [mutant.law for mutant in MUTANTS]
    assert sorted(wanted) == sorted(set(laws(subject(AttentionBackendKit, PLAIN))) - OF_ANY_KIT)
