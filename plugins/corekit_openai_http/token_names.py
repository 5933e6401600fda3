"""How tokens are called among logprobs: by text, by bytes where they are part of a character, or by id. Knows no shape of an answer."""

from __future__ import annotations

from corekit.api import Tokenizer, TokenLogprob

from .wire import CompletionLogprobs

_LEAST = -9999.0
"""Stands for minus infinity, which JSON does not have."""


class TokenNames:
    """by_ids: `token_id:5` instead of any text."""

    def __init__(self, tokenizer: Tokenizer, *, by_ids: bool = False) -> None:
        self._tokenizer = tokenizer
        self._by_ids = by_ids

    def raw(self, token_id: int) -> bytes:
        return self._tokenizer.token_bytes(token_id)

    def text(self, token_id: int) -> str:
        """To be read: two tokens may have the same."""
        return f"token_id:{token_id}" if self._by_ids else self.raw(token_id).decode("utf-8", "replace")

    def key(self, token_id: int) -> str:
        """To look it up: bytes are spelled out where they are only part of a character."""
        if self._by_ids:
            return f"token_id:{token_id}"
        raw = self.raw(token_id)
        try:
            return raw.decode("utf-8")
        except UnicodeDecodeError:
            return "bytes:" + "".join(f"\\x{byte:02x}" for byte in raw)

    def finite(self, logprob: float) -> float:
        return logprob if logprob > _LEAST else _LEAST  # not max(): a NaN becomes the least, too

    def add(self, shown: CompletionLogprobs, token_id: int, scored: TokenLogprob | None, num_top: int) -> None:
        """One token more; one without a score has null. Where it begins is the caller's to say."""
        shown.tokens.append(name := self.key(token_id))
        if scored is None:
            shown.token_logprobs.append(None)
            shown.top_logprobs.append(None)
            return
        top: dict[str, float] = {}
        for other, logprob in scored.top[:num_top]:  # best first; two ids of one name keep the better
            top.setdefault(self.key(other), self.finite(logprob))
        top.setdefault(name, value := self.finite(scored.logprob))
        shown.token_logprobs.append(value)
        shown.top_logprobs.append(top)
