"""The form of one answer: what is sent of its samples, whole or event by event. Knows no engine and no sockets."""

from __future__ import annotations

import secrets
import time
from collections.abc import Callable, Sequence
from typing import Any, Protocol
from uuid import uuid4

import msgspec
from msgspec import UNSET, UnsetType

from corekit.api import CompletionOutput, RequestOutput, Tokenizer

from .errors import ApiError
from .gathered import Samples
from .reply import event
from .requests import Job
from .shapes import ChatShape, CompletionShape, Shape
from .wire import Answer, Usage

_SIZE = 64
"""Padded chunks are a multiple of so many bytes long."""


class Form(Protocol):
    """One answer. `usage` tells what was counted so far; events are complete, as they go out."""

    answer_id: str

    def begin(self, prompt: int, output: RequestOutput) -> None:
        """The first output for a prompt, before anything else of it."""
        ...

    def part(self, index: int, output: CompletionOutput) -> bytes:
        """JSON of a whole choice. Large ones are made outside of the event loop."""
        ...

    def whole(self, parts: Sequence[bytes], usage: Usage) -> bytes:
        """The answer that is not streamed."""
        ...

    def news(self, samples: Samples, usage: Callable[[], Usage]) -> Sequence[bytes]:
        """The events for what is new; the first call opens the stream."""
        ...

    def end(self, usage: Usage) -> Sequence[bytes]:
        """The events after the last news."""
        ...

    def failure(self, error: ApiError) -> Sequence[bytes]:
        """The last events of a stream that cannot go on: no client takes them for the end of an answer."""
        ...


class Padded(Protocol):
    """What is sent in a stream and may say more than it has to."""

    obfuscation: str | UnsetType


class ChoicesForm:
    """Completions and chat completions: an object with choices, or a chunk a choice and `[DONE]`."""

    def __init__(self, job: Job, shape: Shape) -> None:
        self.answer_id = f"{shape.prefix}-{uuid4().hex}"
        self._shape = shape
        self._model = job.model
        self._created = int(time.time())
        self._include_usage = job.include_usage
        self._usage_so_far = job.shown.usage_so_far
        self._obfuscated = job.shown.obfuscated
        self._fingerprint = job.fingerprint or UNSET
        self._unopened = range(len(job.prompts) * job.params.n)

    def begin(self, prompt: int, output: RequestOutput) -> None:
        self._shape.begin(prompt, output)

    def part(self, index: int, output: CompletionOutput) -> bytes:
        return msgspec.json.encode(self._shape.whole(index, output))

    def whole(self, parts: Sequence[bytes], usage: Usage) -> bytes:
        answer = self._answer(self._shape.whole_object, [msgspec.Raw(part) for part in parts], usage)
        return msgspec.json.encode(self._beside(answer))

    def news(self, samples: Samples, usage: Callable[[], Usage]) -> Sequence[bytes]:
        opening = [choice for index in self._unopened for choice in self._shape.opening(index)]
        first, self._unopened = bool(self._unopened), range(0)
        choices = opening + [choice for index, sample in samples for choice in self._shape.pieces(index, sample)]
        now = usage() if self._usage_so_far else None if self._include_usage else UNSET
        chunks = [self._answer(self._shape.chunk_object, [choice], now) for choice in choices]
        if first and chunks:
            self._beside(chunks[0])
        return [event(padded(chunk) if self._obfuscated else msgspec.json.encode(chunk)) for chunk in chunks]

    def end(self, usage: Usage) -> Sequence[bytes]:
        last = [event(msgspec.json.encode(self._answer(self._shape.chunk_object, [], usage)))] if self._include_usage else []
        return [*last, event(b"[DONE]")]

    def failure(self, error: ApiError) -> Sequence[bytes]:
        return (event(error.body()),)

    def _answer(self, kind: str, choices: list[Any], usage: Usage | UnsetType | None) -> Answer:
        return Answer(
            id=self.answer_id, object=kind, created=self._created, model=self._model, choices=choices, usage=usage, system_fingerprint=self._fingerprint
        )

    def _beside(self, answer: Answer) -> Answer:
        """With what is said once of the prompt."""
        if (prompt := self._shape.beside()) is not None:
            answer.prompt_logprobs, answer.prompt_token_ids = prompt.scored, prompt.token_ids
        return answer


def padded(chunk: Padded) -> bytes:
    """As JSON whose length tells little about what it says."""
    chunk.obfuscation = ""
    missing = -len(msgspec.json.encode(chunk)) % _SIZE
    chunk.obfuscation = secrets.token_urlsafe(missing)[:missing]
    return msgspec.json.encode(chunk)


def completion_form(job: Job, tokenizer: Tokenizer) -> Form:
    return ChoicesForm(job, CompletionShape(job, tokenizer))


def chat_form(job: Job, tokenizer: Tokenizer) -> Form:
    return ChoicesForm(job, ChatShape(job, tokenizer))
