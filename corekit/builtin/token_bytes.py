"""The bytes behind every id of a tokenizer.json, by its own rule of decoding. Knows nothing of encoding or templates.

Two rules cover language models: byte-level BPE (GPT-2's table from bytes to printable characters) and sentencepiece
(U+2581 for a space, `<0x41>` for a byte). Any other is refused by name.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from typing import Any

from .text_decoder import Lead

SPACE = "\u2581"
BYTE_TOKEN = re.compile(r"<0x([0-9A-Fa-f]{2})>")
PRINTABLE = (*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100))
"""Bytes that stand for themselves in byte-level BPE; the others follow from U+0100 on."""


def _byte_level_table() -> dict[str, int]:
    others = (value for value in range(256) if value not in PRINTABLE)
    return {chr(value): value for value in PRINTABLE} | {chr(0x100 + at): value for at, value in enumerate(others)}


BYTE_OF: Mapping[str, int] = _byte_level_table()


def _byte_level(token: str) -> bytes:
    try:
        return bytes([BYTE_OF[character] for character in token])
    except KeyError:  # an added token with characters outside the table stands for itself
        return token.encode()


def _sentencepiece(token: str) -> bytes:
    byte = BYTE_TOKEN.fullmatch(token)
    return bytes([int(byte[1], 16)]) if byte else token.replace(SPACE, " ").encode()


def _metaspace(token: str) -> bytes:
    return token.replace(SPACE, " ").encode()


class TokenBytes:
    """Id -> its bytes, worked out when first asked for: of a large vocabulary most never are. Nothing for an id that there is not."""

    def __init__(self, num_ids: int, token_of: Callable[[int], str | None], to_bytes: Callable[[str], bytes]) -> None:
        self._token_of = token_of
        self._to_bytes = to_bytes
        self._known: list[bytes | None] = [None] * num_ids

    def __len__(self) -> int:
        return len(self._known)

    def __call__(self, token_id: int) -> bytes:
        if not 0 <= token_id < len(self._known):
            return b""
        known = self._known[token_id]
        if known is None:
            known = self._known[token_id] = self._to_bytes(self._token_of(token_id) or "")
        return known


def decoding_rule(decoder: Mapping[str, Any] | None) -> tuple[Callable[[str], bytes], Lead]:
    """Token to bytes, and what is dropped at the start of a text. Raises ValueError for a rule that is not known."""
    parts = _flat(decoder)
    kinds = [part.get("type") for part in parts]
    if kinds == ["ByteLevel"]:
        return _byte_level, Lead.KEPT
    if kinds == ["Metaspace"] and parts[0].get("replacement", SPACE) == SPACE:
        kept = parts[0].get("prepend_scheme", "always" if parts[0].get("add_prefix_space", True) else "never") == "never"
        return _metaspace, Lead.KEPT if kept else Lead.FIRST_TOKEN
    if kinds[:3] == ["Replace", "ByteFallback", "Fuse"] and parts[0].get("pattern") == {"String": SPACE} and parts[0].get("content") == " ":
        if kinds[3:] == []:
            return _sentencepiece, Lead.KEPT
        if kinds[3:] == ["Strip"] and (parts[3].get("content"), parts[3].get("start"), parts[3].get("stop")) == (" ", 1, 0):
            return _sentencepiece, Lead.ONE_SPACE
    raise ValueError(
        f"tokenizer.json decodes by {' + '.join(map(str, kinds)) or 'no rule'}, which is not supported. "
        "Supported: ByteLevel, Metaspace, and Replace + ByteFallback + Fuse (+ Strip of one space), the rules of byte-level BPE and of sentencepiece."
    )


def _flat(decoder: Mapping[str, Any] | None) -> list[Mapping[str, Any]]:
    if decoder is None:
        return []
    if decoder.get("type") == "Sequence":
        return [part for child in decoder.get("decoders", ()) for part in _flat(child)]
    return [decoder]
