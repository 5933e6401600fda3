"""Tokenizers of the sentencepiece kind: merges from scores, byte fallback, and the space before a text.

The reference for ids is sentencepiece's own rule, written here: join the neighbours whose joint piece scores highest.
"""

from __future__ import annotations

import json
import random
from itertools import pairwise
from typing import Any

import pytest
import tokenizers
from hypothesis import given, settings
from hypothesis import strategies as st
from tokenizer_sources import METADATA, NORMAL, SPACE, Files, sentencepiece, streamed

from corekit.builtin.hf_tokenizer import HfTokenizer
from corekit.weights import SourceError
from corekit.weights.gguf_bpe import KNOWN_RULES
from corekit.weights.gguf_tokenizer import tokenizer_files_of

TOKENIZER = sentencepiece()
WHOLE = tokenizers.Tokenizer.from_str(tokenizer_files_of(METADATA, "test")["tokenizer.json"].decode())


def slow_ids(text: str) -> list[int]:
    index = {token: at for at, token in enumerate(METADATA["tokenizer.ggml.tokens"])}
    score = {
        token: value
        for token, value, kind in zip(index, METADATA["tokenizer.ggml.scores"], METADATA["tokenizer.ggml.token_type"], strict=True)
        if kind == NORMAL
    }
    parts = list((SPACE + text).replace(" ", SPACE))
    while True:
        joins = [(-score[left + right], at) for at, (left, right) in enumerate(pairwise(parts)) if left + right in score]
        if not joins:
            break
        _, at = min(joins)
        parts[at : at + 2] = [parts[at] + parts[at + 1]]
    return [token for part in parts for token in ([index[part]] if part in index else [index[f"<0x{byte:02X}>"] for byte in part.encode()])]


def test_ids_equal_sentencepieces_rule() -> None:
    draw = random.Random(5)
    for _ in range(1000):
        text = "".join(draw.choice("abcdn é世🙂z") for _ in range(draw.randrange(1, 25)))
        assert list(TOKENIZER.encode(text, add_special=False)) == slow_ids(text), text


def test_bos_unless_the_file_says_no() -> None:
    assert TOKENIZER.encode("a")[0] == 1
    assert sentencepiece(add_bos_token=False).encode("a")[0] != 1
    assert sentencepiece(add_eos_token=True).encode("a")[-1] == 2


@settings(max_examples=200, deadline=None)
@given(text=st.text(st.characters(exclude_categories=["Cs"], exclude_characters=SPACE), max_size=30))
def test_text_returns_and_equals_one_decode(text: str) -> None:
    ids = TOKENIZER.encode(text, add_special=False)
    parts = streamed(TOKENIZER, ids)
    assert "".join(parts) == text == WHOLE.decode(list(ids))
    assert not any("\ufffd" in part for part in parts) or "\ufffd" in text


def test_the_space_before_a_text() -> None:
    """Dropped where text starts, kept where it continues a prompt; a control token before it is not text."""
    ids = TOKENIZER.encode("ab", add_special=False)
    assert TOKENIZER.token_bytes(ids[0]).startswith(b" ")
    assert "".join(streamed(TOKENIZER, ids)) == "ab"
    assert "".join(streamed(TOKENIZER, ids, tail=[1])) == "ab"
    assert "".join(streamed(TOKENIZER, ids, tail=TOKENIZER.encode("x"))) == " ab"
    unprefixed = sentencepiece(add_space_prefix=False)
    ids = unprefixed.encode(" ab", add_special=False)
    assert "".join(streamed(unprefixed, ids)) == " ab"


def test_bytes_of_a_broken_character() -> None:
    ids = [3 + byte for byte in b"\xe4\xb8\x96\xff"] + [2]
    assert streamed(TOKENIZER, ids) == ["", "", "世", "\ufffd", "", ""]
    assert TOKENIZER.token_bytes(3 + 0xE4) == b"\xe4"


