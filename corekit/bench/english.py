"""The text that a model is measured on, and how it is cut into windows. Knows tokenizers by their contract; no engine.

Perplexity is defined on a text and on what of it each token sees (Jelinek, Mercer, Bahl and Baker, Perplexity: a measure of the
difficulty of speech recognition tasks, 1977). Here windows follow each other without overlap, and a token sees what stands
before it in its window: every token but the first of a window counts once.
"""

from __future__ import annotations

import hashlib
import re
import unicodedata
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from corekit.api import Tokenizer

from .errors import BenchUsage

MAX_BYTES = 1 << 26
PROBE = "The first word"
"""Any text: what `add_special` puts before it begins every prompt."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Text:
    name: str
    content: str

    @property
    def sha256(self) -> str:
        """Of its UTF-8 bytes. Texts of different versions of Python differ, and figures of different texts do not compare."""
        return hashlib.sha256(self.content.encode()).hexdigest()


@dataclass(frozen=True, slots=True, kw_only=True)
class Windows:
    """Prompts of equal length. Of each, the tokens from `num_given` on are scored; those before only begin it."""

    prompts: tuple[tuple[int, ...], ...]
    num_given: int

    @property
    def size(self) -> int:
        return len(self.prompts[0])

    @property
    def num_scored(self) -> int:
        return len(self.prompts) * (self.size - self.num_given)


def read_text(file: Path | None) -> Text:
    """None: Python's documentation topics, which every complete Python has, in the order of their names."""
    if file is None:
        return Text(name="documentation topics of Python", content=normalised("\n\n".join(_topics())))
    try:
        if file.stat().st_size > MAX_BYTES:
            raise BenchUsage(f"--text {file}: has {file.stat().st_size:,} bytes; at most {MAX_BYTES:,} are read. Is it a text?")
        content = file.read_bytes().decode()
    except UnicodeDecodeError as error:
        raise BenchUsage(f"--text {file}: is not UTF-8 ({error.reason} at byte {error.start}). Save it as UTF-8.") from None
    except OSError as error:
        raise BenchUsage(f"--text {file}: cannot be read ({error.strerror}). Check the path.") from None
    return Text(name=str(file), content=normalised(content))


def normalised(text: str) -> str:
    """One form for what looks the same: composed characters, `\\n` as line end, no blanks before it, one empty line between paragraphs."""
    lines = [line.rstrip() for line in unicodedata.normalize("NFC", text).splitlines()]
    return re.sub(r"\n{3,}", "\n\n", "\n".join(lines)).strip("\n") + "\n"


def cut(text: Text, tokenizer: Tokenizer, *, size: int, num_tokens: int) -> Windows:
    """The first windows of the text that hold num_tokens of it, rounded up to whole ones. Raises BenchUsage where it has fewer.

    Where the tokenizer begins every prompt with tokens of its own (BOS), each window begins with them: models were trained so.
    """
    beginning = _beginning(tokenizer)
    own = size - len(beginning)
    if own < 1 or size < 2:
        raise BenchUsage(f"--window {size}: leaves no token to score; prompts of this tokenizer begin with {len(beginning)} of its own. Take a longer window.")
    ids = tuple(tokenizer.encode(text.content, add_special=False))
    num_windows = -(-num_tokens // own)
    if num_windows * own > len(ids):
        raise BenchUsage(
            f"--tokens {num_tokens}: the text ({text.name}) has {len(ids):,} tokens, and {num_windows} windows of {own} need {num_windows * own:,}. "
            f"Ask for fewer with --tokens, or give a longer text with --text."
        )
    return Windows(prompts=tuple((*beginning, *ids[at * own : (at + 1) * own]) for at in range(num_windows)), num_given=max(1, len(beginning)))


def _topics() -> Sequence[str]:
    try:
        from pydoc_data.topics import topics
    except ImportError:
        raise BenchUsage("this Python lacks its documentation topics (pydoc_data.topics), so there is no built-in text. Give one with --text.") from None
    return [topics[name] for name in sorted(topics)]


def _beginning(tokenizer: Tokenizer) -> tuple[int, ...]:
    plain, special = tuple(tokenizer.encode(PROBE, add_special=False)), tuple(tokenizer.encode(PROBE, add_special=True))
    for at in range(len(special) - len(plain) + 1):
        if special[at : at + len(plain)] == plain:
            return special[:at]
    raise BenchUsage("this tokenizer writes a text in other tokens when it adds special ones, so windows cannot be begun as its prompts are")
