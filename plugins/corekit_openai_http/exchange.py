"""The endpoints that generate: reads the body, then runs the answer while watching for whatever ends it early."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any, Generic, TypeVar

from starlette.types import Receive, Scope, Send

from corekit.api import ModelFacts, Tokenizer

from .answer import Answering
from .deadlines import deadlines, too_late
from .errors import ApiError, from_exception, unavailable, unexpected
from .fields import read_object
from .forms import Form
from .keys import Owner
from .log import LOG
from .options import HttpOptions
from .reply import Reply
from .requests import Job
from .shared import Shared
from .stopwatch import Stopwatch
from .tenants import owned

_MAX_BYTES_ON_LOOP = 256 * 1024
"""Larger bodies are read in a thread: many small values in one would hold up every stream."""


J = TypeVar("J", bound=Job)


class ClientLeft(Exception):
    """The client closed its connection; there is nobody to answer."""


class Exchange(Generic[J]):
    """An ASGI endpoint. When a call ends, for whatever reason, nothing of it is alive in the engine."""

    def __init__(
        self,
        shared: Shared,
        *,
        read: Callable[[dict[str, Any], ModelFacts, HttpOptions], J],
        form: Callable[[J, Tokenizer], Form],
    ) -> None:
        self._client = shared.client
        self._options = shared.options
        self._meters = shared.meters
        self._admission = shared.admission
        self._drain = shared.drain
        self._live = shared.live
        self._read = read
        self._form = form

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        stopwatch = scope["corekit"].stopwatch = self._meters.start()
        self._admission.check()
        with self._admission.seat(scope["corekit"].tenant):
            body = await self._body(scope, receive)
            self._admission.check()  # it may have been long on its way
            await self._answer(body, stopwatch, scope, receive, send)
            self._admission.answered(stopwatch.first_seconds)

    async def _body(self, scope: Scope, receive: Receive) -> bytes:
        """A server that is told to stop does not wait for the rest of it."""
        try:
            async with asyncio.timeout(None) as until:
                with self._drain.arriving(until):
                    return await read_body(scope, receive, self._options)
        except TimeoutError:
            raise unavailable("This server was told to stop before the request had arrived", "draining") from None

    async def _answer(self, body: bytes, stopwatch: Stopwatch, scope: Scope, receive: Receive, send: Send) -> None:
        names: dict[str, str] = {}
        owner = scope["corekit"].owner
        reply = Reply(send)
        try:
            job = self._job(body, owner) if len(body) <= _MAX_BYTES_ON_LOOP else await asyncio.to_thread(self._job, body, owner)
            names = job.names
            if job.request_id is not None:
                scope["corekit"].request_id = job.request_id
            form = self._form(job, self._client.tokenizer)
            answering = Answering(job, form, self._client, stopwatch)
            with self._drain.one_more(), self._live.one_more(scope["corekit"].request_id) as ordered:
                await self._watched(answering.run(reply), reply, receive, ordered, stopwatch)
        except ClientLeft:
            raise
        except Exception as error:
            refusal = from_exception(error, names, self._admission.retry_seconds)
            if refusal is None:
                LOG.exception("request %s failed", scope["corekit"].request_id, extra={"request_id": scope["corekit"].request_id})
                refusal = unexpected(scope["corekit"].request_id)
            try:
                if not reply.started:
                    raise refusal from None
                if reply.streaming:
                    self._meters.http.stream_failed()
                    if not await reply.fail(form.failure(refusal)):
                        raise ClientLeft from None
            finally:
                del refusal  # a frame that names an error raised in it is freed, with its body and its job, only when garbage is collected

    def _job(self, body: bytes, owner: Owner | None) -> J:
        fields = read_object(body)
        return owned(self._read(fields, self._client.model, self._options), fields, owner, salts=self._options.salt_by_tenant)

    async def _watched(self, answer: Coroutine[Any, Any, None], reply: Reply, receive: Receive, ordered: asyncio.Future[None], stopwatch: Stopwatch) -> None:
        """Runs the answer to its end, or cancels it when the client leaves, a deadline or the time to drain is over, or somebody has `ordered` its end."""
        work = asyncio.create_task(answer)
        left = asyncio.create_task(_left(receive))
        silence = self._options.keep_alive_seconds or None
        try:
            with deadlines(self._options, stopwatch) as missed:
                ends: set[asyncio.Future[Any]] = {work, left, ordered, missed, self._drain.over}
                while not (await asyncio.wait(ends, timeout=silence, return_when=asyncio.FIRST_COMPLETED))[0]:
                    await reply.comment_if_silent(silence or 0.0)
                finished, gone = work.done(), left.done()
        finally:
            for task in (work, left):
                task.cancel()
            await asyncio.wait({work, left})
        if finished or (work.done() and not work.cancelled() and not gone):
            try:
                work.result()
            finally:
                del work, left, task, ends
        elif gone:
            raise ClientLeft
        elif missed.done():
            self._meters.http.missed(missed.result())
            raise too_late(missed.result(), self._options)
        elif ordered.done():
            raise ApiError(500, "This request was ended by the administrator of this server", code="aborted", headers={"x-should-retry": "false"})
        else:
            raise unavailable("This server was told to stop before the answer was complete", "draining")


async def _left(receive: Receive) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass


async def read_body(scope: Scope, receive: Receive, options: HttpOptions) -> bytes:
    """The body, within its limits of type, size and time."""
    headers = {name.lower(): value for name, value in scope["headers"]}
    kind = headers.get(b"content-type", b"").split(b";")[0].strip().lower()
    if kind != b"application/json":
        shown = kind[:60].decode("latin-1") or "nothing"
        raise ApiError(415, f"The content-type must be application/json, got {shown!r}", code="unsupported_media_type")
    coding = headers.get(b"transfer-encoding", b"chunked").strip().lower()
    if coding != b"chunked":
        raise ApiError(501, f"The transfer-encoding must be chunked, got {coding[:60].decode('latin-1')!r}", code="unsupported_transfer_encoding")
    length = headers.get(b"content-length", b"")
    if length.isdigit() and int(length[:20]) > options.max_body_bytes:
        raise _too_large(options)
    body = bytearray()
    try:
        async with asyncio.timeout(options.body_seconds):
            while True:
                message = await receive()
                if message["type"] == "http.disconnect":
                    raise ClientLeft
                body += message.get("body", b"")
                if len(body) > options.max_body_bytes:
                    raise _too_large(options)
                if not message.get("more_body", False):
                    return bytes(body)
    except TimeoutError:
        raise ApiError(408, f"The body did not arrive within {options.body_seconds:g} s", code="body_timeout", headers={"connection": "close"}) from None


def _too_large(options: HttpOptions) -> ApiError:
    return ApiError(413, f"The body is larger than the {options.max_body_bytes} bytes that this server reads (max_body_bytes)", code="request_too_large")
