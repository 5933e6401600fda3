"""What is sent to the engine besides new requests. Plain values: knows nothing of what the engine does with them."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

from corekit.api import FinishReason, RequestFailed


class Abort(NamedTuple):
    request_id: str
    sample: int | None
    reason: FinishReason


class Forget(NamedTuple):
    """Drop the prefix cache; `done` hears how many blocks that were, or why not."""

    done: Callable[[int | RequestFailed], None]
