"""An engine client without an engine: its answers, speed and faults are what a test says. Knows the contract only."""

from __future__ import annotations

import asyncio
import uuid
from collections.abc import AsyncGenerator
from dataclasses import dataclass, field, replace
from itertools import count

from corekit.api import (
    AllocatorStats,
    BuildContext,
    CompletionOutput,
    Durations,
    EngineStats,
    FinishReason,
    Health,
    InvalidRequest,
    ModelFacts,
    Prompt,
    RequestOutput,
    SamplingParams,
    TokenDecoder,
    Tokenizer,
    TokenLogprob,
)
from corekit.compose.catalog import build_catalog
from corekit.compose.discovery import discover


def bytes_tokenizer() -> Tokenizer:
    """The installed tokenizer without a vocabulary: ids 0 to 255 are bytes, 256 ends."""
    made: Tokenizer = build_catalog(discover()).find("tokenizer", "bytes", "the kit").provider.build(BuildContext(), None)
    return made


def _facts() -> ModelFacts:
    return ModelFacts(name="fake", aliases=(), source="none", max_model_len=512, vocab_size=257, supports_logprobs=True, created=1)


def _counts() -> EngineStats:
    """Of an engine that has everything that can be counted."""
    return EngineStats(
        num_running=0,
        num_waiting=0,
        num_blocks=8,
        num_free_blocks=6,
        block_size=16,
        num_prompt_tokens=11,
        num_output_tokens=22,
        num_cached_tokens=16,
        num_preemptions=3,
        num_finished={"stop": 4, "length": 5},
        num_steps=9,
        num_host_blocks=10,
        memory=AllocatorStats(
            num_free=4,
            num_idle=2,
            num_host_used=5,
            num_host_cached=3,
            num_evicted=7,
            num_retained=1,
            residency=Durations(bounds=(1.0, 60.0), counts=(1, 2, 4), sum=500.0),
            idle_before_evict=Durations(bounds=(1.0, 60.0), counts=(2, 3, 2), sum=300.0),
            reuse_gap=Durations(bounds=(1.0, 60.0), counts=(0, 0, 0), sum=0.0),
        ),
        num_prefix_queries=48,
        num_prefix_hits=32,
        num_swap_preemptions=2,
        num_swap_refusals=1,
        num_bytes_to_host=4096,
        num_bytes_to_device=2048,
    )


