"""One connection, byte by byte: how reads are cut, heads and trailers without end, pipelining, upgrades and silence."""

from __future__ import annotations

import json
import logging
import socket
import time
from collections.abc import Iterator
from typing import Any

import pytest
from corekit_openai_http.protocol import MAX_HEAD_BYTES
from http_live import MODEL, Live, PlainClient, eventually

TEXT = "/v1/completions"


@pytest.fixture(autouse=True)
def no_tracebacks(caplog: pytest.LogCaptureFixture) -> Iterator[None]:
    caplog.set_level(logging.INFO)
    yield
    assert not [record for record in caplog.records if record.exc_info]
    assert not [record for record in caplog.records if record.name.startswith("uvicorn") and record.levelno >= logging.ERROR]


def connected(live: Live) -> socket.socket:
    host, port = live.url.removeprefix("http://").split(":")
    connection = socket.create_connection((host, int(port)), timeout=5)
    connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    return connection


def payload(**fields: Any) -> bytes:
    return json.dumps({"model": MODEL, "prompt": "hi", **fields}).encode()


def head(length: int, *lines: str) -> bytes:
    return "\r\n".join((f"POST {TEXT} HTTP/1.1", "host: x", "content-type: application/json", f"content-length: {length}", *lines)).encode() + b"\r\n\r\n"


def post(*lines: str, **fields: Any) -> bytes:
    content = payload(**fields)
    return head(len(content), *lines) + content


def answer(connection: socket.socket) -> tuple[int, bytes]:
    """Status and body of one answer with a length."""
    lines = b""
    while not lines.endswith(b"\r\n\r\n"):  # not a byte more: another answer may follow
        lines += (piece := connection.recv(1))
        assert piece, lines
    length = next(int(line.split(b":")[1]) for line in lines.lower().split(b"\r\n") if line.startswith(b"content-length"))
    content = connection.recv(length, socket.MSG_WAITALL)
    assert len(content) == length
    return int(lines.split(b" ")[1]), content


@pytest.mark.parametrize("size", [64 * 1024 + 100, 100_000, 200_000, 1_000_000])
def test_a_large_body_is_taken_however_its_reads_are_cut(size: int) -> None:
    whole = post(user="u" * size)
    length = int(whole.partition(b"content-length: ")[2].partition(b"\r")[0])
    start = len(whole) - length
    with Live(PlainClient()) as live:
        for cut in (1, start - 1, start, start + 1, len(whole) - 1):
            with connected(live) as connection:
                for again in range(2):
                    connection.sendall(whole[:cut])
                    time.sleep(0.01)
                    connection.sendall(whole[cut:])
                    assert answer(connection)[0] == 200, (cut, again)


@pytest.mark.parametrize("streaming", [False, True])
@pytest.mark.parametrize("pause", [0.0, 0.1])
def test_a_client_that_leaves_after_pipelining_ends_its_request(streaming: bool, pause: float) -> None:
    client = PlainClient(step_seconds=0.02, reply="x" * 400)
    with Live(client) as live:
        with connected(live) as connection:
            for _ in range(3):
                connection.sendall(post(max_tokens=400, stream=streaming))
                time.sleep(pause)
            assert eventually(lambda: bool(client.alive))
            assert len(client.alive) == 1
        assert eventually(lambda: not client.alive, 1.0)
        assert client.num_aborted == len(client.seen) == 1


def test_requests_ahead_of_their_turn_are_answered_in_order_and_held_back() -> None:
    client = PlainClient(step_seconds=0.002, reply="x" * 40)
    with Live(client) as live, connected(live) as connection:
        whole = post(max_tokens=40, user="u" * 2**20)
        connection.settimeout(0.5)
        with pytest.raises(TimeoutError):  # nobody reads them: the sender is held up
            connection.sendall(whole * 64)
    with Live(client) as live, connected(live) as connection:
        for size in (3, 1, 2):
            connection.sendall(post(max_tokens=size))
            time.sleep(0.01)
        assert [len(json.loads(answer(connection)[1])["choices"][0]["text"]) for _ in range(3)] == [3, 1, 2]


CHUNKED = f"POST {TEXT} HTTP/1.1\r\nhost: x\r\ncontent-type: application/json\r\ntransfer-encoding: chunked\r\n\r\n".encode()


@pytest.mark.parametrize("refused", [False, True])
@pytest.mark.parametrize("line", [b"a: b\r\n", b"a: " + b"b" * 2000 + b"\r\n"])
def test_endless_trailers_are_cut_and_not_kept(refused: bool, line: bytes) -> None:
    with Live(PlainClient(), api_keys=("key",)) as live, connected(live) as connection:
        connection.sendall(CHUNKED if refused else CHUNKED.replace(b"\r\n\r\n", b"\r\nauthorization: Bearer key\r\n\r\n"))
        if refused:
            assert answer(connection)[0] == 401
        connection.sendall(b"2\r\n{}\r\n0\r\n")
        sent = 0
        with pytest.raises(OSError):  # noqa: PT012
            while sent < 64 * 2**20:
                sent += connection.send(line * 100)
        assert sent < 8 * 2**20


