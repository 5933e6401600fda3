"""Ids of the demo model's tokenizer against a slow reading of byte-level BPE, written here from its description.

The reference shares nothing with the code under test: it takes vocabulary and merges straight from the file, splits with
the rule documented for the name `smollm` (every digit alone, then GPT-2's expression), and merges the pair of lowest rank,
one pair at a time.
"""

from __future__ import annotations

import random
import struct
from functools import lru_cache
from pathlib import Path
from typing import Any, BinaryIO

import regex

from corekit.api import WeightSource
from corekit.builtin.hf_tokenizer import HfTokenizer

GPT2 = regex.compile(r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+")
DIGIT = regex.compile(r"(\p{N})")


class Metadata:
    """Key-value pairs at the head of a GGUF file, version 3, read one after the other as its description says."""

    NUMBERS = "BbHhIif?"  # by number of their type; 8 is text, 9 an array, then come the wide ones
    WIDE = "Qqd"

    def __init__(self, file: BinaryIO) -> None:
        self._file = file
        magic, version, _, count = self._numbers("4sIQQ")
        assert (magic, version) == (b"GGUF", 3)
        self.values = {self._text(): self._value(*self._numbers("I")) for _ in range(count)}

    def _numbers(self, form: str) -> tuple[Any, ...]:
        return struct.unpack(f"<{form}", self._file.read(struct.calcsize(f"<{form}")))

    def _text(self) -> str:
        return self._file.read(*self._numbers("Q")).decode()

    def _value(self, kind: int) -> Any:
        if kind == 8:
            return self._text()
        if kind == 9:
            inner, count = self._numbers("IQ")
            return [self._value(inner) for _ in range(count)]
        return self._numbers(self.NUMBERS[kind] if kind < 8 else self.WIDE[kind - 10])[0]


class SlowBpe:
    def __init__(self, path: Path) -> None:
        with path.open("rb") as file:
            values = Metadata(file).values
        self.vocabulary = {token: index for index, token in enumerate(values["tokenizer.ggml.tokens"])}
        self.rank = {tuple(merge.split(" ")): rank for rank, merge in enumerate(values["tokenizer.ggml.merges"])}
        types = values["tokenizer.ggml.token_type"]
        control = [token for token, kind in zip(self.vocabulary, types, strict=True) if kind == 3]
        self.control = regex.compile("(" + "|".join(map(regex.escape, sorted(control, key=len, reverse=True))) + ")")
        printable = [*range(ord("!"), ord("~") + 1), *range(ord("¡"), ord("¬") + 1), *range(ord("®"), ord("ÿ") + 1)]
        hidden = [byte for byte in range(256) if byte not in printable]
        self.glyph = {byte: chr(byte) for byte in printable} | {byte: chr(256 + at) for at, byte in enumerate(hidden)}
        self.word = lru_cache(maxsize=None)(self._word)

    def encode(self, text: str) -> list[int]:
        ids: list[int] = []
        for part in self.control.split(text):
            if self.control.fullmatch(part):
                ids.append(self.vocabulary[part])
                continue
            for stretch in DIGIT.split(part):
                for word in [stretch] if DIGIT.fullmatch(stretch) else GPT2.findall(stretch):
                    ids += self.word(word)
        return ids

    def _word(self, word: str) -> list[int]:
        parts = [glyph for glyph in (self.glyph[byte] for byte in word.encode()) if glyph in self.vocabulary]  # a few bytes have no token
        while len(parts) > 1:
            rank, at = min((self.rank.get((parts[at], parts[at + 1]), 1 << 30), at) for at in range(len(parts) - 1))
            if rank == 1 << 30:
                break
            parts[at : at + 2] = [parts[at] + parts[at + 1]]
        return [self.vocabulary[part] for part in parts]


WORDS = (
    *("the", "quick", "Brown", "fox's", "don't", "We'll", "I'M", "they'd", "naïve", "Zürich", "東京", "こんにちは", "привет", "مرحبا", "שלום", "नमस्ते"),
    *("สวัสดี", "🙂", "👩\u200d👩\u200d👧\u200d👦", "é", "e\u0301", "ﬁ", "Ⅷ", "½", "٣٤", "2024", "3.14159", "0x1F", "1,000,000"),
)
CODE = (
    "def f(x):\n    return x**2  # ok\n",
    'for (int i=0;i<10;++i){\r\n\tprintf("%d\\n", i);\r\n}',
    "<a href='x'>y</a>",
    '{"k": [1, 2, null]}',
    "SELECT * FROM t;",
)
SPACES = (" ", "  ", "   ", "\n", "\n\n", "\t", " \n ", "\r\n", "\u00a0", "\u3000", "\u2028", "\x0b", "\x1c", "\x85")
CONTROL = ("<|im_start|>", "<|im_end|>", "<|endoftext|>", "<|im_", "<repo_name>")


def varied_strings(count: int) -> list[str]:
    draw = random.Random(20)
    kinds = [
        lambda: " ".join(draw.choice(WORDS) for _ in range(draw.randrange(1, 30))),
        lambda: "".join(draw.choice(WORDS + SPACES) for _ in range(draw.randrange(1, 30))),
        lambda: "".join(draw.choice(CODE + SPACES) for _ in range(draw.randrange(1, 6))),
        lambda: "".join(draw.choice(CONTROL + WORDS + SPACES) for _ in range(draw.randrange(1, 12))),
        lambda: "".join(
            chr(draw.choice([draw.randrange(32, 127), draw.randrange(160, 0x800), draw.randrange(0x800, 0xD800), draw.randrange(0x1F300, 0x1FAFF)]))
            for _ in range(draw.randrange(1, 60))
        ),
        lambda: "".join(str(draw.randrange(10 ** draw.randrange(1, 12))) + draw.choice((*SPACES, "", ".", ",")) for _ in range(draw.randrange(1, 12))),
        lambda: draw.choice(" ab1'\n") * draw.randrange(1, 80),
    ]
    return ["", *(draw.choice(kinds)() for _ in range(count - 1))]


def test_ids_equal_those_of_the_reference(demo: HfTokenizer, demo_source: WeightSource) -> None:
    reference = SlowBpe(Path(demo_source._path))  # type: ignore[attr-defined]
    strings = varied_strings(1000)
    assert len(set(strings)) > 900
    wrong = [text for text in strings if list(demo.encode(text)) != reference.encode(text)]
    assert not wrong, wrong[:3]


def test_published_ids(demo: HfTokenizer) -> None:
    """Ids that the model's own card and tokenizer give for these texts."""
    assert list(demo.encode("<|im_start|>user\n")) == [1, 4093, 198]
    assert demo.eos_token_ids == (2,)
    assert demo.vocab_size == 49152
    assert demo.token_bytes(2) == b"<|im_end|>"
    assert list(demo.encode("Hello")) == list(demo.encode("Hello", add_special=False)), "this model adds no BOS"
