"""The HTTP client against a small server that speaks every dialect of streamed completions, including wrong ones."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any

import pytest

from corekit.bench.errors import BenchError
from corekit.bench.http_client import MAX_BODY, Server
from corekit.bench.trace import Trace
from corekit.bench.workload import Request

REQUEST = Request(token_ids=(1, 2, 3), text=None, num_output_tokens=4)
OK = b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\n"


def event(content: Any) -> bytes:
    return b"data: " + (content if isinstance(content, bytes) else json.dumps(content).encode()) + b"\n\n"


def choice(text: str, finish_reason: str | None = None) -> dict[str, Any]:
    return {"id": "x", "object": "text_completion", "choices": [{"index": 0, "text": text, "finish_reason": finish_reason, "logprobs": None}], "usage": None}


def usage(tokens: int, cached: int | None = None) -> dict[str, Any]:
    details = {} if cached is None else {"prompt_tokens_details": {"cached_tokens": cached}}
    return {"choices": [], "usage": {"prompt_tokens": 3, "completion_tokens": tokens, "total_tokens": 3 + tokens, **details}}


GOOD = [event(choice("a")), b": keep-alive\n\n", event(choice("b")), event(choice("c")), event(choice("d", "length")), event(usage(4, 2)), event(b"[DONE]")]


class Fake:
    """Answers every completion with the same pieces, and keeps what it was sent."""

    def __init__(self, pieces: list[bytes], head: bytes = OK, chunked: bool = True, hang: bool = False) -> None:
        self.pieces, self.head, self.chunked, self.hang = pieces, head, chunked, hang
        self.heads: list[str] = []
        self.bodies: list[Any] = []

    async def answer(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        head = (await reader.readuntil(b"\r\n\r\n")).decode()
        self.heads.append(head)
        length = next((int(line.split(":")[1]) for line in head.splitlines() if line.lower().startswith("content-length")), 0)
        body = await reader.readexactly(length)
        if head.startswith("GET /v1/models "):
            listed = json.dumps({"object": "list", "data": [{"id": "fake"}, {"id": "other"}]}).encode()
            writer.write(b"HTTP/1.1 200 OK\r\ncontent-length: %d\r\n\r\n%s" % (len(listed), listed))
        else:
            self.bodies.append(json.loads(body))
            writer.write(self.head + (b"transfer-encoding: chunked\r\n\r\n" if self.chunked else b"\r\n"))
            for piece in self.pieces:
                writer.write(b"%x\r\n%s\r\n" % (len(piece), piece) if self.chunked else piece)
                await writer.drain()
                await asyncio.sleep(0)
            if self.hang:
                await asyncio.sleep(5)
            if self.chunked:
                writer.write(b"0\r\n\r\n")
        writer.close()

    @asynccontextmanager
    async def serving(self) -> AsyncIterator[str]:
        async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            try:
                await self.answer(reader, writer)
            except (ConnectionError, asyncio.IncompleteReadError, asyncio.CancelledError):
                writer.close()

        server = await asyncio.start_server(answer, "127.0.0.1", 0)
        try:
            yield f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"
        finally:
            server.close()


def asked(fake: Fake, request: Request = REQUEST, **server: Any) -> Trace:
    async def run() -> Trace:
        async with fake.serving() as url:
            return await Server(url=url, model="fake", **server).ask(request)

    return asyncio.run(run())


def sliced(size: int) -> list[bytes]:
    joined = b"".join(GOOD)
    return [joined[at : at + size] for at in range(0, len(joined), size)]


@pytest.mark.parametrize("pieces", [GOOD, sliced(1), sliced(7), [b"".join(GOOD)], [piece.replace(b"\n", b"\r\n") for piece in GOOD]])
@pytest.mark.parametrize("chunked", [True, False])
def test_an_answer_however_it_is_cut(pieces: list[bytes], chunked: bool) -> None:
    fake = Fake(pieces, chunked=chunked)
    found = asked(fake)
    assert (found.num_prompt_tokens, found.num_cached_tokens, found.num_output_tokens) == (3, 2, 4)
    assert len(found.arrivals) == 4
    assert found.sent < found.arrivals[0]
    assert list(found.arrivals) == sorted(found.arrivals)


def test_what_is_sent() -> None:
    fake = Fake(GOOD)
    asked(fake, api_key="k")
    asked(fake, Request(token_ids=None, text="hello", num_output_tokens=4), ignore_eos=False)
    common = {"model": "fake", "max_tokens": 4, "temperature": 0, "stream": True, "stream_options": {"include_usage": True}}
    assert fake.bodies == [{**common, "prompt": [1, 2, 3], "ignore_eos": True}, {**common, "prompt": "hello"}]
    assert fake.heads[0].startswith("POST /v1/completions HTTP/1.1\r\n")
    assert "Authorization: Bearer k\r\n" in fake.heads[0]
    assert "Authorization" not in fake.heads[1]


@pytest.mark.parametrize("suffix", ["", "/", "/v1", "/v1/"])
def test_the_first_model_and_the_forms_of_an_address(suffix: str) -> None:
    async def run() -> str:
        async with Fake(GOOD).serving() as url:
            return await Server(url=url + suffix).first_model()

    assert asyncio.run(run()) == "fake"


@pytest.mark.parametrize("url", ["", "localhost:8000", "ftp://h", "http://", "http://h:x", "http://[::1"])
def test_what_is_no_address(url: str) -> None:
    with pytest.raises(BenchError, match="is no address of a server"):
        _ = Server(url=url).address


REFUSED = b"HTTP/1.1 503 Service Unavailable\r\ncontent-type: application/json\r\n"


@pytest.mark.parametrize(
    ("make", "says"),
    [
        (lambda: Fake([b'{"error":{"message":"queue full"}}'], head=REFUSED), "answered 503.*queue full"),
        (lambda: Fake(GOOD[:3]), "ended after 2 deliveries without a finish_reason"),
        (lambda: Fake([*GOOD[:3], GOOD[-1]]), "without a finish_reason"),
        (lambda: Fake([event(b"[DONE]")]), "ended after 0 deliveries"),
        (lambda: Fake([*GOOD[:5], GOOD[-1]]), "no usage"),
        (lambda: Fake([*GOOD[:5], event(usage(3)), GOOD[-1]]), "asked for 4 tokens and got 3.*--no-ignore-eos"),
        (lambda: Fake([*GOOD[:2], event({"error": {"message": "engine died"}}), GOOD[-1]]), "stream reported.*engine died"),
        (lambda: Fake([event(b"{nonsense")]), "no completion"),
        (lambda: Fake([event({"choices": 7})]), "no completion"),
        (lambda: Fake([b"data: " + b"x" * (MAX_BODY + 10)]), "longer than"),
        (lambda: Fake([], head=b"SMTP ready\r\n"), "not HTTP"),
        (lambda: Fake([], head=b"", chunked=False), "not HTTP|closed the connection"),
    ],
)
def test_what_is_no_answer(make: Callable[[], Fake], says: str) -> None:
    with pytest.raises(BenchError, match=says):
        asked(make())


def test_short_answers_are_taken_when_they_were_allowed() -> None:
    short = [*GOOD[:5], event(usage(3)), GOOD[-1]]
    assert asked(Fake(short), ignore_eos=False).num_output_tokens == 3
    with pytest.raises(BenchError, match="got 5"):
        asked(Fake([*GOOD[:5], event(usage(5)), GOOD[-1]]), ignore_eos=False)


def test_a_server_that_hangs_or_is_not_there() -> None:
    with pytest.raises(BenchError, match=r"no answer within 0\.2 s"):
        asked(Fake(GOOD[:2], hang=True), timeout=0.2)
    with pytest.raises(BenchError, match="Is the server running there"):
        asyncio.run(Server(url="http://127.0.0.1:1", model="m").ask(REQUEST))
