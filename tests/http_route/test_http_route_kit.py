"""The kit of routes on a right part and on broken ones, and the example of the page."""

from __future__ import annotations

from pathlib import Path

import pytest
from http_route_mutants import MUTANTS, Right, provider_of
from kit_mutants import breaks, laws, subject
from page_examples import check_examples

from corekit.testing import HttpRouteKit, Kit

EXAMPLES = {"/shout": {"text": "hi"}}


class TestRight(HttpRouteKit):
    provider = provider_of(Right)
    examples = EXAMPLES


@pytest.mark.parametrize("mutant", MUTANTS, ids=lambda mutant: mutant.__name__)
def test_a_broken_part_breaks_its_law(mutant: type[Right]) -> None:
    kit = subject(HttpRouteKit, provider_of(mutant), examples=EXAMPLES, seconds=2.0)
    assert breaks(kit, MUTANTS[mutant]).startswith("AssertionError: ")


def test_every_law_of_routes_has_a_mutant() -> None:
    assert set(MUTANTS.values()) == set(laws(subject(HttpRouteKit, provider_of(Right)))) - set(dir(Kit))


def test_what_is_not_said_in_examples_is_asked_for() -> None:
    kit = subject(HttpRouteKit, provider_of(Right))
    with pytest.raises(pytest.skip.Exception, match=r"this law needs `examples`: say there what POST /shout takes"):
        kit.test_every_route_answers()  # type: ignore[attr-defined]


def test_the_example_of_the_page_passes_its_kit(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    check_examples("http_route", tmp_path, monkeypatch)
