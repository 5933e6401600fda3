"""The two shapes of an answer: what a completion and a chat completion make of samples. Knows no engine and no sockets."""

from __future__ import annotations

import codecs
from collections.abc import Sequence
from typing import Any, Protocol

from corekit.api import CompletionOutput, Tokenizer, TokenLogprob

from .wire import (
    ChatChoice,
    ChatChunkChoice,
    ChatDelta,
    ChatLogprobs,
    ChatMessage,
    ChatTokenLogprob,
    CompletionChoice,
    CompletionLogprobs,
    TopLogprob,
)

_LEAST = -9999.0
"""Stands for minus infinity, which JSON does not have."""


class Shape(Protocol):
    """One request's answers. `index` is the number of the choice."""

    prefix: str
    whole_object: str
    chunk_object: str

    def opening(self, index: int) -> Sequence[Any]:
        """Choices of a stream before the first text."""
        ...

    def pieces(self, index: int, output: CompletionOutput) -> Sequence[Any]:
        """Choices of a stream for what is new in a sample; one with a finish reason, if it ended."""
        ...

    def whole(self, index: int, output: CompletionOutput) -> Any:
        """The choice of an answer that is not streamed."""
        ...


class CompletionShape:
    """`text_completion`. Keeps, per choice, how many characters its tokens have spelled."""

    prefix = "cmpl"
    whole_object = chunk_object = "text_completion"

    def __init__(self, tokenizer: Tokenizer) -> None:
        self._tokenizer = tokenizer
        self._spelled: dict[int, tuple[codecs.IncrementalDecoder, int]] = {}

    def opening(self, index: int) -> Sequence[CompletionChoice]:
        return ()

    def pieces(self, index: int, output: CompletionOutput) -> Sequence[CompletionChoice]:
        if not (output.text or output.logprobs or output.finish_reason):
            return ()
        return (self.whole(index, output),)

    def whole(self, index: int, output: CompletionOutput) -> CompletionChoice:
        logprobs = None if output.logprobs is None else self._logprobs(index, output.logprobs)
        return CompletionChoice(index=index, text=output.text, logprobs=logprobs, finish_reason=output.finish_reason)

    def _logprobs(self, index: int, given: Sequence[TokenLogprob]) -> CompletionLogprobs:
        decoder, offset = self._spelled.get(index) or (codecs.getincrementaldecoder("utf-8")("replace"), 0)
        tokens, values, tops, offsets = [], [], [], []
        for token in given:
            raw = self._tokenizer.token_bytes(token.token_id)
            name = _name(raw)
            top: dict[str, float] = {}
            for token_id, logprob in token.top:  # best first; two ids of one name keep the better
                top.setdefault(_name(self._tokenizer.token_bytes(token_id)), _finite(logprob))
            top.setdefault(name, _finite(token.logprob))
            tokens.append(name)
            values.append(_finite(token.logprob))
            tops.append(top)
            offsets.append(offset)
            offset += len(decoder.decode(raw))
        self._spelled[index] = (decoder, offset)
        return CompletionLogprobs(tokens=tokens, token_logprobs=values, top_logprobs=tops, text_offset=offsets)


class ChatShape:
    """`chat.completion`: a role first, then content, then a chunk that holds nothing but the finish reason."""

    prefix = "chatcmpl"
    whole_object = "chat.completion"
    chunk_object = "chat.completion.chunk"

    def __init__(self, tokenizer: Tokenizer) -> None:
        self._tokenizer = tokenizer

    def opening(self, index: int) -> Sequence[ChatChunkChoice]:
        return (ChatChunkChoice(index=index, delta=ChatDelta(role="assistant", content="")),)

    def pieces(self, index: int, output: CompletionOutput) -> Sequence[ChatChunkChoice]:
        choices = []
        if output.text or output.logprobs:
            choices.append(ChatChunkChoice(index=index, delta=ChatDelta(content=output.text), logprobs=self._logprobs(output.logprobs)))
        if output.finish_reason:
            choices.append(ChatChunkChoice(index=index, delta=ChatDelta(), finish_reason=output.finish_reason))
        return choices

    def whole(self, index: int, output: CompletionOutput) -> ChatChoice:
        message = ChatMessage(role="assistant", content=output.text)
        return ChatChoice(index=index, message=message, logprobs=self._logprobs(output.logprobs), finish_reason=output.finish_reason)

    def _logprobs(self, given: Sequence[TokenLogprob] | None) -> ChatLogprobs | None:
        return None if given is None else ChatLogprobs(content=token_logprobs(self._tokenizer, given))


def token_logprobs(tokenizer: Tokenizer, given: Sequence[TokenLogprob]) -> list[ChatTokenLogprob]:
    """Each token as text and as bytes, with the likeliest ones at its position."""
    entries = []
    for token in given:
        raw = tokenizer.token_bytes(token.token_id)
        top = [_top(tokenizer.token_bytes(token_id), logprob) for token_id, logprob in token.top]
        entries.append(ChatTokenLogprob(token=_text(raw), logprob=_finite(token.logprob), bytes=list(raw), top_logprobs=top))
    return entries


def _top(raw: bytes, logprob: float) -> TopLogprob:
    return TopLogprob(token=_text(raw), logprob=_finite(logprob), bytes=list(raw))


def _finite(logprob: float) -> float:
    return logprob if logprob > _LEAST else _LEAST  # not max(): a NaN becomes the least, too


def _text(raw: bytes) -> str:
    return raw.decode("utf-8", "replace")


def _name(raw: bytes) -> str:
    """A token as a key: its text, or its bytes spelled out where they are only part of a character."""
    try:
        return raw.decode("utf-8")
    except UnicodeDecodeError:
        return "bytes:" + "".join(f"\\x{byte:02x}" for byte in raw)
