"""Ids to text as they come: whole characters, never taken back, equal to decoding everything at once."""

from __future__ import annotations

import time
from concurrent.futures import ThreadPoolExecutor

import pytest
import tokenizers
from hypothesis import given, settings
from hypothesis import strategies as st
from tokenizer_sources import streamed

from corekit.api import Tokenizer, WeightSource
from corekit.builtin.bytes_tokenizer import BytesTokenizer
from corekit.builtin.hf_tokenizer import HfTokenizer

TEXT = st.text(st.characters(exclude_categories=["Cs"]), max_size=40)


@pytest.fixture(scope="module")
def demo(demo_source: WeightSource) -> HfTokenizer:
    return HfTokenizer(demo_source)


@pytest.fixture(scope="module")
def whole(demo_source: WeightSource) -> tokenizers.Tokenizer:
    """The library's own decoder: one decode of all ids."""
    return tokenizers.Tokenizer.from_str(demo_source.tokenizer_files()["tokenizer.json"].decode())


@pytest.fixture(scope="module")
def known_bytes(demo: HfTokenizer) -> frozenset[int]:
    return frozenset(piece[0] for piece in map(demo.token_bytes, range(demo.vocab_size)) if len(piece) == 1)


@pytest.mark.parametrize("skip", [True, False])
@settings(max_examples=300, deadline=None)
@given(ids=st.lists(st.one_of(st.integers(0, 49151), st.integers(0, 300), st.integers(49152, 60000)), max_size=30))
def test_any_ids_equal_one_decode(demo: HfTokenizer, whole: tokenizers.Tokenizer, skip: bool, ids: list[int]) -> None:
    """Ids 0 to 300 are control tokens and single bytes, so most of these are broken characters."""
    parts = streamed(demo, ids, skip_special_tokens=skip)
    assert "".join(parts) == whole.decode(ids, skip_special_tokens=skip)


@settings(max_examples=300, deadline=None)
@given(text=TEXT)
def test_text_returns(demo: HfTokenizer, known_bytes: frozenset[int], text: str) -> None:
    ids = demo.encode(text)
    parts = streamed(demo, ids, skip_special_tokens=False)
    if known_bytes.issuperset(text.encode()):  # the model has no token for 21 of the 256
        assert "".join(parts) == text
        assert b"".join(map(demo.token_bytes, ids)) == text.encode()


@settings(max_examples=300, deadline=None)
@given(text=TEXT, tokenizer=st.just(BytesTokenizer()))
def test_every_prefix_is_whole_characters(text: str, tokenizer: BytesTokenizer) -> None:
    """A byte per id is the worst split there is."""
    seen = ""
    held = b""
    for token_id, part in zip(tokenizer.encode(text), streamed(tokenizer, tokenizer.encode(text)), strict=False):
        held += bytes([token_id])
        held = held[len(part.encode()) :]
        seen += part
        assert text.startswith(seen)
        assert len(held) < 4
    assert seen == text


@settings(max_examples=300, deadline=None)
@given(raw=st.binary(max_size=60))
def test_broken_bytes_are_held_for_at_most_four(raw: bytes) -> None:
    """Whatever follows, what at most four bytes ago came in has come out."""
    parts = streamed(BytesTokenizer(), list(raw))
    assert "".join(parts) == raw.decode("utf-8", errors="replace")
    for at in range(len(raw) + 1):
        out = "".join(parts[:at])
        assert any(out == raw[:end].decode("utf-8", errors="replace") for end in range(max(0, at - 4), at + 1))


@pytest.mark.parametrize("text", ["A 世", "é", "e\u0301", "👩‍👩‍👧‍👦 family", "a\ufffdb", "\ufffd", "नमस्ते", "\u200d", "日本語のテキスト"])
def test_a_character_is_never_sent_twice(demo: HfTokenizer, text: str) -> None:
    for tokenizer in (demo, BytesTokenizer()):
        parts = streamed(tokenizer, tokenizer.encode(text))
        assert "".join(parts) == text
        if "\ufffd" not in text:
            assert not any("\ufffd" in part for part in parts)


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


def test_the_cost_of_a_push_does_not_grow(demo: HfTokenizer) -> None:
    def seconds(count: int) -> float:
        decoder = demo.start_decoding()
        started = time.perf_counter()
        for _ in range(count):
            decoder.push(28)
        return time.perf_counter() - started

    assert min(seconds(80_000) for _ in range(3)) < 40 * max(min(seconds(8_000) for _ in range(3)), 1e-3), (
        "ten times the ids, far from a hundred times the time"
    )


def test_encoding_from_several_threads(demo: HfTokenizer) -> None:
    texts = [f"number {index} " * (index % 50) for index in range(400)]
    alone = [demo.encode(text) for text in texts]
    with ThreadPoolExecutor(8) as pool:
        assert list(pool.map(demo.encode, texts)) == alone