@dataclass
class FakeClient:
    """Implements `EngineClient`. A token is a byte; sample i of several answers with its number behind.

    Invariant: `alive` holds the requests whose generator was advanced and has not come to its end.
    """

    reply: str | None = "hello"
    """What every prompt is answered with; None: with the text of the prompt."""
    endless: bool = False
    """Say the reply again and again, whatever `max_tokens` says: such a request ends when its generator is closed."""
    step_seconds: float = 0.0
    fail_at: int | None = None
    """`error` is raised before this token of an answer; 0: before the request is taken."""
    error: Exception | None = None
    dead: str = ""
    logprob: float = -0.5
    reason: FinishReason = "stop"
    """Of an answer that `max_tokens` did not end."""
    alive: set[str] = field(default_factory=set)
    seen: list[tuple[str, Prompt, SamplingParams]] = field(default_factory=list)
    priorities: list[int] = field(default_factory=list)
    """Of the requests in `seen`."""
    tenants: list[str] = field(default_factory=list)
    """Of the requests in `seen`."""
    loops: set[asyncio.AbstractEventLoop] = field(default_factory=set)
    """Those on which requests came in."""
    counts: EngineStats = field(default_factory=_counts)
    """What `stats` says; the requests that run are counted."""
    num_aborted: int = 0
    """Requests whose generator was closed before its end, or aborted by id."""
    num_resets: int = 0
    """How often the prefix cache was reset."""
    tokenizer: Tokenizer = field(default_factory=bytes_tokenizer)
    model: ModelFacts = field(default_factory=_facts)

    async def generate(
        self, prompt: Prompt, params: SamplingParams, *, request_id: str | None = None, priority: int = 0, tenant: str = "", deadline: float | None = None
    ) -> AsyncGenerator[RequestOutput, None]:
        """News as they come. An id that is alive already is a fault of the caller, and said at once."""
        request_id = request_id or uuid.uuid4().hex
        assert request_id not in self.alive, f"request id {request_id!r} is in use"
        self.loops.add(asyncio.get_running_loop())
        if self.fail_at == 0 and self.error is not None:
            raise self.error
        ids = self._ids(prompt)
        if any(not 0 <= id < self.model.vocab_size for id in ids):
            raise InvalidRequest(f"prompt holds an id outside the vocabulary of {self.model.vocab_size}: {max(ids)}", field="prompt")
        self.seen.append((request_id, prompt, params))
        self.priorities.append(priority)
        self.tenants.append(tenant)
        self.alive.add(request_id)
        done = False
        try:
            scores = None if params.prompt_logprobs is None else (None, *(self._scored(id, params.prompt_logprobs) for id in ids[1:]))
            async for output in self._news(request_id, len(ids), self._replies(prompt, params.n), params):
                yield replace(output, prompt=prompt.text if prompt.max_tokens is None else None, prompt_token_ids=ids, prompt_logprobs=scores)
                scores = None
                if request_id not in self.alive:
                    return
            done = True
        finally:
            self.alive.discard(request_id)
            self.num_aborted += not done

    def abort(self, request_id: str) -> bool:
        there = request_id in self.alive
        self.alive.discard(request_id)
        return there

    async def reset_prefix_cache(self) -> int:
        self.num_resets += 1
        return self.counts.memory.num_idle

    def stats(self) -> EngineStats:
        return replace(self.counts, num_running=len(self.alive))

    def health(self) -> Health:
        return Health(state="dead", reason=self.dead) if self.dead else Health(state="ready")

    def _ids(self, prompt: Prompt) -> tuple[int, ...]:
        if prompt.token_ids is not None:
            ids = prompt.token_ids
        elif prompt.text is not None:
            ids = tuple(self.tokenizer.encode(prompt.text))
        else:
            ids = self.tokenizer.apply_chat_template(prompt.messages or ()).token_ids
        return ids if prompt.max_tokens is None else ids[-prompt.max_tokens :]

    def _replies(self, prompt: Prompt, n: int) -> list[bytes]:
        reply = self.reply
        if reply is None:
            said = b"".join(map(self.tokenizer.token_bytes, self._ids(prompt))).decode(errors="replace")
            reply = said if prompt.messages is None else str(prompt.messages[-1].get("content"))
        return [f"{reply}{sample if n > 1 else ''}".encode() for sample in range(n)]

    async def _news(self, request_id: str, num_prompt_tokens: int, replies: list[bytes], params: SamplingParams) -> AsyncGenerator[RequestOutput, None]:
        limit = params.max_tokens or self.model.max_model_len
        lengths = [min(len(reply), limit) for reply in replies]
        decoders = [self.tokenizer.start_decoding() for _ in replies]
        for at in count():
            await asyncio.sleep(self.step_seconds)
            if self.fail_at is not None and at == self.fail_at and self.error is not None:
                raise self.error
            live = [sample for sample, length in enumerate(lengths) if self.endless or at < length]
            outputs = tuple(self._output(sample, replies[sample], at, lengths[sample], decoders[sample], params.logprobs) for sample in live)
            finished = not self.endless and at + 1 >= max(lengths)
            if outputs:
                yield RequestOutput(
                    request_id=request_id, prompt=None, num_prompt_tokens=num_prompt_tokens, num_cached_tokens=1, outputs=outputs, finished=finished
                )
            if finished:
                return

    def _output(self, sample: int, reply: bytes, at: int, length: int, decoder: TokenDecoder, num_top: int | None) -> CompletionOutput:
        token, last = reply[at % len(reply)], not self.endless and at + 1 == length
        return CompletionOutput(
            index=sample,
            text=decoder.push(token) + (decoder.finish() if last else ""),
            token_ids=(token,),
            logprobs=None if num_top is None else (self._scored(token, num_top),),
            finish_reason=("length" if len(reply) > length else self.reason) if last else None,
        )

    def _scored(self, token: int, num_top: int) -> TokenLogprob:
        """Always the likeliest."""
        likeliest = (token, 65, 66, 67, 68, 69)[:num_top]
        return TokenLogprob(token, self.logprob, tuple((token_id, self.logprob - rank) for rank, token_id in enumerate(likeliest)))
