"""What was answered over HTTP, and what was refused. Counted on the event loop alone. Labels come from fixed sets."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping
from typing import get_args

from prometheus_client.core import CounterMetricFamily, Metric

from .buckets import HTTP
from .deadlines import Missed
from .distribution import Distribution
from .families import by, distributions

_METHODS = frozenset({"GET", "HEAD", "POST", "PUT", "PATCH", "DELETE", "OPTIONS"})
_REJECTIONS: Mapping[str, str] = {
    "server_overloaded": "queue_full",
    "rate_limited": "rate_limited",
    "loading": "loading",
    "draining": "draining",
    "engine_dead": "engine_dead",
}
"""Code of the error -> reason: work that this server did not take, whatever it was."""


class HttpCounts:
    def __init__(self) -> None:
        self._answered: Counter[tuple[str, str, str]] = Counter()
        self._seconds: dict[tuple[str, ...], Distribution] = {}
        self._rejected = dict.fromkeys(_REJECTIONS.values(), 0)
        self._num_stream_errors = 0
        self._missed: dict[str, int] = dict.fromkeys(get_args(Missed), 0)

    def answered(self, handler: str, method: str, status: int, seconds: float) -> None:
        """handler: of the table of routes, or "other"."""
        method = method if method in _METHODS else "other"
        self._answered[handler, method, str(status)] += 1
        if (taken := self._seconds.get((handler, method))) is None:
            taken = self._seconds[handler, method] = Distribution(HTTP)
        taken.add(seconds)

    def rejected(self, code: str | None) -> None:
        """Work was refused with an error of this code; most of them are the request's own fault, and no rejection."""
        if (reason := _REJECTIONS.get(code or "")) is not None:
            self._rejected[reason] += 1

    def stream_failed(self) -> None:
        """A stream that was under way ended with an error event."""
        self._num_stream_errors += 1

    def missed(self, deadline: Missed) -> None:
        """A request ended because it was too late."""
        self._missed[deadline] += 1

    def answers(self) -> Iterator[Metric]:
        family = CounterMetricFamily("http_requests", "HTTP requests answered.", labels=("handler", "method", "status"))
        for labels, count in self._answered.items():
            family.add_metric(labels, count)
        yield family
        seconds = {labels: taken.seen() for labels, taken in self._seconds.items()}
        yield distributions("http_request_duration_seconds", "From a request's head to the end of its answer.", ("handler", "method"), seconds)

    def refusals(self) -> Iterator[Metric]:
        yield by("corekit_admission_rejections", "Work that was refused at the door, by reason.", "reason", self._rejected, CounterMetricFamily)
        yield by("corekit_deadlines_missed", "Requests that ended because they were too late, by deadline.", "deadline", self._missed, CounterMetricFamily)
        yield CounterMetricFamily("corekit_stream_errors", "Streams that ended with an error event.", self._num_stream_errors)
