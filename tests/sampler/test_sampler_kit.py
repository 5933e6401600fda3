"""The kit of samplers on our own, and on broken ones."""

from __future__ import annotations

import pytest
from kit_mutants import breaks, laws, subject
from sampler_mutants import MUTANTS, Right, provider_of

from corekit.testing import SamplerKit


class TestTorch(SamplerKit):
    provider = "torch"


@pytest.mark.parametrize("mutant", MUTANTS, ids=lambda mutant: mutant.__name__)
def test_a_broken_sampler_breaks_its_law(mutant: type[Right]) -> None:
    assert breaks(subject(SamplerKit, provider_of(mutant)), MUTANTS[mutant])


def test_every_mutant_has_a_law_of_its_own() -> None:
    assert len(set(MUTANTS.values())) == len(MUTANTS) >= 8


def test_the_right_sampler_breaks_none() -> None:
    kit = subject(SamplerKit, provider_of(Right))
    assert not [message for law in laws(kit) if (message := breaks(kit, law))]
