"""Asks an OpenAI-compatible server for streamed completions. Written to cost little: client and server often share two cores.

One connection per request, opened before the clock starts. A delivery is an event with a choice; what is in it is counted by the
server's own usage, which must match what was asked for.
"""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from time import perf_counter
from typing import Any
from urllib.parse import urlsplit

import httptools
import msgspec

from corekit import __version__

from .errors import BenchError, BenchUsage
from .trace import Trace
from .workload import Request

MAX_BODY = 1 << 20
"""Bytes of an answer that is not a stream, and of one event."""


class _Choice(msgspec.Struct):
    text: str | None = None
    finish_reason: str | None = None


class _Details(msgspec.Struct):
    cached_tokens: int | None = None


class _Usage(msgspec.Struct):
    prompt_tokens: int = 0
    completion_tokens: int = 0
    prompt_tokens_details: _Details | None = None


class _Event(msgspec.Struct):
    choices: list[_Choice] = []
    usage: _Usage | None = None
    error: Any = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Server:
    """Where to ask and how. `url` may end in /v1 or not."""

    url: str
    model: str = ""
    """Empty: the first that the server lists."""
    api_key: str = ""
    timeout: float = 600.0
    ignore_eos: bool = True
    """False: the field is not sent, and an answer may be shorter than asked for."""

    @property
    def address(self) -> tuple[str, int, bool]:
        """Host, port, whether TLS is spoken."""
        try:
            parts = urlsplit(self.url)
            host, port = parts.hostname, parts.port
        except ValueError:
            parts, host, port = urlsplit(""), None, None
        if parts.scheme not in ("http", "https") or not host:
            raise BenchUsage(f"--url {self.url}: is no address of a server. Expected http://HOST:PORT or https://HOST:PORT, with or without /v1.")
        return host, port or (443 if parts.scheme == "https" else 80), parts.scheme == "https"

    async def first_model(self) -> str:
        status, body = await self._fetch("GET", "/models", b"")
        try:
            return str(msgspec.json.decode(body)["data"][0]["id"])
        except (msgspec.DecodeError, KeyError, IndexError, TypeError):
            raise BenchError(f"{self.url}: /v1/models answered {status} {_shown(body)}, which lists no model. Name one with --model.") from None

    async def ask(self, request: Request) -> Trace:
        """Raises BenchError when the server refuses, breaks off, or generates another number of tokens."""
        payload: dict[str, Any] = {
            "model": self.model,
            "prompt": request.token_ids if request.token_ids is not None else request.text,
            "max_tokens": request.num_output_tokens,
            "temperature": 0,
            "stream": True,
            "stream_options": {"include_usage": True},
        }
        if self.ignore_eos:
            payload["ignore_eos"] = True
        events = _Events()
        sent, status, body = await self._exchange("POST", "/completions", msgspec.json.encode(payload), events.feed)
        if status != 200:
            raise BenchError(f"{self.url}: the server answered {status} {_shown(body)}")
        return self._trace(request, events, sent)

    def _trace(self, request: Request, events: _Events, sent: float) -> Trace:
        usage, wanted = events.usage, request.num_output_tokens
        if events.error is not None:
            raise BenchError(f"{self.url}: the stream reported {_shown(msgspec.json.encode(events.error))}")
        if not events.finished or not events.arrivals:
            raise BenchError(f"{self.url}: the stream ended after {len(events.arrivals)} deliveries without a finish_reason: the server broke off")
        if usage is None:
            raise BenchError(f"{self.url}: the stream had no usage, so tokens cannot be counted. The server must support stream_options.include_usage.")
        got = usage.completion_tokens
        if got != wanted and (self.ignore_eos or not 1 <= got < wanted):
            raise BenchError(
                f"{self.url}: asked for {wanted} tokens and got {got}. "
                "A server that does not know ignore_eos stops early; --no-ignore-eos accepts short answers."
            )
        cached = usage.prompt_tokens_details.cached_tokens if usage.prompt_tokens_details else None
        return Trace(num_prompt_tokens=usage.prompt_tokens, num_cached_tokens=cached or 0, num_output_tokens=got, sent=sent, arrivals=tuple(events.arrivals))

    async def _fetch(self, method: str, path: str, body: bytes) -> tuple[int, bytes]:
        answer = bytearray()
        _, status, refusal = await self._exchange(method, path, body, lambda data, _: answer.extend(data))
        return status, bytes(answer or refusal)

    async def _exchange(self, method: str, path: str, body: bytes, take: Callable[[bytes, float], None]) -> tuple[float, int, bytes]:
        """When it was sent, the status, and the body unless the status is 200: that body goes to `take`, piece by piece with its time."""
        host, port, tls = self.address
        prefix = urlsplit(self.url).path.rstrip("/").removesuffix("/v1") + "/v1"
        headers = {"Host": f"{host}:{port}", "User-Agent": f"corekit-bench/{__version__}", "Connection": "close"}
        if body:
            headers |= {"Content-Type": "application/json", "Content-Length": str(len(body))}
        if self.api_key:
            headers["Authorization"] = f"Bearer {self.api_key}"
        loop = asyncio.get_running_loop()
        try:
            async with asyncio.timeout(self.timeout):
                context = ssl.create_default_context() if tls else None
                transport, reading = await loop.create_connection(lambda: _Reading(loop.create_future(), take), host, port, ssl=context)
                try:
                    sent = perf_counter()
                    transport.write(_head(method, prefix + path, headers) + body)
                    status = await reading.done
                finally:
                    transport.abort()
        except TimeoutError:
            raise BenchError(f"{self.url}: no answer within {self.timeout:g} s. Raise --timeout, or send less at once.") from None
        except OSError as error:
            raise BenchError(f"{self.url}: {error.strerror or error}. Is the server running there?") from None
        return sent, status, bytes(reading.refusal)


