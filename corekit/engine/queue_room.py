"""Whether one request more may wait. Knows counts only."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

from corekit.api import Overloaded


class Queue(Protocol):
    """What never ran: preempted requests take no room in it."""

    @property
    def num_queued(self) -> int: ...

    @property
    def num_queued_tokens(self) -> int: ...


@dataclass(frozen=True, slots=True, kw_only=True)
class QueueRoom:
    """An empty queue takes any request that fits the engine."""

    max_requests: int
    max_tokens: int

    def check(self, queue: Queue, num_tokens: int) -> None:
        """Raises Overloaded where a request with so many prompt tokens has no room."""
        num_requests, num_queued = queue.num_queued, queue.num_queued_tokens
        if num_requests >= self.max_requests:
            raise Overloaded(f"the queue is full: {num_requests} requests wait, the limit (max_queued_requests) is {self.max_requests}. Try again later")
        if num_requests and num_queued + num_tokens > self.max_tokens:
            raise Overloaded(
                f"the queue is full: {num_queued} prompt tokens wait and this request has {num_tokens}, "
                f"the limit (max_queued_tokens) is {self.max_tokens}. Try again later"
            )
