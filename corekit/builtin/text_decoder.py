"""Ids to text as they come, for tokenizers whose ids stand for bytes. Knows neither vocabularies nor templates."""

from __future__ import annotations

import codecs
from collections.abc import Callable, Container
from enum import Enum


class Lead(Enum):
    """What a tokenizer drops at the very start of a text: the space that it put there when encoding."""

    KEPT = "kept"
    ONE_SPACE = "one space"
    FIRST_TOKEN = "every space of the first token"  # noqa: S105


class Utf8Decoder:
    """One sample's text. Invariant: what was pushed equals what was returned plus at most three bytes that begin a character.

    Bytes that cannot become a character turn into U+FFFD as soon as that is known, one for each longest beginning of a
    character (the practice that Unicode recommends), so the result does not depend on where ids split the bytes.

    bytes_of: nothing for an id that there is not. hidden: ids that are no text.
    """

    def __init__(self, bytes_of: Callable[[int], bytes], *, hidden: Container[int] = (), lead: Lead = Lead.KEPT) -> None:
        self._bytes_of = bytes_of
        self._hidden = hidden
        self._lead = lead
        self._decode: Callable[..., str] = codecs.getincrementaldecoder("utf-8")(errors="replace").decode

    def push(self, token_id: int) -> str:
        piece = b"" if token_id in self._hidden else self._bytes_of(token_id)
        if self._lead is not Lead.KEPT and piece:
            piece = piece.removeprefix(b" ") if self._lead is Lead.ONE_SPACE else piece.replace(b" ", b"")
            self._lead = Lead.KEPT
        return self._decode(piece)

    def finish(self) -> str:
        return self._decode(b"", True)
