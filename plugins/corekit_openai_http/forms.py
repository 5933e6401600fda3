"""The form of one answer: what is sent of its samples, whole or event by event. Knows no engine and no sockets."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from typing import Any, Protocol
from uuid import uuid4

import msgspec
from msgspec import UNSET, UnsetType

from corekit.api import CompletionOutput, Tokenizer

from .errors import ApiError
from .reply import event
from .requests import Job
from .shapes import ChatShape, CompletionShape, Shape
from .wire import Answer, Usage

Samples = Sequence[tuple[int, CompletionOutput]]
"""What is new, by number of the choice."""


class Form(Protocol):
    """One answer. `usage` tells what was counted so far; events are complete, as they go out."""

    answer_id: str

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


class ChoicesForm:
    """Completions and chat completions: an object with choices, or a chunk a choice and `[DONE]`."""

    def __init__(self, job: Job, shape: Shape) -> None:
        self.answer_id = f"{shape.prefix}-{uuid4().hex}"
        self._shape = shape
        self._model = job.model
        self._created = int(time.time())
        self._include_usage = job.include_usage
        self._unopened = range(len(job.prompts) * job.params.n)

    def part(self, index: int, output: CompletionOutput) -> bytes:
        return msgspec.json.encode(self._shape.whole(index, output))

    def whole(self, parts: Sequence[bytes], usage: Usage) -> bytes:
        return self._encoded(self._shape.whole_object, [msgspec.Raw(part) for part in parts], usage)

    def news(self, samples: Samples, usage: Callable[[], Usage]) -> Sequence[bytes]:
        opening = [choice for index in self._unopened for choice in self._shape.opening(index)]
        self._unopened = range(0)
        choices = opening + [choice for index, sample in samples for choice in self._shape.pieces(index, sample)]
        no_usage = None if self._include_usage else UNSET
        return [event(self._encoded(self._shape.chunk_object, [choice], no_usage)) for choice in choices]

    def end(self, usage: Usage) -> Sequence[bytes]:
        last = [event(self._encoded(self._shape.chunk_object, [], usage))] if self._include_usage else []
        return [*last, event(b"[DONE]")]

    def failure(self, error: ApiError) -> Sequence[bytes]:
        return (event(error.body()),)

    def _encoded(self, kind: str, choices: list[Any], usage: Usage | UnsetType | None) -> bytes:
        return msgspec.json.encode(Answer(id=self.answer_id, object=kind, created=self._created, model=self._model, choices=choices, usage=usage))


def completion_form(job: Job, tokenizer: Tokenizer) -> Form:
    return ChoicesForm(job, CompletionShape(tokenizer))


def chat_form(job: Job, tokenizer: Tokenizer) -> Form:
    return ChoicesForm(job, ChatShape(tokenizer))
