"""Times as clients see them, from the arrival of a request at this frontend. Knows neither the engine nor names of metrics."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator

from prometheus_client.core import Metric

from corekit.api import CompletionOutput

from .buckets import FIRST_TOKEN, PER_TOKEN, REQUEST
from .distribution import Distribution
from .families import distribution
from .wire import Usage


class Times:
    """Of all requests. Added to on the event loop alone."""

    def __init__(self) -> None:
        self.first, self.between, self.whole = Distribution(FIRST_TOKEN), Distribution(PER_TOKEN), Distribution(REQUEST)

    def collect(self) -> Iterator[Metric]:
        yield distribution("corekit_time_to_first_token_seconds", "Arrival to first token.", self.first)
        yield distribution("corekit_inter_token_latency_seconds", "Time per token after the first.", self.between)
        yield distribution("corekit_e2e_request_latency_seconds", "Arrival to last token.", self.whole)


class Stopwatch:
    """Of one request, from its arrival. `first_seconds` is None until there was a token, `complete` says that its answer came to its end.

    usage: what was counted of it so far; None until it was understood.
    """

    __slots__ = ("_arrival", "_last", "_times", "complete", "finish_reasons", "first_seconds", "usage")

    def __init__(self, times: Times) -> None:
        self._times = times
        self._arrival = time.monotonic()
        self._last: dict[int, float] = {}
        self.first_seconds: float | None = None
        self.finish_reasons: set[str] = set()
        self.complete = False
        self.usage: Callable[[], Usage] | None = None

    def news(self, index: int, output: CompletionOutput) -> None:
        """Something new of choice `index`."""
        if output.finish_reason is not None:
            self.finish_reasons.add(output.finish_reason)
        num_tokens = len(output.token_ids)
        if not num_tokens:
            return
        now = time.monotonic()
        last = self._last.get(index)
        if last is not None:
            self._times.between.add((now - last) / num_tokens, num_tokens)
        elif self.first_seconds is None:
            self.first_seconds = now - self._arrival
            self._times.first.add(self.first_seconds)
        self._last[index] = now

    def done(self) -> None:
        self.complete = True
        self._times.whole.add(time.monotonic() - self._arrival)