class _Events:
    """Server-sent events of one answer. An arrival for each event that carries a choice."""

    def __init__(self) -> None:
        self.arrivals: list[float] = []
        self.usage: _Usage | None = None
        self.finished = False
        self.error: Any = None
        self._rest = b""
        self._decode = msgspec.json.Decoder(_Event).decode

    def feed(self, data: bytes, now: float) -> None:
        *lines, self._rest = (self._rest + data).split(b"\n")
        if len(self._rest) > MAX_BODY:
            raise BenchError(f"an event of the stream is longer than {MAX_BODY} bytes: is this an OpenAI-compatible server?")
        for line in lines:
            if line.startswith(b"data:"):
                self._take(line[5:].strip(), now)

    def _take(self, text: bytes, now: float) -> None:
        if text == b"[DONE]":
            return
        try:
            event = self._decode(text)
        except msgspec.MsgspecError as error:
            raise BenchError(f"the stream had an event that is no completion ({error}): {_shown(text)}") from None
        if event.choices:
            self.arrivals.append(now)
            self.finished = self.finished or any(choice.finish_reason for choice in event.choices)
        self.usage = event.usage or self.usage
        self.error = event.error or self.error


class _Reading(asyncio.Protocol):
    """One response of HTTP/1.1. `done` holds its status once it is complete, or what went wrong."""

    def __init__(self, done: asyncio.Future[int], take: Callable[[bytes, float], None]) -> None:
        self.done = done
        self.refusal = bytearray()
        self._take = take
        self._status = 0
        self._now = 0.0
        self._parser = httptools.HttpResponseParser(self)

    def data_received(self, data: bytes) -> None:
        self._now = perf_counter()
        try:
            self._parser.feed_data(data)
        except httptools.HttpParserError as error:
            fault = error.__context__ if isinstance(error.__context__, BenchError) else BenchError(f"the answer is not HTTP ({error})")
            self._end(fault)

    def on_headers_complete(self) -> None:
        self._status = self._parser.get_status_code()

    def on_body(self, data: bytes) -> None:
        if self._status == 200:
            self._take(data, self._now)
        elif len(self.refusal) < MAX_BODY:
            self.refusal += data

    def on_message_complete(self) -> None:
        self._end(None)

    def connection_lost(self, error: Exception | None) -> None:
        # A body without a length ends with its connection; whether it was whole is for the reader of the events to say.
        self._end(None if self._status and error is None else BenchError(f"the server closed the connection ({error or 'without an answer'})"))

    def _end(self, fault: BenchError | None) -> None:
        if self.done.done():
            return
        if fault is None:
            self.done.set_result(self._status)
        else:
            self.done.set_exception(fault)


def _head(method: str, path: str, headers: Mapping[str, str]) -> bytes:
    return "\r\n".join([f"{method} {path} HTTP/1.1", *(f"{name}: {value}" for name, value in headers.items()), "", ""]).encode("latin-1")


def _shown(body: bytes) -> str:
    text = body.decode("utf-8", "replace").strip()
    return text if len(text) <= 300 else text[:297] + "..."
