"""The law bites: every planted fault breaks it within a hundred walks, or a scripted law of rare or wasteful moves, or the law that it names."""

from __future__ import annotations

import random
import signal
from collections.abc import Callable, Sequence

import pytest
import test_engine_law as law
import test_engine_scheduler as work
from memory_mutants import MEMORY_MUTANTS
from mutants import MUTANTS, Mutant, planted
from walk import walk

MAX_WALKS = 100
FIRST_WALKS = 5
"""They catch most faults, in less time than the laws of guesses take."""
SECONDS_PER_WALK = 20
"""Far beyond what a walk takes on a busy machine: a slow walk is no catch."""
SCRIPTED_LAWS = (
    work.test_a_cached_prefix_is_not_computed_again_but_for_its_last_token,
    work.test_a_half_shared_block_is_not_published_until_one_table_lists_it,
    work.test_a_block_that_an_undone_copy_had_holds_the_later_copy,
    work.test_nothing_is_computed_beyond_the_answer_while_it_is_in_flight,
)
LAWS_OF_GUESSES = (
    law.test_a_bad_word_is_not_completed_by_a_guess,
    law.test_a_guess_counts_for_the_penalties_of_the_next,
)


class HungError(BaseException):
    """A mutant may loop for ever inside one plan."""


def _hung(*_: object) -> None:
    raise HungError


def caught(first: int, end: int) -> str | None:
    """How the law noticed; None if it did not."""
    for seed in range(first, end):
        signal.alarm(SECONDS_PER_WALK)
        try:
            walk(random.Random(seed))
        except (Exception, HungError) as error:
            return f"walk {seed}: {error!r}"
        finally:
            signal.alarm(0)
    return None


def noticed(laws: Sequence[Callable[[], object]]) -> str | None:
    """How one of these laws noticed: faults that need a rare moment, or that cost work and leave every token right."""
    for one in laws:
        signal.alarm(SECONDS_PER_WALK)
        try:
            one()
        except (Exception, HungError) as error:
            return repr(error)
        finally:
            signal.alarm(0)
    return None


@pytest.mark.parametrize("one", [*MUTANTS, *MEMORY_MUTANTS], ids=lambda one: one.name)
def test_the_law_catches(one: Mutant) -> None:
    signal.signal(signal.SIGALRM, _hung)
    with planted(one):
        if one.laws:
            assert noticed(one.laws), f"its own law did not notice: {one.name}"
        else:
            first, later, end = one.first_walk, one.first_walk + FIRST_WALKS, one.first_walk + MAX_WALKS
            told = noticed(SCRIPTED_LAWS) or caught(first, later) or noticed(LAWS_OF_GUESSES) or caught(later, end)
            assert told, f"the law did not notice: {one.name}"


def test_the_laws_hold_where_no_fault_is_planted() -> None:
    """Else each of them would catch everything."""
    laws = [*SCRIPTED_LAWS, *LAWS_OF_GUESSES, *(each for one in MEMORY_MUTANTS for each in one.laws)]
    assert [told for each in laws if (told := noticed([each]))] == []
