"""The waiting list, and how much of it never ran. Knows requests; not why they wait."""

from __future__ import annotations

from bisect import bisect_left, insort

from .request import Request


def arrival_order(r: Request) -> tuple[int, int]:
    return (r.group.arrival, r.sample)


class WaitingList:
    """Invariant: `requests` is in arrival order; num_queued counts the requests that never ran, wherever they wait."""

    def __init__(self) -> None:
        self.requests: list[Request] = []
        self.num_queued = 0
        self.num_queued_tokens = 0

    def arrive(self, r: Request) -> None:
        """A new request."""
        r.fresh = True
        self.num_queued += 1
        self.num_queued_tokens += r.num_prompt_tokens
        self.add(r)

    def add(self, r: Request) -> None:
        r.queued = True
        insort(self.requests, r, key=arrival_order)

    def remove(self, r: Request) -> None:
        """It waits for something else now, or no more."""
        r.queued = False
        del self.requests[bisect_left(self.requests, arrival_order(r), key=arrival_order)]

    def began(self, r: Request) -> None:
        """It ran, or never will."""
        if r.fresh:
            r.fresh = False
            self.num_queued -= 1
            self.num_queued_tokens -= r.num_prompt_tokens
