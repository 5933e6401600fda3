"""The client of an engine that is still loading: frontends and routes have it from the first moment. Knows nothing of weights."""

from __future__ import annotations

from collections.abc import AsyncGenerator

from corekit.api import EngineClient, EngineDead, EngineStats, Health, ModelFacts, Overloaded, Prompt, RequestOutput, SamplingParams, Tokenizer

_NOTHING = EngineStats(
    num_running=0,
    num_waiting=0,
    num_blocks=0,
    num_free_blocks=0,
    block_size=0,
    num_prompt_tokens=0,
    num_output_tokens=0,
    num_cached_tokens=0,
    num_preemptions=0,
    num_finished={},
    num_steps=0,
)


class PendingClient:
    """Implements `EngineClient`: refuses while there is no engine, and passes everything on once there is one."""

    def __init__(self, model: ModelFacts, tokenizer: Tokenizer) -> None:
        self._model = model
        self._tokenizer = tokenizer
        self._client: EngineClient | None = None
        self._failure = ""

    def become(self, client: EngineClient) -> None:
        """The engine is there. From any thread."""
        self._client = client

    def fail(self, reason: str) -> None:
        """There will be no engine."""
        self._failure = reason

    @property
    def model(self) -> ModelFacts:
        return self._model if self._client is None else self._client.model

    @property
    def tokenizer(self) -> Tokenizer:
        return self._tokenizer

    def generate(
        self, prompt: Prompt, params: SamplingParams, *, request_id: str | None = None, priority: int = 0, tenant: str = "", deadline: float | None = None
    ) -> AsyncGenerator[RequestOutput, None]:
        if self._client is None:
            return self._refused()
        return self._client.generate(prompt, params, request_id=request_id, priority=priority, tenant=tenant, deadline=deadline)

    async def _refused(self) -> AsyncGenerator[RequestOutput, None]:
        """As generators do, it raises when it is advanced."""
        news: tuple[RequestOutput, ...] = ()
        for output in news:
            yield output
        raise self._refusal()

    def _refusal(self) -> EngineDead | Overloaded:
        return EngineDead(self._failure) if self._failure else Overloaded("the model is still loading: try again in a moment")

    async def reset_prefix_cache(self) -> int:
        if self._client is None:
            raise self._refusal()
        return await self._client.reset_prefix_cache()

    def abort(self, request_id: str) -> bool:
        return self._client is not None and self._client.abort(request_id)

    def stats(self) -> EngineStats:
        return _NOTHING if self._client is None else self._client.stats()

    def health(self) -> Health:
        if self._client is not None:
            return self._client.health()
        return Health(state="dead", reason=self._failure or "the model is still loading", loading=not self._failure)
