"""The kit of logits processors on right ones and on broken ones."""

from __future__ import annotations

import importlib
from collections.abc import Collection, Sequence
from pathlib import Path
from random import Random

import pytest
from kit_mutants import breaks, laws, subject
from logits_processor_mutants import EOS, MUTANTS, Right, Row, provider_of
from page_examples import check_examples

from corekit.api import NewSample, Provider, RowProcessor, SamplingParams
from corekit.testing import LogitsProcessorKit

DIGITS = frozenset(b"0123456789")


class Number(Row):
    """A number of at most four digits, then the end; an id that cannot come is a fault, as in a grammar."""

    def __init__(self, prompt: Sequence[int]) -> None:
        super().__init__(())

    def accept(self, token_ids: Sequence[int]) -> None:
        for id in token_ids:
            if id in self.banned():
                raise ValueError(f"{id} cannot follow {self.ids}")
            super().accept((id,))

    def banned(self) -> set[int]:
        allowed = {EOS} if len(self.ids) >= 4 else DIGITS if not self.ids else {EOS, *DIGITS}
        return set(range(EOS + 1)) - allowed


class Numbers:
    """Answers of requests that want one token less than ten are numbers."""

    def start(self, sample: NewSample) -> RowProcessor | None:
        return Number(()) if sample.params.max_tokens == 9 else None


class PairKit(LogitsProcessorKit):
    """For processors that let no two ids follow each other twice."""

    def forbidden(self, sample: NewSample, accepted: Sequence[int]) -> Collection[int]:
        ids = bytes(id % EOS for id in (*sample.token_ids, *accepted))
        return [id for id in range(EOS) if bytes([ids[-1], id]) in ids]


class TestRight(PairKit):
    provider = provider_of(Right)


class TestNumbers(LogitsProcessorKit):
    """Has to be asked for, ends by itself, and takes no id that it has forbidden."""

    provider = Provider(name="numbers", api=1, summary="answers that are numbers, for a test", build=lambda context, options: Numbers())

    def samples(self) -> Sequence[NewSample]:
        return [NewSample(request_id=f"n{at}", sample=0, token_ids=(65,), params=SamplingParams(max_tokens=9 + at % 2)) for at in range(4)]

    def forbidden(self, sample: NewSample, accepted: Sequence[int]) -> Collection[int]:
        allowed = (*((EOS,) if accepted else ()), *(DIGITS if len(accepted) < 4 else ()))
        return [id for id in range(EOS + 1) if id not in allowed]

    def walk(self, allowed: Sequence[int], draw: Random) -> int:
        return draw.choice(allowed)


@pytest.mark.parametrize("mutant", MUTANTS, ids=lambda mutant: mutant.__name__)
def test_a_broken_processor_breaks_its_law(mutant: type[Right]) -> None:
    assert breaks(subject(PairKit, provider_of(mutant)), MUTANTS[mutant])


def test_every_mutant_has_a_law_of_its_own() -> None:
    assert len(set(MUTANTS.values())) == len(MUTANTS) >= 4


def test_the_example_of_the_page_passes_its_kit(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    check_examples("logits_processor", tmp_path, monkeypatch)


def test_the_pages_constraint_with_a_memory_keeps_every_law(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """`never_after.py` of the page, with the ids that its text advises."""
    check_examples("logits_processor", tmp_path, monkeypatch)
    row = importlib.import_module("never_after").NeverAfter

    class Processor:
        def start(self, sample: NewSample) -> RowProcessor | None:
            made: RowProcessor = row(97, 98, sample)
            return made

    provider = Provider(name="never-after", api=1, summary="one id never comes right after another", build=lambda context, options: Processor())
    kit = subject(LogitsProcessorKit, provider, forbidden=lambda self, sample, accepted: {98} if [*sample.token_ids, *accepted][-1] == 97 else set())
    assert not [f"{law}: {message}" for law in laws(kit) if (message := breaks(kit, law))]
