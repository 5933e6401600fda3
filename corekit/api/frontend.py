"""Slot `frontend` (stable, any number): how the world reaches the engine."""

from __future__ import annotations

from collections.abc import AsyncGenerator
from dataclasses import dataclass, field
from typing import Literal, Protocol, runtime_checkable

from .block_allocator import AllocatorStats
from .tokenizer import Tokenizer
from .types import Prompt, RequestOutput, SamplingParams


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelFacts:
    """What a frontend may tell about the model."""

    name: str
    aliases: tuple[str, ...]
    """Other names that requests may use."""
    source: str
    max_model_len: int
    """Tokens of prompt and answer together. While the engine loads: what is configured; the pool may turn out to hold less."""
    vocab_size: int
    supports_logprobs: bool
    created: int
    """Unix time at which the engine was assembled."""


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineStats:
    """Gauges now, and counters since the start."""

    num_running: int
    num_waiting: int
    num_blocks: int
    num_free_blocks: int
    block_size: int
    num_prompt_tokens: int
    num_output_tokens: int
    num_cached_tokens: int
    num_preemptions: int
    num_finished: dict[str, int]
    """Requests by finish reason."""
    num_steps: int
    num_host_blocks: int = 0
    """Of the swap space; 0: there is none."""
    memory: AllocatorStats = field(default_factory=AllocatorStats)
    """Blocks by state, and sampled times. At most a step and a tenth of a second old while the engine is busy."""
    num_prefix_queries: int = 0
    """Prompt tokens that were looked for in the prefix cache, counted once a request, when its first step has committed."""
    num_prefix_hits: int = 0
    """Of those: tokens that were there."""
    num_swap_preemptions: int = 0
    """Of num_preemptions: those that parked the blocks on the host; the others compute again."""
    num_swap_refusals: int = 0
    """Preemptions that were to swap and had to recompute, because the swap space was full."""
    num_bytes_to_host: int = 0
    """Copied to the host so far."""
    num_bytes_to_device: int = 0
    """Copied from the host so far."""
    num_deferred: int = 0
    """Of num_waiting: those that more room would not help, such as one whose prefix another computes at the moment."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Health:
    """Whether the engine can answer; `reason` says in words why it cannot."""

    state: Literal["ready", "dead"]
    reason: str = ""
    loading: bool = False
    """It cannot answer yet, and is likely to soon: until then a request is refused with Overloaded."""


class EngineClient(Protocol):
    """A frontend's whole world. Used from one asyncio event loop; the engine may be a thread or another process."""

    @property
    def model(self) -> ModelFacts:
        """Read it anew for each request: it is final once the engine is ready."""
        ...

    @property
    def tokenizer(self) -> Tokenizer: ...

    def generate(
        self, prompt: Prompt, params: SamplingParams, *, request_id: str | None = None, priority: int = 0, tenant: str = "", deadline: float | None = None
    ) -> AsyncGenerator[RequestOutput, None]:
        """News of one request, until an output with `finished`. Closing the iterator aborts the request within one step.

        The request is checked and queued when the iterator is first advanced. Raises InvalidRequest (wrong, too long,
        can never fit, an id that is in use), Overloaded (the queue is full), RequestFailed and EngineDead.
        """
        ...

    def abort(self, request_id: str) -> bool:
        """End a request with reason "abort". False: no such request is alive."""
        ...

    async def reset_prefix_cache(self) -> int:
        """Forget, between two steps, every prefix that was cached so far; how many blocks. Requests under way go on, and what they need stays.

        Raises RequestFailed where the allocator stack has a prefix cache that cannot be dropped, Overloaded while the engine loads, EngineDead.
        """
        ...

    def stats(self) -> EngineStats: ...

    def health(self) -> Health: ...


class Frontend(Protocol):
    """One door to the engine. Its whole world is the client that `serve` is given."""

    async def serve(self, client: EngineClient) -> None:
        """Serve until cancelled; then finish or refuse what is left, and return. Raises OSError when it cannot start."""
        ...


@runtime_checkable
class SupportsBind(Protocol):
    """Optional: takes its address ahead of `serve`, so that a busy port is known before weights load."""

    @property
    def address(self) -> str | None:
        """Where it can be reached; None before `bind` and after the end of `serve`."""
        ...

    def bind(self) -> None:
        """Take the address; who connects waits until `serve`. Raises OSError that names the address. A second call does nothing."""
        ...
