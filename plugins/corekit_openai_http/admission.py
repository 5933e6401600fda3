"""Whether new work is taken, and when to come again where it is not. Knows no route and no body."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager

from corekit.api import EngineClient

from .drain import Drain
from .errors import ApiError, retry_headers, unavailable
from .options import HttpOptions

_MAX_RETRY_SECONDS = 30.0
_WEIGHT = 1 / 8
"""Of the newest answer in the mean."""


class Admission:
    """One per server, used on its event loop."""

    def __init__(self, client: EngineClient, options: HttpOptions, drain: Drain) -> None:
        self._client = client
        self._max_requests_per_key = options.max_requests_per_key
        self._drain = drain
        self._seats: Counter[str] = Counter()
        self._first_seconds = 1.0

    def check_engine(self) -> None:
        """Raises ApiError while there is no engine that could answer."""
        health = self._client.health()
        if health.loading:
            raise unavailable("The model is still loading", "loading")
        if health.state == "dead":
            raise unavailable(f"The engine is dead: {health.reason or 'no reason given'}", "engine_dead")

    def check(self) -> None:
        """Raises ApiError while no new work is taken, from anybody."""
        self.check_engine()
        if self._drain.begun:
            raise unavailable("This server is draining and takes no new work", "draining")

    @contextmanager
    def seat(self, tenant: str) -> Iterator[None]:
        """A request of this tenant, for as long as the context is open. Raises ApiError when it has its share; "" is nobody, who has no share."""
        if not (tenant and self._max_requests_per_key):
            yield
            return
        if self._seats[tenant] >= self._max_requests_per_key:
            message = f"This key has {self._seats[tenant]} requests in flight, the limit (max_requests_per_key) is {self._max_requests_per_key}"
            raise ApiError(429, f"{message}. Wait for one of them to end", code="rate_limited", headers=retry_headers(self.retry_seconds))
        self._seats[tenant] += 1
        try:
            yield
        finally:
            self._seats[tenant] -= 1
            if not self._seats[tenant]:
                del self._seats[tenant]

    def answered(self, first_seconds: float | None) -> None:
        """How long a request waited for its first token; None: there was none."""
        if first_seconds is not None:
            self._first_seconds += (first_seconds - self._first_seconds) * _WEIGHT

    @property
    def retry_seconds(self) -> float:
        """When a place may be free: about as long as those who have one waited for their first token, since most of that is the queue."""
        return min(max(self._first_seconds, 1.0), _MAX_RETRY_SECONDS)
