"""The law bites: every planted fault of mutants.py breaks it within a few hundred walks."""

from __future__ import annotations

import random
import signal

import pytest

from mutants import MUTANTS, Mutant, planted
from walk import walk

MAX_WALKS = 400
SECONDS_PER_WALK = 5


class HungError(BaseException):
    """A mutant may loop for ever inside one plan."""


def _hung(*_: object) -> None:
    raise HungError


def caught(first: int = 0) -> str | None:
    """How the law noticed; None if it did not."""
    signal.signal(signal.SIGALRM, _hung)
    for seed in range(first, first + MAX_WALKS):
        signal.alarm(SECONDS_PER_WALK)
        try:
            walk(random.Random(seed))
        except (Exception, HungError) as error:
            return f"walk {seed}: {error!r}"
        finally:
            signal.alarm(0)
    return None


@pytest.mark.parametrize("one", MUTANTS, ids=lambda one: one.name)
def test_the_law_catches(one: Mutant) -> None:
    with planted(one):
        assert caught(), f"the law did not notice: {one.name}"
