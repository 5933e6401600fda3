"""Slot `logits_processor` (provisional, any number): per-request constraints on the next token. Grammars, bans."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from .scheduler_policy import RequestView


class RowProcessor(Protocol):
    """One sample's constraint. A fault here is that request's fault."""

    def accept(self, token_ids: Sequence[int]) -> None:
        """These ids were drawn."""
        ...

    def rollback(self, count: int) -> None:
        """Forget the last `count` accepted ids."""
        ...

    def fill(self, mask_row: memoryview) -> None:
        """Clear the bits of the ids that may not come next; bit i % 32 of little-endian 32-bit word i // 32. All set before."""
        ...


class LogitsProcessor(Protocol):
    """Starts one constraint per sample that wants it; holds no state of a request itself."""

    def start(self, request: RequestView) -> RowProcessor | None:
        """Prepare for request, off the engine's loop (it is NOT_READY until done). None: no constraint."""
        ...
