"""Load for a server's frontend that costs the sender as little as it can: sockets, a selector and counting bytes.

Knows as much of HTTP/1.1 as its own requests need; it counts events and answers and reads no JSON.
"""

from __future__ import annotations

import json
import selectors
import socket
from collections.abc import Callable
from dataclasses import dataclass
from time import perf_counter
from typing import Any

from .errors import BenchError

EVENT = b"data: "
DONE = b"data: [DONE]\n\n"
OK = b"HTTP/1.1 200"
_READ = 1 << 16
_KEPT = 4096
"""Bytes of an answer that are looked at again: all of a short one, the end of a stream."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Door:
    """Where the server listens, and what its model is called."""

    host: str
    port: int
    model: str
    timeout: float

    def request(self, **fields: Any) -> bytes:
        body = json.dumps({"model": self.model, "prompt": [65], "ignore_eos": True, "temperature": 0, **fields}).encode()
        head = f"POST /v1/completions HTTP/1.1\r\nHost: {self.host}:{self.port}\r\nContent-Type: application/json\r\nContent-Length: {len(body)}\r\n\r\n"
        return head.encode() + body


class _Connection:
    """One that sends the same request again and again. `complete` finds the end of an answer in what was received of it."""

    def __init__(self, door: Door, request: bytes, num_requests: int, complete: Callable[[bytes], bool]) -> None:
        self.socket = socket.create_connection((door.host, door.port), timeout=door.timeout)
        self.socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._request = request
        self._num_left = num_requests
        self._complete = complete
        self._received = self._head = b""
        self.num_events = 0

    def send(self) -> None:
        self._received = self._head = b""
        self._num_left -= 1
        self.socket.sendall(self._request)

    def read(self) -> tuple[bool, int]:
        """Takes what has come. Whether more will come, and how many answers are whole by it."""
        data = self.socket.recv(_READ)
        if not data:
            raise BenchError(f"the server closed a connection: {self._received[-300:].decode('utf-8', 'replace')}")
        tail = self._received[-len(EVENT) :]
        self.num_events += (tail + data).count(EVENT) - tail.count(EVENT)
        if len(self._head) < len(OK):
            self._head += data[: len(OK)]
            if len(self._head) >= len(OK) and not self._head.startswith(OK):
                raise BenchError(f"the server answered: {(self._received + data)[:300].decode('utf-8', 'replace')}")
        self._received = self._received[-_KEPT:] + data
        if not self._complete(self._received):
            return True, 0
        if self._num_left:
            self.send()
            return True, 1
        return False, 1


def stream(door: Door, num_streams: int, num_answers: int, num_tokens: int, advance: Callable[[int], None]) -> tuple[float, int]:
    """Seconds and events of so many streams at once, each of so many answers one after the other, each of so many tokens."""
    request = door.request(max_tokens=num_tokens, stream=True)
    connections = [_Connection(door, request, num_answers, _ends_stream) for _ in range(num_streams)]
    seconds = _drive(connections, door.timeout, advance)
    return seconds, sum(one.num_events for one in connections) - num_streams * num_answers  # [DONE] is none


def ask(door: Door, num_connections: int, num_requests: int, advance: Callable[[int], None]) -> float:
    """Seconds for so many answers of one token on each connection, the next request when the last is answered."""
    request = door.request(max_tokens=1)
    return _drive([_Connection(door, request, num_requests, _is_whole) for _ in range(num_connections)], door.timeout, advance)


def _drive(connections: list[_Connection], timeout: float, advance: Callable[[int], None]) -> float:
    selector = selectors.DefaultSelector()
    try:
        for one in connections:
            selector.register(one.socket, selectors.EVENT_READ, one)
        began = perf_counter()
        for one in connections:
            one.send()
        num_open = len(connections)
        while num_open:
            ready = selector.select(timeout)
            if not ready:
                raise BenchError(f"the server said nothing for {timeout:g} s. Raise --timeout")
            for key, _ in ready:
                more, num_answered = key.data.read()
                advance(num_answered)
                if not more:
                    selector.unregister(key.fileobj)
                    num_open -= 1
        return perf_counter() - began
    finally:
        selector.close()
        for one in connections:
            one.socket.close()


def _ends_stream(received: bytes) -> bool:
    return received.endswith(b"0\r\n\r\n") and DONE in received


def _is_whole(received: bytes) -> bool:
    head, blank, body = received.partition(b"\r\n\r\n")
    if not blank:
        return False
    lengths = [line.partition(b":")[2] for line in head.lower().split(b"\r\n") if line.startswith(b"content-length:")]
    if not lengths:
        raise BenchError("an answer came without a content-length")
    return len(body) >= int(lengths[0])
