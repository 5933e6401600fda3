"""The door of the engine: turns a prompt into ids and refuses what is wrong before anything is queued.

Knows the tokenizer, the model's facts and the engine's word on what can never fit; does not know queues or threads.
"""

from __future__ import annotations

import asyncio
import logging
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from corekit.api import InvalidRequest, ModelFacts, Prompt, RequestFailed, SamplingParams, Tokenizer
from corekit.api.tokenizer import template_options
from corekit.api.types import invalid
from corekit.engine.request import NewRequest

log = logging.getLogger(__name__)

LONG_TEXT = 2_000
"""Characters from which on encoding leaves the event loop: it would hold up every stream for more than a millisecond."""

MAX_ID_CHARS = 256
MAX_PRIORITY = 2**31 - 1


@dataclass(frozen=True, slots=True, kw_only=True)
class Encoded:
    text: str | None
    """As the caller gave it or the chat template wrote it; None for a prompt of ids, and for one that was cut."""
    token_ids: tuple[int, ...]


class Door:
    """What has passed `encode` and `check` can be queued as it is: every number lies within its bounds."""

    def __init__(self, *, tokenizer: Tokenizer, eos_token_ids: Sequence[int], model: ModelFacts, refusal: Callable[[int, int], str | None]) -> None:
        self._tokenizer = tokenizer
        self._eos_token_ids = tuple(eos_token_ids)
        self._model = model
        self._refusal = refusal
        self._num_ids = min(tokenizer.vocab_size, model.vocab_size)

    async def encode(self, prompt: Prompt) -> Encoded:
        """Text and ids of a prompt; long ones are encoded beside the event loop. Raises InvalidRequest and RequestFailed."""
        if prompt.token_ids is not None:
            encoded = Encoded(text=None, token_ids=prompt.token_ids)
        elif prompt.messages is not None or len(prompt.text or "") >= LONG_TEXT:
            encoded = await asyncio.to_thread(self._encode, prompt)
        else:
            encoded = self._encode(prompt)
        if prompt.max_tokens is not None and len(encoded.token_ids) > prompt.max_tokens:
            encoded = Encoded(text=None, token_ids=encoded.token_ids[-prompt.max_tokens :])
        if not encoded.token_ids:
            raise InvalidRequest(
                "the prompt is empty: it has no tokens, so there is nothing to continue. Send at least one", field=field_of(prompt), code="empty_prompt"
            )
        self._check_ids(field_of(prompt), encoded.token_ids)
        return encoded

    def ask(self, token_ids: tuple[int, ...], params: SamplingParams, request_id: str, *, field: str = "prompt") -> NewRequest:
        """The request, with every limit resolved. field: what the caller knows the prompt by. Raises InvalidRequest and RequestFailed."""
        num_prompt_tokens = len(token_ids)
        for name in ("stop_token_ids", "banned_token_ids", "allowed_token_ids"):
            self._check_ids(name, getattr(params, name) or ())
        self._check_ids("logit_bias", list(dict(params.logit_bias)))
        for name in ("logprobs", "prompt_logprobs"):
            if (asked := getattr(params, name)) is not None and not self._model.supports_logprobs:
                raise InvalidRequest(f"{name} must be absent, got {asked}: the sampler of this engine does not give any", field=name)
        max_tokens = self._max_tokens(params, num_prompt_tokens, field)
        if params.min_tokens > max_tokens:
            raise InvalidRequest(f"min_tokens must be at most {max_tokens}, which the context leaves, got {params.min_tokens}", field="min_tokens")
        end_ids = tuple(dict.fromkeys(params.stop_token_ids + (() if params.ignore_eos else self._eos_token_ids)))
        bad_words = self._bad_words(params.bad_words)
        self._check_choice(params, end_ids, bad_words)
        reason = self._refusal(num_prompt_tokens, params.n)
        if reason is not None:
            raise InvalidRequest(reason, field="n" if self._refusal(num_prompt_tokens, 1) is None else field)
        return NewRequest(request_id=request_id, token_ids=token_ids, params=params, max_tokens=max_tokens, end_ids=end_ids, bad_words=bad_words)

    def _check_choice(self, params: SamplingParams, end_ids: tuple[int, ...], bad_words: tuple[tuple[int, ...], ...]) -> None:
        """Something must be left to draw, whatever is banned."""
        num_allowed = self._num_ids if params.allowed_token_ids is None else len(set(params.allowed_token_ids))
        banned: set[int] = set()
        for name, ids in (
            ("banned_token_ids", params.banned_token_ids),
            ("bad_words", [ids[0] for ids in bad_words if len(ids) == 1]),
            ("min_tokens", end_ids if params.min_tokens else ()),
        ):
            banned.update(ids if params.allowed_token_ids is None else set(ids).intersection(params.allowed_token_ids))
            if ids and len(banned) >= num_allowed:
                raise InvalidRequest(
                    f"{name} leaves nothing to draw: every one of the {num_allowed} ids that may be drawn is banned by it or by what else the request bans. "
                    "Ban less, or allow more",
                    field=name,
                )

    def _bad_words(self, words: Sequence[str]) -> tuple[tuple[int, ...], ...]:
        """Ids of each word as it stands at the begin of a text, after a space, and after anything else."""
        if not words:
            return ()
        found: dict[tuple[int, ...], None] = {}
        line_break = self._encode_word("\n")
        for word in words:
            bare = word.lstrip(" ") or word
            after_break = self._encode_word(f"\n{bare}")  # a tokenizer that puts a space before every text shows the bare word here alone
            if after_break[: len(line_break)] == line_break:
                found[after_break[len(line_break) :]] = None
            for text in (bare, f" {bare}"):
                found[self._encode_word(text)] = None
        found.pop((), None)
        return tuple(found)

    def _encode_word(self, text: str) -> tuple[int, ...]:
        try:
            text.encode()
            return tuple(self._tokenizer.encode(text, add_special=False))
        except UnicodeEncodeError as fault:
            raise InvalidRequest(f"bad_words must be valid Unicode text: {fault.reason} at character {fault.start}", field="bad_words") from fault
        except Exception as fault:
            raise RequestFailed(self._tokenizer_fault("bad_words", fault)) from fault

    def _encode(self, prompt: Prompt) -> Encoded:
        try:
            if prompt.messages is not None:
                options = template_options(prompt.template)
                if not prompt.messages:
                    return Encoded(text="", token_ids=())
                chat = self._tokenizer.apply_chat_template(prompt.messages, tools=prompt.tools, **options)
                return Encoded(text=chat.text, token_ids=tuple(chat.token_ids) if chat.text else ())
            text = prompt.text or ""
            text.encode()  # refuses lone surrogates, which tokenizers answer in many ways
            # A tokenizer that adds BOS would make a prompt of an empty text that nobody wrote.
            ids = self._tokenizer.encode(text, add_special=prompt.add_special_tokens) if text else ()
            return Encoded(text=text, token_ids=tuple(ids))
        except InvalidRequest:
            raise
        except UnicodeEncodeError as fault:
            raise InvalidRequest(f"{field_of(prompt)} must be valid Unicode text: {fault.reason} at character {fault.start}", field=field_of(prompt)) from fault
        except Exception as fault:
            raise RequestFailed(self._tokenizer_fault("prompt", fault)) from fault

    def _tokenizer_fault(self, what: str, fault: Exception) -> str:
        log.debug("the tokenizer raised", exc_info=fault)
        return f"the tokenizer ({type(self._tokenizer).__name__}) failed on this {what}: {type(fault).__name__}: {fault}"

    def _check_ids(self, field: str, token_ids: Sequence[int]) -> None:
        if token_ids and not (min(token_ids) >= 0 and max(token_ids) < self._num_ids):
            at, wrong = next((at, i) for at, i in enumerate(token_ids) if not 0 <= i < self._num_ids)
            where = "" if field == "logit_bias" else f" at index {at}"  # an object has no order
            raise InvalidRequest(f"{field} must hold token ids from 0 to {self._num_ids - 1}, got {wrong}{where}", field=field)

    def _max_tokens(self, params: SamplingParams, num_prompt_tokens: int, field: str) -> int:
        limit = self._model.max_model_len
        asked = 1 if params.max_tokens is None else params.max_tokens
        if num_prompt_tokens + asked > limit:
            too_long = num_prompt_tokens + 1 > limit
            remedy = "Shorten the prompt" if too_long else "Shorten the prompt or lower max_tokens"
            raise InvalidRequest(
                f"this model's maximum context length is {limit} tokens, but {num_prompt_tokens + asked} were requested: {num_prompt_tokens} in the prompt and "
                f"{'at least 1' if params.max_tokens is None else asked} to generate (max_tokens). {remedy}",
                field=field if too_long else "max_tokens",
                code="context_length_exceeded",
            )
        return limit - num_prompt_tokens if params.max_tokens is None else params.max_tokens


