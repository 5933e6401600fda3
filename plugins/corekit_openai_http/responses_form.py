"""The form of an answer of `/v1/responses`: one message, whole or as its events. Knows no engine and no sockets."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any
from uuid import uuid4

import msgspec

from corekit.api import CompletionOutput, RequestOutput, Tokenizer, TokenLogprob

from .errors import ApiError
from .forms import padded
from .gathered import Samples
from .reply import event
from .responses_body import ResponsesJob
from .responses_wire import (
    DeltaEvent,
    ErrorEvent,
    Event,
    IncompleteDetails,
    InputDetails,
    ItemEvent,
    MessageItem,
    OutputDetails,
    PartEvent,
    Response,
    ResponseError,
    ResponseEvent,
    ResponseUsage,
    TextDoneEvent,
    TextLogprob,
    TextPart,
    TopText,
)
from .shapes import token_logprobs
from .wire import ChatTokenLogprob, Usage

_CODES: Mapping[int, str] = {400: "invalid_prompt", 429: "rate_limit_exceeded"}
"""Status of an error -> OpenAI's word for it in a response; all others are `server_error`."""


class ResponsesForm:
    """One response. Invariant: what the events said so far, and nothing else, is in the item that the last of them has."""

    def __init__(self, job: ResponsesJob, tokenizer: Tokenizer) -> None:
        self.answer_id = f"resp_{uuid4().hex}"
        self._item_id = f"msg_{uuid4().hex}"
        self._echo = job.echo
        self._obfuscated = job.shown.obfuscated
        self._tokenizer = tokenizer
        self._created = int(time.time())
        self._num_events = 0
        self._ending: str | None = None
        self._texts: list[str] = []
        self._of_text: list[bytes] = []
        self._of_part: list[bytes] = []

    def begin(self, prompt: int, output: RequestOutput) -> None:
        """Nothing is shown of a prompt."""

    def part(self, index: int, output: CompletionOutput) -> bytes:
        self._note(output)
        return msgspec.json.encode(self._item(self._status()))

    def whole(self, parts: Sequence[bytes], usage: Usage) -> bytes:
        return msgspec.json.encode(self._ended([msgspec.Raw(part) for part in parts], usage))

    def news(self, samples: Samples, usage: Callable[[], Usage]) -> Sequence[bytes]:
        return [*([] if self._num_events else self._opening()), *(delta for _, sample in samples for delta in self._deltas(sample))]

    def end(self, usage: Usage) -> Sequence[bytes]:
        text, item = "".join(self._texts), self._item(self._status())
        ended = self._ended([item], usage)
        return [
            self._event("response.output_text.done", TextDoneEvent, item_id=self._item_id, text=text, logprobs=_array(self._of_text)),
            self._event("response.content_part.done", PartEvent, item_id=self._item_id, part=item.content[0]),
            self._event("response.output_item.done", ItemEvent, item=item),
            self._event(f"response.{ended.status}", ResponseEvent, response=ended),
        ]

    def failure(self, error: ApiError) -> Sequence[bytes]:
        """What was said stays, as an incomplete message of a response that failed."""
        failed = self._response("failed", output=[self._item("incomplete")])
        failed.error = ResponseError(code=_CODES.get(error.status, "server_error"), message=error.message)
        return [
            self._event("error", ErrorEvent, code=error.code, message=error.message, param=error.param),
            self._event("response.failed", ResponseEvent, response=failed),
        ]

    def _opening(self) -> list[bytes]:
        begun = self._response("in_progress")
        return [
            self._event("response.created", ResponseEvent, response=begun),
            self._event("response.in_progress", ResponseEvent, response=begun),
            self._event("response.output_item.added", ItemEvent, item=MessageItem(id=self._item_id, status="in_progress")),
            self._event("response.content_part.added", PartEvent, item_id=self._item_id, part=TextPart(text="")),
        ]

    def _deltas(self, sample: CompletionOutput) -> Sequence[bytes]:
        """None for news without text: its last token may have none, and is the end all the same."""
        name, of_text = "response.output_text.delta", self._note(sample)
        if not (sample.text or of_text):
            return ()
        made = DeltaEvent(type=name, sequence_number=self._next(), item_id=self._item_id, delta=sample.text, logprobs=_array(of_text))
        return (event(padded(made) if self._obfuscated else msgspec.json.encode(made), name.encode()),)

    def _note(self, output: CompletionOutput) -> list[bytes]:
        """Keeps what is new, and says its logprobs as events about text have them."""
        self._texts.append(output.text)
        self._ending = output.finish_reason or self._ending
        of_text, of_part = self._logprobs(output.logprobs or ())
        self._of_text += of_text
        self._of_part += of_part
        return of_text

    def _logprobs(self, given: Sequence[TokenLogprob]) -> tuple[list[bytes], list[bytes]]:
        """Encoded once: the end of a stream says them all again, four times."""
        entries = token_logprobs(self._tokenizer, given)
        return [msgspec.json.encode(_without_bytes(entry)) for entry in entries], [msgspec.json.encode(entry) for entry in entries]

    def _status(self) -> str:
        return "incomplete" if self._ending == "length" else "completed"

    def _item(self, status: str) -> MessageItem:
        return MessageItem(id=self._item_id, status=status, content=[TextPart(text="".join(self._texts), logprobs=_array(self._of_part))])

    def _ended(self, output: list[Any], usage: Usage) -> Response:
        ended = self._response(self._status(), output=output)
        if ended.status == "completed":
            ended.completed_at = int(time.time())
        else:
            ended.incomplete_details = IncompleteDetails(reason="max_output_tokens")
        ended.usage = ResponseUsage(
            input_tokens=usage.prompt_tokens,
            input_tokens_details=InputDetails(cached_tokens=usage.prompt_tokens_details.cached_tokens),
            output_tokens=usage.completion_tokens,
            output_tokens_details=OutputDetails(),
            total_tokens=usage.total_tokens,
        )
        return ended

    def _response(self, status: str, *, output: Sequence[Any] = ()) -> Response:
        return Response(id=self.answer_id, created_at=self._created, status=status, output=list(output), **self._echo)

    def _event(self, name: str, kind: type[Event], **fields: Any) -> bytes:
        return event(msgspec.json.encode(kind(type=name, sequence_number=self._next(), **fields)), name.encode())

    def _next(self) -> int:
        self._num_events += 1
        return self._num_events - 1


def _without_bytes(entry: ChatTokenLogprob) -> TextLogprob:
    top = [TopText(token=likely.token, logprob=likely.logprob) for likely in entry.top_logprobs]
    return TextLogprob(token=entry.token, logprob=entry.logprob, top_logprobs=top)


def _array(encoded: Sequence[bytes]) -> msgspec.Raw:
    return msgspec.Raw(b"[%b]" % b",".join(encoded))
