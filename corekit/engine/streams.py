"""Who waits for what: live streams by the caller's name and by the engine's, and when a name may be used again. Knows no engine."""

from __future__ import annotations

import itertools
from asyncio import AbstractEventLoop
from collections import defaultdict
from collections.abc import Iterable

from corekit.api import InvalidRequest
from corekit.engine.events import SampleDelta
from corekit.engine.stream import Stream

News = list[tuple[Stream, SampleDelta]]


class Streams:
    """Guarded by its owner's lock.

    Invariant: it holds the requests that somebody waits for and whose end was not heard. An engine id is not given out again
    before the step that drained the abort of its last owner is over, so that late news never reaches a stranger.
    """

    def __init__(self) -> None:
        self._by_id: dict[str, Stream] = {}
        self._by_name: dict[str, Stream] = {}  # those that nobody aborted
        self._leaving: dict[str, int] = {}  # engine id -> steps begun when its abort was sent, until a later step has drained it
        self._num_begun = 0
        self._serial = itertools.count(1)

    def __len__(self) -> int:
        return len(self._by_id)

    @property
    def engine_ids(self) -> Iterable[str]:
        return self._by_id.keys()

    def engine_id(self, request_id: str) -> str:
        """What the engine shall call a new request: its name, unless the engine may still speak of another one by it."""
        if request_id in self._by_name:
            raise InvalidRequest(f"request_id {request_id!r} is in use by a request that is alive", field="request_id", code="id_in_use")
        engine_id = request_id
        while engine_id in self._by_id or engine_id in self._leaving:  # callers may have names with a serial too
            engine_id = f"{request_id}#{next(self._serial)}"
        return engine_id

    def add(self, stream: Stream) -> None:
        self._by_id[stream.engine_id] = self._by_name[stream.request_id] = stream

    def unname(self, request_id: str) -> Stream | None:
        """Free a name; its stream is still heard to its end."""
        return self._by_name.pop(request_id, None)

    def remove(self, stream: Stream) -> bool:
        """Forget a stream. False: it was forgotten before."""
        if self._by_id.pop(stream.engine_id, None) is None:
            return False
        if self._by_name.get(stream.request_id) is stream:
            del self._by_name[stream.request_id]
        return True

    def clear(self) -> list[Stream]:
        streams = list(self._by_id.values())
        self._by_id.clear()
        self._by_name.clear()
        return streams

    def note_abort(self, stream: Stream) -> None:
        self._leaving[stream.engine_id] = self._num_begun

    def begin_step(self) -> None:
        """The engine is about to drain what it was sent until now."""
        self._num_begun += 1

    def end_step(self, deltas: Iterable[SampleDelta]) -> dict[AbstractEventLoop, News]:
        """The news of a step by event loop, without those that nobody waits for."""
        if self._leaving:
            self._leaving = {engine_id: begun for engine_id, begun in self._leaving.items() if begun >= self._num_begun}
        by_loop: dict[AbstractEventLoop, News] = defaultdict(list)
        for delta in deltas:
            stream = self._by_id.get(delta.request_id)
            if stream is not None:
                by_loop[stream.loop].append((stream, delta))
        return by_loop