def test_a_trailer_is_no_header() -> None:
    content = payload()
    with Live(PlainClient(), api_keys=("key",)) as live, connected(live) as connection:
        chunk = b"%x\r\n%b\r\n0\r\n" % (len(content), content)
        for trailer, status in ((b"", 200), (b"x-request-id: mine\r\n" * 3, 200)):
            connection.sendall(CHUNKED.replace(b"\r\n\r\n", b"\r\nauthorization: Bearer key\r\n\r\n") + chunk + trailer + b"\r\n")
            assert answer(connection)[0] == status
        connection.sendall(CHUNKED + chunk + b"authorization: Bearer key\r\n\r\n")
        assert answer(connection)[0] == 401
        connection.sendall(b"GET /health HTTP/1.1\r\nhost: x\r\n\r\n")
        assert answer(connection)[0] == 200


def test_bad_bytes_behind_a_stream_are_not_answered_inside_it() -> None:
    client = PlainClient(step_seconds=0.01, reply="x" * 400)
    with Live(client) as live, connected(live) as connection:
        connection.sendall(post(max_tokens=400, stream=True))
        assert b" 200 " in connection.recv(100)
        connection.sendall(b"\x00\x01 nonsense\r\n\r\n")
        rest = b"".join(iter(lambda: connection.recv(65536), b""))
        assert b"HTTP/1.1" not in rest
        assert eventually(lambda: not client.alive)


UPGRADE = ("Connection: Upgrade, HTTP2-Settings", "Upgrade: h2c", "HTTP2-Settings: AAMAAABkAARAAAAAAAIAAAAA")


@pytest.mark.parametrize("offer", [UPGRADE, ("connection: upgrade", "upgrade: websocket", "sec-websocket-key: x")])
def test_an_offered_upgrade_is_ignored(offer: tuple[str, ...]) -> None:
    client = PlainClient()
    with Live(client) as live, connected(live) as connection:
        whole = post(*offer, user="u" * 1000)
        length = len(payload(user="u" * 1000))
        for cut in (1, 40, len(whole) - length - 1, len(whole) - length, len(whole) - length + 1, len(whole) - 1, len(whole)):
            for piece in (whole[:cut], whole[cut:]):
                connection.sendall(piece)
                time.sleep(0.02)
            assert answer(connection)[0] == 200, cut
        lines = "\r\n".join(offer).encode() + b"\r\n\r\n"
        chunked = CHUNKED.removesuffix(b"\r\n") + lines + b"%x\r\n%b\r\n0\r\n\r\n" % (length, payload(user="u" * 1000))
        get = b"GET /health HTTP/1.1\r\nhost: x\r\n" + lines
        connection.sendall(chunked + get + whole + get)
        assert [answer(connection)[0] for _ in range(4)] == [200] * 4
    assert len(client.seen) == 9


@pytest.mark.parametrize("framing", ["content-length: 5\r\ncontent-length: 6", "transfer-encoding: chunked\r\ncontent-length: 5", "transfer-encoding: x"])
def test_an_upgrade_hides_no_wrong_framing(framing: str) -> None:
    for offer in ("", "connection: upgrade\r\nupgrade: h2c\r\n"):
        with Live(PlainClient()) as live, connected(live) as connection:
            connection.sendall(f"POST {TEXT} HTTP/1.1\r\nhost: x\r\n{offer}{framing}\r\n\r\n".encode())
            assert answer(connection)[0] == 400
            assert connection.recv(1) == b""


def test_a_tunnel_is_refused() -> None:
    for target in ("example.org:80", "[::1]:80", "1.2.3.4:80"):
        with Live(PlainClient()) as live, connected(live) as connection:
            connection.sendall(f"CONNECT {target} HTTP/1.1\r\nhost: {target}\r\n\r\n".encode() + post())
            assert answer(connection)[0] == 400
            assert connection.recv(1) == b""


@pytest.mark.parametrize(
    ("first", "drip", "status"),
    [
        (b"", b"", None),
        (b"", b"\r\n", None),
        (b"GET /health HTTP/1.1\r\nhost: x\r\n", b"", 408),
        (b"GET /health HTTP/1.1\r\nx: ", b"y", 408),
        (head(100_000, "authorization: Bearer wrong"), b" ", None),
        (CHUNKED + b"0\r\n", b"a: b\r\n", None),
        (b"GET /health HTTP/1.1\r\nhost: x\r\n\r\n", b"", None),
        (b"GET /health HTTP/1.1\r\nhost: x\r\n\r\n", b"\r\n", None),
        (b"GET /health HTTP/1.1\r\nhost: x\r\n\r\nGET /", b"y", 408),
    ],
)
def test_a_connection_that_asks_for_nothing_is_closed(first: bytes, drip: bytes, status: int | None) -> None:
    with Live(PlainClient(), api_keys=("key",), idle_seconds=0.3, head_seconds=0.3, refused_body_seconds=0.3) as live, connected(live) as connection:
        began = time.monotonic()
        connection.sendall(first)
        if b"HTTP/1.1\r\n" in first and (b"\r\n\r\n") in first:
            assert answer(connection)[0] == (200 if b"GET" in first else 401)
        connection.settimeout(0.04)
        end = None
        while end is None and time.monotonic() < began + 3:
            try:
                end = connection.recv(65536)
            except TimeoutError:
                connection.sendall(drip)
            except ConnectionResetError:
                end = b""
        assert end is not None
        assert 0.2 < time.monotonic() - began < 2
        assert end.startswith(b"HTTP/1.1 408 ") if status == 408 else end == b""


