"""The kit of tokenizers on our own, and on broken ones."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from kit_mutants import breaks, laws, subject
from page_examples import check_examples
from tokenizer_mutants import MUTANTS, Right, provider_of
from tokenizer_sources import sentencepiece_files

from corekit.api import BuildContext, Tokenizer, WeightSource
from corekit.builtin.hf_tokenizer import HfTokenizer
from corekit.testing import TokenizerKit

TURNS = "<s>{% for m in messages %}[{{ m.role }}] {{ m.content }}</s>{% endfor %}"


class TestBytes(TokenizerKit):
    provider = "bytes"


class TestSentencepiece(TokenizerKit):
    """A text begins with a space that nobody wrote, and characters without a piece are spelled in bytes."""

    provider = "hf"

    def context(self) -> BuildContext:
        files: Any = sentencepiece_files()
        return BuildContext(source=files)

    def test_a_template_is_there(self) -> None:
        assert not self.build().has_chat_template


class TestSentencepieceWithChat(TestSentencepiece):
    def context(self) -> BuildContext:
        files: Any = sentencepiece_files()
        files.settings = {**files.settings, "chat_template": TURNS}
        return BuildContext(source=files)

    def test_a_template_is_there(self) -> None:
        assert self.build().has_chat_template


class TestDemo(TokenizerKit):
    """Byte-level, 49152 ids, a chat template; it has no id for 21 of the 256 bytes."""

    provider = "hf"

    test_two_components_share_nothing = None  # shown on the small ones; this one takes a while to build

    @pytest.fixture(autouse=True)
    def _made(self, demo: HfTokenizer, demo_source: WeightSource) -> None:
        self.made, self.source = demo, demo_source

    def context(self) -> BuildContext:
        return BuildContext(source=self.source)

    def tokenizer(self) -> Tokenizer:
        return self.made


@pytest.mark.parametrize("mutant", MUTANTS, ids=lambda mutant: mutant.__name__)
def test_a_broken_tokenizer_breaks_its_law(mutant: type[Right]) -> None:
    assert breaks(subject(TokenizerKit, provider_of(mutant)), MUTANTS[mutant])


def test_every_mutant_has_a_law_of_its_own() -> None:
    assert len(set(MUTANTS.values())) == len(MUTANTS) >= 8


def test_the_right_tokenizer_breaks_none() -> None:
    kit = subject(TokenizerKit, provider_of(Right))
    assert not [message for law in laws(kit) if (message := breaks(kit, law))]


def test_the_example_of_the_page_passes_its_kit(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    check_examples("tokenizer", tmp_path, monkeypatch)
