"""`corekit bench frontend`: every answer is counted whole. Nothing is asserted about how long it takes."""

from __future__ import annotations

import json
import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager

import pytest
from click.testing import CliRunner

from corekit.bench.errors import BenchError
from corekit.bench.frontend_load import Door, ask, stream
from corekit.cli.bench import bench

STREAM = b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n9\r\ndata: 1\n\n\r\n9\r\ndata: 2\n\n\r\ne\r\ndata: [DONE]\n\n\r\n0\r\n\r\n"


@contextmanager
def answering(*pieces: bytes) -> Iterator[Door]:
    """A server that answers whatever it hears on each connection with these bytes, piece by piece, and then hangs up."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        listener.settimeout(10)

        def serve() -> None:
            connection, _ = listener.accept()
            with connection:
                connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
                connection.recv(65536)
                for piece in pieces:
                    connection.sendall(piece)

        thread = threading.Thread(target=serve)
        thread.start()
        yield Door(host="127.0.0.1", port=listener.getsockname()[1], model="m", timeout=10)
        thread.join()


@pytest.mark.parametrize("size", [1, 3, 7, 1000])
def test_events_are_counted_however_they_arrive(size: int) -> None:
    told: list[int] = []
    with answering(*(STREAM[at : at + size] for at in range(0, len(STREAM), size))) as door:
        _, num_events = stream(door, 1, 1, 2, told.append)
    assert num_events == 2
    assert sum(told) == 1


def test_a_refusal_and_a_connection_that_breaks_are_no_answers() -> None:
    with answering(b"HTTP/1.1 503 Service Unavailable\r\n\r\n") as door, pytest.raises(BenchError, match=r"the server answered: .* 503"):
        ask(door, 1, 1, lambda count: None)
    with answering(STREAM[:-5]) as door, pytest.raises(BenchError, match="the server closed a connection"):
        stream(door, 1, 1, 2, lambda count: None)


def test_a_server_and_the_loop_are_measured() -> None:
    arguments = ["frontend", "--tokens", "256", "--requests", "64", "--reps", "1", "--warmup", "0", "--retries", "0", "--json", "-"]
    result = CliRunner().invoke(bench, arguments, catch_exceptions=False)
    assert result.exit_code == 0, result.output
    found = json.loads(result.stdout)
    for n in (1, 16, 128):
        assert found["spreads"][f"{n}_streams_tokens_per_second"]["median"] > 0
        assert found["spreads"][f"{n}_streams_tokens_per_event"]["median"] >= 0.5
    for n in (1, 16, 64):
        assert found["spreads"][f"{n}_connections_requests_per_second"]["median"] > 0
    for n in (1, 64, 256):
        assert found["spreads"][f"{n}_sequences_us_per_step"]["median"] > 0