@pytest.mark.parametrize("scheme", ["always", "first", "never"])
def test_metaspace_decoders(scheme: str) -> None:
    document = json.loads(tokenizer_files_of(METADATA, "test")["tokenizer.json"])
    document["decoder"] = document["pre_tokenizer"] = {"type": "Metaspace", "replacement": SPACE, "prepend_scheme": scheme, "split": False}
    document["normalizer"] = None
    tokenizer = HfTokenizer(Files(document))  # type: ignore[arg-type]
    whole = tokenizers.Tokenizer.from_str(json.dumps(document))
    draw = random.Random(6)
    for _ in range(200):
        ids = [draw.randrange(259, len(METADATA["tokenizer.ggml.tokens"])) for _ in range(draw.randrange(8))]
        assert "".join(streamed(tokenizer, ids)) == whole.decode(ids)


def test_plain_text_in_the_middle_of_a_prompt_gains_no_space() -> None:
    document = json.loads(tokenizer_files_of(METADATA, "test")["tokenizer.json"])
    document["decoder"] = document["pre_tokenizer"] = {"type": "Metaspace", "replacement": SPACE, "prepend_scheme": "first", "split": False}
    document["normalizer"] = None
    settings_ = {"chat_template": "<s>{% for m in messages %}{{ m.content }}</s>{% endfor %}"}
    tokenizer = HfTokenizer(Files(document, settings_))  # type: ignore[arg-type]
    ordinary = tokenizer.apply_chat_template([{"role": "user", "content": "ab"}])
    careful = tokenizer.apply_chat_template([{"role": "user", "content": "ab"}, {"role": "user", "content": "<"}])
    assert list(ordinary.token_ids) == list(tokenizer.encode(ordinary.text, add_special=False))
    assert careful.token_ids[: len(ordinary.token_ids)] == ordinary.token_ids
    assert list(careful.token_ids) == list(tokenizer.encode(careful.text, add_special=False))


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"model": "t5"}, "kind 't5'"),
        ({"model": "gpt2", "pre": "some-new-rule", "merges": []}, "'some-new-rule'.*Known: .*smollm"),
        ({"model": "gpt2", "pre": ["smollm"], "merges": []}, "is not known"),
        ({"model": "gpt2", "pre": "smollm"}, "merges is not a list"),
        ({"scores": [1.0]}, "scores does not fit"),
        ({"token_type": [1]}, "token_type does not fit"),
        ({"tokens": [1, 2]}, "tokens is not a list of strings"),
        ({"bos_token_id": 10**6}, "bos_token_id is 1000000"),
    ],
)
def test_vocabularies_that_cannot_be_read_rightly(changes: dict[str, Any], said: str) -> None:
    with pytest.raises(SourceError, match=said):
        sentencepiece(**changes)


@pytest.mark.parametrize(
    ("pre", "text", "words"),
    [
        ("gpt-2", "It's 1234 a\n\nb", ["It", "'s", "Ġ1234", "Ġa", "Ċ", "Ċ", "b"]),
        ("smollm", "It's 1234 a\n\nb", ["It", "'s", "Ġ", "1", "2", "3", "4", "Ġa", "Ċ", "Ċ", "b"]),
        ("llama-bpe", "IT'S 12345 a\n\nb", ["IT", "'S", "Ġ", "123", "45", "Ġa", "ĊĊ", "b"]),
        ("qwen2", "IT'S 123 a\n\nb", ["IT", "'S", "Ġ", "1", "2", "3", "Ġa", "ĊĊ", "b"]),
        ("default", "a+b 12345", ["a", "+", "b", "Ġ", "123", "45"]),
    ],
)
def test_rules_of_splitting(pre: str, text: str, words: list[str]) -> None:
    """Seen where no merge may cross: the words that the pre-tokenizer makes."""
    metadata = {"tokenizer.ggml.model": "gpt2", "tokenizer.ggml.pre": pre, "tokenizer.ggml.tokens": ["a"], "tokenizer.ggml.merges": []}
    encoder = tokenizers.Tokenizer.from_str(tokenizer_files_of(metadata, "test")["tokenizer.json"].decode())
    assert [word for word, _ in encoder.pre_tokenizer.pre_tokenize_str(text)] == words


@pytest.mark.parametrize("pre", KNOWN_RULES)
def test_every_rule_that_errors_name_is_known(pre: str) -> None:
    metadata = {"tokenizer.ggml.model": "gpt2", "tokenizer.ggml.pre": pre, "tokenizer.ggml.tokens": ["a"], "tokenizer.ggml.merges": []}
    tokenizers.Tokenizer.from_str(tokenizer_files_of(metadata, "test")["tokenizer.json"].decode())
