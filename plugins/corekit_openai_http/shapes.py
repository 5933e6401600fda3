"""The two shapes of an answer: what a completion and a chat completion make of samples. Knows no engine and no sockets."""

from __future__ import annotations

import codecs
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from msgspec import UNSET, UnsetType

from corekit.api import CompletionOutput, RequestOutput, Tokenizer, TokenLogprob

from .prompt_part import PromptPart
from .requests import Job
from .token_names import TokenNames
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


class Shape(Protocol):
    """One request's answers. `index` is the number of the choice."""

    prefix: str
    whole_object: str
    chunk_object: str

    def begin(self, prompt: int, output: RequestOutput) -> None:
        """What is known of a prompt, before anything of its choices is asked for. Costs time where much of it is shown."""
        ...

    def beside(self) -> PromptPart | None:
        """What the whole answer, or the first chunk of a stream, says of the prompt beside its choices."""
        ...

    def opening(self, index: int) -> Sequence[Any]:
        """Choices of a stream before the first text."""
        ...

    def pieces(self, index: int, output: CompletionOutput) -> Sequence[Any]:
        """Choices of a stream for what is new in a sample; one with a finish reason, if it ended."""
        ...

    def whole(self, index: int, output: CompletionOutput) -> Any:
        """The choice of an answer that is not streamed."""
        ...


@dataclass(slots=True)
class _Spelled:
    """How far the tokens of a choice have come in its text."""

    decoder: codecs.IncrementalDecoder
    num_chars: int


