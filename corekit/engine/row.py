"""What one step does for one request. Plain counts."""

from __future__ import annotations

from .request import Request


class Row:
    """`start` and `num_tokens` are upper bounds while earlier rows may reject drafts."""

    __slots__ = ("num_drafts", "num_samples", "num_tokens", "request", "start")

    def __init__(self, request: Request, start: int, num_tokens: int, num_samples: int, num_drafts: int) -> None:
        self.request = request
        self.start = start
        self.num_tokens = num_tokens
        self.num_samples = num_samples
        self.num_drafts = num_drafts

    @property
    def max_new_tokens(self) -> int:
        """Tokens that it may deliver to its own request."""
        return 1 + self.num_drafts if self.num_samples else 0
