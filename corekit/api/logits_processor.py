"""Slot `logits_processor` (provisional, any number): per-request constraints on the next token. Grammars, bans."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

from .types import SamplingParams


@dataclass(frozen=True, slots=True, kw_only=True)
class NewSample:
    """A sample that is about to be queued."""

    request_id: str
    sample: int
    """Which of its request's n."""
    token_ids: tuple[int, ...]
    """The prompt."""
    params: SamplingParams


class RowProcessor(Protocol):
    """One sample's constraint. Called on the engine's thread; a fault here is that request's fault."""

    def accept(self, token_ids: Sequence[int]) -> None:
        """These ids were drawn. A preemption does not repeat them."""
        ...

    def rollback(self, count: int) -> None:
        """Forget the last `count` accepted ids."""
        ...

    def fill(self, mask_row: memoryview) -> None:
        """Clear the bits of the ids that may not come next; bit i % 32 of little-endian 32-bit word i // 32.

        The view is of unsigned words (format "I"). Processors share it: it starts with all bits set, each clears what it
        forbids. All n samples of a request draw their first token under the mask of the first.
        """
        ...


class LogitsProcessor(Protocol):
    """Starts one constraint per sample that wants it; holds no state of a request itself."""

    def start(self, sample: NewSample) -> RowProcessor | None:
        """Prepare for a sample, beside the engine's thread and before its request is queued; other starts may run meanwhile.

        None: no constraint. Raises InvalidRequest for what the caller asked wrongly; anything else is a fault of this part.
        """
        ...
