"""What the engine tells its client after a step."""

from __future__ import annotations

from typing import NamedTuple

from corekit.api import FinishReason, TokenLogprob


class SampleDelta(NamedTuple):
    """News of one sample. Exactly one delta of a sample has a finish reason, and it is the last."""

    request_id: str
    sample: int
    token_ids: tuple[int, ...]
    logprobs: tuple[TokenLogprob, ...] | None
    finish_reason: FinishReason | None
    stop_reason: int | None
    """The id that ended it, if one did."""
    error: str | None
    num_cached_tokens: int
    prompt_logprobs: tuple[TokenLogprob | None, ...] | None = None
    """With a request's first token, if they were asked for."""