def test_a_connection_at_work_is_not_closed() -> None:
    seconds = {"idle_seconds": 0.4, "head_seconds": 0.2, "refused_body_seconds": 0.2}
    with Live(PlainClient(step_seconds=0.1), **seconds) as live, connected(live) as connection:
        whole = post()
        for _ in range(2):
            connection.sendall(whole[:-5])
            time.sleep(0.5)
            connection.sendall(whole[-5:])
            assert answer(connection)[0] == 200


@pytest.mark.parametrize(
    ("lines", "status"), [(("authorization: Bearer key",), 413), ((), 401), (("authorization: Bearer key", "content-type: text/plain"), 415)]
)
def test_the_last_answer_reaches_a_client_that_still_sends(lines: tuple[str, ...], status: int) -> None:
    client = PlainClient()
    with Live(client, api_keys=("key",), max_body_bytes=2**20) as live:
        start = head(16 * 2**20, "connection: close", *lines)
        if status == 415:
            start = start.replace(b"content-type: application/json\r\n", b"")
        for behind in (b"", post("authorization: Bearer key")):
            with connected(live) as connection:
                connection.sendall(start + b"x" * 16 * 2**20 + behind)
                assert answer(connection)[0] == status
                assert connection.recv(1) == b""
    assert not client.seen


def test_the_rest_of_a_refused_body_is_read_for_its_time_only() -> None:
    with Live(PlainClient(), api_keys=("key",), refused_body_seconds=0.3) as live, connected(live) as connection:
        connection.sendall(head(100_000, "connection: close"))
        began = time.monotonic()
        assert answer(connection)[0] == 401
        assert connection.recv(1) == b""
        assert time.monotonic() - began < 0.2, "a client that reads to the end need not wait"
        with pytest.raises(OSError):  # noqa: PT012
            while time.monotonic() < began + 3:
                connection.sendall(b" ")
                time.sleep(0.02)
        assert 0.2 < time.monotonic() - began < 2


def head_of(num_bytes: int, how: str) -> bytes:
    """A GET of /health whose head holds about that much."""
    if how == "url":
        return b"GET /health?" + b"u" * num_bytes + b" HTTP/1.1\r\nhost: x\r\n\r\n"
    one = b"x-%d: " + b"v" * 50 + b"\r\n"
    lines = b"x: " + b"v" * num_bytes + b"\r\n" if how == "one header" else b"".join(one % number for number in range(num_bytes // len(one % 100)))
    return b"GET /health HTTP/1.1\r\nhost: x\r\n" + lines + b"\r\n"


@pytest.mark.parametrize("how", ["url", "one header", "many headers"])
@pytest.mark.parametrize("piece", [1 << 20, 4000], ids=["in one piece", "in pieces"])
def test_a_head_has_its_limit_however_it_arrives(how: str, piece: int) -> None:
    with Live(PlainClient()) as live:
        for num_bytes, status in ((MAX_HEAD_BYTES - 500, 200), (MAX_HEAD_BYTES + 500, 431)):
            for before in (0, 1):  # on a fresh connection, and on one that was used
                with connected(live) as connection:
                    for _ in range(before):
                        connection.sendall(head_of(10, how))
                        assert answer(connection)[0] == 200
                    data = head_of(num_bytes, how)
                    for at in range(0, len(data), piece):
                        connection.sendall(data[at : at + piece])
                        time.sleep(0.002)
                    found, content = answer(connection)
                    assert found == status
                    assert status == 200 or json.loads(content)["error"]["code"] == "head_too_large"
        assert live.http.get("/health").status_code == 200


@pytest.mark.parametrize(("coding", "status"), [("chunked", 200), ("Chunked", 200), ("gzip, chunked", 501)])
def test_a_coding_of_the_transfer_that_nobody_undoes_is_refused(coding: str, status: int) -> None:
    content = payload()
    chunks = b"%x\r\n%b\r\n0\r\n\r\n" % (len(content), content)
    lines = ("POST /v1/completions HTTP/1.1", "host: x", "content-type: application/json", f"transfer-encoding: {coding}", "", "")
    with Live(PlainClient()) as live, connected(live) as connection:
        connection.sendall("\r\n".join(lines).encode() + chunks)
        found, said = answer(connection)
    assert found == status, said
    assert (b"unsupported_transfer_encoding" in said) == (status == 501)
