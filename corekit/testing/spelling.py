"""Texts, odd messages, and what a vocabulary can spell: the material on which tokenizers are tried. Knows no tokenizer's rule."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from corekit.api import Tokenizer

TEXTS: Sequence[str] = (
    "Hello, world! It's 1234.5 (or 67%).",
    " two  spaces,\tand a line\nand another\r\n\n",
    "def f(x):\n    return x**2  # ok\n",
    "naïve Zürich, façade, œuvre",
    "привет, как дела?",
    "日本語のテキスト, 世界",
    "नमस्ते สวัสดี مرحبا שלום",
    "🙂 👩\u200d👩\u200d👧\u200d👦 e\u0301",
    "\ufeffa mark \x00 and\u2028more\x7f",
    "x",
    "",
)
"""One, two, three and four bytes a character, joined, combined and invisible ones, and every kind of white space that prompts hold."""

_LONE = "\ud800"
ODD_MESSAGES: Sequence[Any] = (
    [],
    [{}],
    [{"role": "user"}],
    [{"content": "hi"}],
    [{"role": "user", "content": None}],
    [{"role": "user", "content": 3}],
    [{"role": 3, "content": "hi"}],
    [{"role": "user", "content": ["hi"]}],
    [{"role": "user", "content": {"text": "hi"}}],
    [{"role": "user", "content": _LONE}],
)
"""What callers send: a template renders it or refuses it."""

_NUM_CONTROLS = 40


class Vocabulary:
    """What the ids of a tokenizer stand for, as far as its contract tells."""

    def __init__(self, tokenizer: Tokenizer) -> None:
        self._tokenizer = tokenizer
        self._bytes = [tokenizer.token_bytes(id) for id in range(tokenizer.vocab_size)]
        self.parts = [id for id, raw in enumerate(self._bytes) if not _is_text(raw)]
        """Ids that stand for part of a character, as long as there are any."""
        self._of_byte = {raw: id for id, raw in reversed([*enumerate(self._bytes)]) if len(raw) == 1}

    def is_control(self, id: int) -> bool:
        """It stands for bytes, and is left out of text on demand."""
        return bool(self._bytes[id]) and not "".join(streamed(self._tokenizer, [id], [id]))

    def control_texts(self) -> list[str]:
        """What the control tokens look like: the first and the last ones, where there are many."""
        found = [raw.decode() for id, raw in enumerate(self._bytes) if len(raw) > 1 and _is_text(raw) and self.is_control(id)]
        return found if len(found) <= _NUM_CONTROLS else found[: _NUM_CONTROLS // 2] + found[-_NUM_CONTROLS // 2 :]

    def spelled(self, text: str) -> list[int]:
        """A text in the smallest ids there are; bytes without an id of their own are left out."""
        pieces = (bytes([byte]) for byte in text.encode())
        return [self._of_byte[piece] for piece in pieces if piece in self._of_byte]


def streamed(tokenizer: Tokenizer, ids: Sequence[int], tail: Sequence[int] = (), *, skip: bool = True) -> list[str]:
    """What each push returns, and what `finish` returns last."""
    decoder = tokenizer.start_decoding(tail, skip_special_tokens=skip)
    return [*map(decoder.push, ids), decoder.finish()]


def decoded(raw: bytes) -> str:
    """One decode: each longest beginning of a character that never came becomes U+FFFD."""
    return raw.decode("utf-8", errors="replace")


def _is_text(raw: bytes) -> bool:
    try:
        raw.decode()
    except UnicodeDecodeError:
        return False
    return True
