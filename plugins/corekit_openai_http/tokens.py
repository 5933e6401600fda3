"""`/tokenize` and `/detokenize`: what a prompt is in ids, and ids in text. Knows the tokenizer and no engine, so it answers while the model loads."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import msgspec
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from corekit.api import InvalidRequest
from corekit.api.tokenizer import template_options

from .errors import ApiError, from_exception, invalid
from .exchange import read_body
from .fields import convert, drop_without_effect, read_object, unsupported
from .jobs import chat_job
from .requests import check_model, served_names
from .shared import Shared

MAX_TEXT_CHARS = 2**20
MAX_TOKENS = 2**18
"""Ids to make text of, and ids whose texts are shown."""

MAX_AT_ONCE = 2
"""Calls that compute at one time, each in a thread: the others wait, and prompts of requests find a thread."""

REFUSED: Mapping[str, tuple[Any, ...]] = {
    "chat_template": (),
    "media_io_kwargs": (),
    "mm_processor_kwargs": (),
    "parse_special": (True,),
    "tools": ([],),
}
"""Fields that clients know and these endpoints refuse, with the values that mean the same as leaving the field out."""

OF_MESSAGES = ("add_generation_prompt", "continue_final_message", "chat_template_kwargs")
FIELDS: Mapping[str, tuple[str, ...]] = {
    "prompt": ("add_special_tokens", "return_token_strs"),
    "messages": ("add_special_tokens", "return_token_strs", *OF_MESSAGES),
    "content": ("add_special", "with_pieces"),
}
"""What is to be tokenized -> the fields that go with it."""


class TokenizeBody(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    """One of `prompt` and `messages`, as vLLM's clients ask, and `content`, as llama-server's do."""

    model: str | None = None
    prompt: str | None = None
    messages: list[Any] | None = None
    content: str | None = None
    add_special_tokens: bool | None = None
    return_token_strs: bool = False
    add_generation_prompt: bool | None = None
    continue_final_message: bool = False
    chat_template_kwargs: dict[str, Any] = {}
    add_special: bool = False
    with_pieces: bool = False


class DetokenizeBody(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    tokens: list[int]
    model: str | None = None


class Piece(msgspec.Struct):
    id: int
    piece: str | list[int]
    """Bytes where they are only part of a character."""


class Tokens:
    """Two endpoints that compute beside the event loop, a few calls at a time."""

    def __init__(self, shared: Shared) -> None:
        self._client = shared.client
        self._options = shared.options
        self._seats = asyncio.Semaphore(MAX_AT_ONCE)

    async def tokenize(self, request: Request) -> Response:
        return await self._answered(request, self._ids)

    async def detokenize(self, request: Request) -> Response:
        return await self._answered(request, self._text)

    async def _answered(self, request: Request, answer: Callable[[dict[str, Any]], Mapping[str, Any]]) -> Response:
        body = await read_body(request.scope, request.receive, self._options)

        def encoded() -> bytes:
            return msgspec.json.encode(answer(read_object(body)))

        async with self._seats:
            return Response(await asyncio.to_thread(encoded), media_type="application/json")

    def _ids(self, fields: dict[str, Any]) -> Mapping[str, Any]:
        body = convert(drop_without_effect(fields, harmless=frozenset(), refused=REFUSED), TokenizeBody)
        self._check_model(body.model)
        what = _what(fields)
        try:
            ids = self._of_messages(fields) if body.messages is not None else self._of_text(body, what)
        except InvalidRequest as error:
            raise from_exception(error, {"prompt": what, "template": "chat_template_kwargs"}) or error from None
        shown = "with_pieces" if body.with_pieces else "return_token_strs" if body.return_token_strs else None
        if shown is not None and len(ids) > MAX_TOKENS:
            raise invalid(f"{shown} is served for at most {MAX_TOKENS} tokens, these are {len(ids)}. Leave it out, or send less text", shown)
        if body.content is not None:
            return {"tokens": [Piece(id, self._piece(id)) for id in ids] if body.with_pieces else ids}
        texts = [self._token(id) for id in ids] if body.return_token_strs else None
        return {"count": len(ids), "max_model_len": self._client.model.max_model_len, "tokens": ids, "token_strs": texts}

    def _of_text(self, body: TokenizeBody, what: str) -> Sequence[int]:
        text = body.content if body.prompt is None else body.prompt
        assert text is not None
        if len(text) > MAX_TEXT_CHARS:
            raise invalid(f"{what} must have at most {MAX_TEXT_CHARS} characters, got {len(text)}", what)
        return self._client.tokenizer.encode(text, add_special=body.add_special if body.prompt is None else body.add_special_tokens is not False)

    def _of_messages(self, fields: Mapping[str, Any]) -> Sequence[int]:
        """As a chat completion of the same messages would be."""
        if fields.get("add_special_tokens"):  # the template writes them
            raise unsupported("add_special_tokens", (False,))
        model = self._client.model
        asked = {name: fields[name] for name in ("messages", *OF_MESSAGES) if name in fields}
        (prompt,) = chat_job({"model": served_names(model, self._options)[0], **asked}, model, self._options).prompts
        return self._client.tokenizer.apply_chat_template(prompt.messages or (), **template_options(prompt.template)).token_ids

    def _text(self, fields: dict[str, Any]) -> Mapping[str, Any]:
        body = convert(fields, DetokenizeBody)
        self._check_model(body.model)
        if len(body.tokens) > MAX_TOKENS:
            raise invalid(f"tokens must be at most {MAX_TOKENS}, got {len(body.tokens)}", "tokens")
        tokenizer = self._client.tokenizer
        num_ids = min(tokenizer.vocab_size, self._client.model.vocab_size)
        for at, id in enumerate(body.tokens):
            if not 0 <= id < num_ids:
                raise invalid(f"tokens must hold token ids from 0 to {num_ids - 1}, got {str(id)[:30]} at index {at}", "tokens")
        decoder = tokenizer.start_decoding(skip_special_tokens=False)
        text = "".join([*map(decoder.push, body.tokens), decoder.finish()])
        return {"prompt": text, "content": text}

    def _check_model(self, name: str | None) -> None:
        if name is not None:
            check_model(name, self._client.model, self._options)

    def _token(self, token_id: int) -> str:
        return self._client.tokenizer.token_bytes(token_id).decode("utf-8", "replace")

    def _piece(self, token_id: int) -> str | list[int]:
        raw = self._client.tokenizer.token_bytes(token_id)
        try:
            return raw.decode("utf-8")
        except UnicodeDecodeError:
            return list(raw)


def _what(fields: Mapping[str, Any]) -> str:
    """The field to be tokenized. Raises ApiError unless there is exactly one, with fields of its own."""
    given = [name for name in FIELDS if name in fields]
    if len(given) != 1:
        raise _one_of(given)
    for name in fields:
        if name not in FIELDS[given[0]] and any(name in names for names in FIELDS.values()):
            raise invalid(f"{name} does not go with {given[0]}, which takes {', '.join(FIELDS[given[0]])}", name)
    return given[0]


def _one_of(given: Sequence[str]) -> ApiError:
    message = f"The body must have one of {', '.join(FIELDS)}, got {' and '.join(given) or 'none of them'}"
    return invalid(message, given[1] if given else "prompt", code=None if given else "missing_required_parameter")


def token_routes(shared: Shared) -> list[Route]:
    tokens = Tokens(shared)
    return [
        Route("/tokenize", tokens.tokenize, methods=["POST"]),
        Route("/detokenize", tokens.detokenize, methods=["POST"]),
    ]