class CompletionShape:
    """`text_completion`. The first piece of a choice says what is shown of its prompt."""

    prefix = "cmpl"
    whole_object = chunk_object = "text_completion"

    def __init__(self, job: Job, tokenizer: Tokenizer) -> None:
        self._tokenizer = tokenizer
        self._shown = job.shown
        self._params = job.params
        self._n = job.shown.best or job.params.n
        self._names = TokenNames(tokenizer, by_ids=job.shown.tokens_as_ids)
        self._shows_prompt = job.shown.echo or job.shown.token_ids or job.shown.prompt_logprobs is not None
        self._prompts: dict[int, PromptPart] = {}
        self._spelled: dict[int, _Spelled] = {}
        """Of the choices that have begun."""

    def begin(self, prompt: int, output: RequestOutput) -> None:
        if self._shows_prompt:
            self._prompts[prompt] = PromptPart.of(output, self._shown, self._tokenizer, skip_special_tokens=self._params.skip_special_tokens)

    def beside(self) -> PromptPart | None:
        return None

    def opening(self, index: int) -> Sequence[CompletionChoice]:
        return ()

    def pieces(self, index: int, output: CompletionOutput) -> Sequence[CompletionChoice]:
        new = self._shows_prompt and index not in self._spelled
        if not (new or output.text or output.logprobs or output.finish_reason or (self._shown.token_ids and output.token_ids)):
            return ()
        return (self.whole(index, output),)

    def whole(self, index: int, output: CompletionOutput) -> CompletionChoice:
        part = PromptPart()
        if index not in self._spelled:
            if self._shows_prompt:
                part = self._prompts[index // self._n]
            self._spelled[index] = _Spelled(codecs.getincrementaldecoder("utf-8")("replace"), len(part.text))
        return CompletionChoice(
            index=index,
            text=part.text + output.text,
            logprobs=None if self._shown.logprobs is None else self._logprobs(index, output.logprobs or (), part.logprobs),
            finish_reason=output.finish_reason,
            stop_reason=_stop_reason(output),
            prompt_logprobs=part.scored,
            prompt_token_ids=part.token_ids,
            token_ids=output.token_ids if self._shown.token_ids else UNSET,
        )

    def _logprobs(self, index: int, given: Sequence[TokenLogprob], before: CompletionLogprobs | None) -> CompletionLogprobs:
        first = before or CompletionLogprobs(tokens=[], token_logprobs=[], top_logprobs=[], text_offset=[])
        shown = CompletionLogprobs(
            tokens=[*first.tokens], token_logprobs=[*first.token_logprobs], top_logprobs=[*first.top_logprobs], text_offset=[*first.text_offset]
        )
        spelled = self._spelled[index]
        for token in given:
            shown.text_offset.append(spelled.num_chars)
            self._names.add(shown, token.token_id, token, self._shown.logprobs or 0)
            spelled.num_chars += len(spelled.decoder.decode(self._names.raw(token.token_id)))
        return shown


class ChatShape:
    """`chat.completion`: a role first, then content, then a chunk that holds nothing but the finish reason."""

    prefix = "chatcmpl"
    whole_object = "chat.completion"
    chunk_object = "chat.completion.chunk"

    def __init__(self, job: Job, tokenizer: Tokenizer) -> None:
        self._tokenizer = tokenizer
        self._shown = job.shown
        self._prompt: PromptPart | None = None

    def begin(self, prompt: int, output: RequestOutput) -> None:
        if self._shown.token_ids or self._shown.prompt_logprobs is not None:
            self._prompt = PromptPart.of(output, self._shown, self._tokenizer, skip_special_tokens=True)

    def beside(self) -> PromptPart | None:
        return self._prompt

    def opening(self, index: int) -> Sequence[ChatChunkChoice]:
        role = ChatChunkChoice(index=index, delta=ChatDelta(role="assistant", content=""))
        return (role, ChatChunkChoice(index=index, delta=ChatDelta(content=self._shown.before))) if self._shown.before else (role,)

    def pieces(self, index: int, output: CompletionOutput) -> Sequence[ChatChunkChoice]:
        choices = []
        ids = self._ids(output)
        if output.text or output.logprobs or ids:
            choices.append(ChatChunkChoice(index=index, delta=ChatDelta(content=output.text), logprobs=self._logprobs(output.logprobs), token_ids=ids))
        if output.finish_reason:
            choices.append(ChatChunkChoice(index=index, delta=ChatDelta(), finish_reason=output.finish_reason, stop_reason=_stop_reason(output)))
        return choices

    def whole(self, index: int, output: CompletionOutput) -> ChatChoice:
        message = ChatMessage(role="assistant", content=self._shown.before + output.text)
        return ChatChoice(
            index=index,
            message=message,
            logprobs=self._logprobs(output.logprobs),
            finish_reason=output.finish_reason,
            stop_reason=_stop_reason(output),
            token_ids=self._ids(output),
        )

    def _ids(self, output: CompletionOutput) -> tuple[int, ...] | UnsetType:
        return output.token_ids if self._shown.token_ids else UNSET

    def _logprobs(self, given: Sequence[TokenLogprob] | None) -> ChatLogprobs | None:
        return None if given is None else ChatLogprobs(content=token_logprobs(self._tokenizer, given, by_ids=self._shown.tokens_as_ids))


def _stop_reason(output: CompletionOutput) -> str | int | UnsetType:
    """The stop string or id that ended it, as vLLM tells it; nothing for any other end."""
    return UNSET if output.stop_reason is None else output.stop_reason


def token_logprobs(tokenizer: Tokenizer, given: Sequence[TokenLogprob], *, by_ids: bool = False) -> list[ChatTokenLogprob]:
    """Each token as text and as bytes, with the likeliest ones at its position."""
    names = TokenNames(tokenizer, by_ids=by_ids)
    entries = []
    for token in given:
        top = [_top(token_id, logprob, names) for token_id, logprob in token.top]
        text, logprob, raw = names.text(token.token_id), names.finite(token.logprob), list(names.raw(token.token_id))
        entries.append(ChatTokenLogprob(token=text, logprob=logprob, bytes=raw, top_logprobs=top))
    return entries


def _top(token_id: int, logprob: float, names: TokenNames) -> TopLogprob:
    return TopLogprob(token=names.text(token_id), logprob=names.finite(logprob), bytes=list(names.raw(token_id)))
