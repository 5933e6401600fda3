"""Ids to text as they come, against the library's own decoder and by hand. What holds for any tokenizer is in the kit."""

from __future__ import annotations

import pytest
import tokenizers
from hypothesis import given, settings
from hypothesis import strategies as st
from tokenizer_sources import streamed

from corekit.api import Tokenizer, WeightSource
from corekit.builtin.bytes_tokenizer import BytesTokenizer
from corekit.builtin.hf_tokenizer import HfTokenizer


@pytest.fixture(scope="module")
def whole(demo_source: WeightSource) -> tokenizers.Tokenizer:
    """The library's own decoder: one decode of all ids."""
    return tokenizers.Tokenizer.from_str(demo_source.tokenizer_files()["tokenizer.json"].decode())


@pytest.mark.parametrize("skip", [True, False])
@settings(max_examples=300, deadline=None)
@given(ids=st.lists(st.one_of(st.integers(0, 49151), st.integers(0, 300), st.integers(49152, 60000)), max_size=30))
def test_any_ids_equal_one_decode(demo: HfTokenizer, whole: tokenizers.Tokenizer, skip: bool, ids: list[int]) -> None:
    """Ids 0 to 300 are control tokens and single bytes, so most of these are broken characters."""
    parts = streamed(demo, ids, skip_special_tokens=skip)
    assert "".join(parts) == whole.decode(ids, skip_special_tokens=skip)


def test_half_a_character_then_its_rest() -> None:
    tokenizer: Tokenizer = BytesTokenizer()
    assert streamed(tokenizer, [65, 32, 0xE4, 0xB8, 0x96, 0xC3, 0xA9, 98]) == ["A", " ", "", "", "世", "", "é", "b", ""]
    assert streamed(tokenizer, [0xE4, 0xB8, 65]) == ["", "", "\ufffdA", ""]
    assert streamed(tokenizer, [0xF0, 0x9F, 0x99]) == ["", "", "", "\ufffd"]
    assert streamed(tokenizer, [0xFF, 256, 999, -1]) == ["\ufffd", "", "", "", ""]


def test_special_tokens_are_skipped_or_shown(demo: HfTokenizer) -> None:
    ids = [1, *demo.encode("hi"), 2]
    assert "".join(streamed(demo, ids)) == "hi"
    assert "".join(streamed(demo, ids, skip_special_tokens=False)) == "<|im_start|>hi<|im_end|>"