def check_identity(request_id: str | None, priority: int, tenant: str, deadline: float | None) -> None:
    """Bounds of what comes beside the parameters. Raises InvalidRequest."""
    if request_id is not None and (not isinstance(request_id, str) or not 0 < len(request_id) <= MAX_ID_CHARS or not request_id.isprintable()):
        raise invalid("request_id", request_id, f"a string of 1 to {MAX_ID_CHARS} printable characters")  # it stands in log lines
    if not isinstance(priority, int) or isinstance(priority, bool) or abs(priority) > MAX_PRIORITY:
        raise invalid("priority", priority, f"an integer from {-MAX_PRIORITY} to {MAX_PRIORITY}")
    if not isinstance(tenant, str) or len(tenant) > MAX_ID_CHARS:
        raise invalid("tenant", tenant, f"a string of at most {MAX_ID_CHARS} characters")
    # Not-a-number compares false with everything; an integer that no float can hold would fail in the first subtraction.
    if deadline is not None and (not isinstance(deadline, int | float) or isinstance(deadline, bool) or not abs(deadline) <= sys.float_info.max):
        raise invalid("deadline", deadline, "a finite number: seconds of the engine's clock")


def field_of(prompt: Prompt) -> str:
    """What the caller knows a prompt by."""
    return "prompt" if prompt.messages is None else "messages"
