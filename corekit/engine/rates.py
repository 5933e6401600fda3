"""What computing a token and copying a byte take here, as measured: whether to swap or to recompute follows from both. Knows no clock."""

from __future__ import annotations

MEMORY = 0.9
"""Of what was measured before, per step: old steps fade."""
SUPPOSED_COPY_RATE = 1e10
"""Bytes per second, until something was copied: as fast as a bus may be, since only who copies can find out that it is slower."""


class Rates:
    """Invariant: each rate is a quotient of faded sums, so that long steps count as much as they took."""

    def __init__(self) -> None:
        self._tokens = self._token_seconds = 0.0
        self._bytes = self._copy_seconds = 0.0

    def computed(self, num_tokens: int, seconds: float) -> None:
        """A step that mostly read prompts."""
        if seconds > 0:
            self._tokens = MEMORY * self._tokens + num_tokens
            self._token_seconds = MEMORY * self._token_seconds + seconds

    def copied(self, num_bytes: int, seconds: float) -> None:
        if seconds > 0:
            self._bytes = MEMORY * self._bytes + num_bytes
            self._copy_seconds = MEMORY * self._copy_seconds + seconds

    def swap_is_quicker(self, num_bytes: int, num_tokens: int) -> bool:
        """Than computing num_tokens again, where parking copies num_bytes in all. What nobody measured computes slowly."""
        copying = num_bytes * (self._copy_seconds / self._bytes if self._bytes else 1 / SUPPOSED_COPY_RATE)
        computing = num_tokens * self._token_seconds / self._tokens if self._tokens else float("inf")
        return copying < computing
