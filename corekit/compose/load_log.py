"""A line in the log from time to time about what an engine is doing, while it does anything. Knows its client's statistics alone."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable

from corekit.api import EngineClient, EngineStats

EVERY_SECONDS = 10.0
log = logging.getLogger(__name__)


class LoadLog:
    """Invariant: a stretch in which nothing ran, waited or came out has no line. Reads between steps; the step knows nothing of it."""

    def __init__(
        self,
        client: EngineClient,
        *,
        clock: Callable[[], float],
        every: float = EVERY_SECONDS,
        sleep: Callable[[float], Awaitable[object]] = asyncio.sleep,
    ) -> None:
        self._client = client
        self._clock = clock
        self._every = every
        self._sleep = sleep

    async def run(self) -> None:
        """Until cancelled."""
        before, then = self._client.stats(), self._clock()
        while True:
            await self._sleep(self._every)
            stats, now = self._client.stats(), self._clock()
            if now > then:
                _write(before, stats, now - then)
            before, then = stats, now


def _write(before: EngineStats, now: EngineStats, seconds: float) -> None:
    num_prompt, num_output = now.num_prompt_tokens - before.num_prompt_tokens, now.num_output_tokens - before.num_output_tokens
    if not (now.num_running or now.num_waiting or num_prompt or num_output):
        return
    used = 1 - now.num_free_blocks / now.num_blocks if now.num_blocks else 0.0
    num_preempted = now.num_preemptions - before.num_preemptions
    fields = {
        "num_running": now.num_running,
        "num_waiting": now.num_waiting,
        "prompt_tokens_per_second": round(num_prompt / seconds, 1),
        "output_tokens_per_second": round(num_output / seconds, 1),
        "kv_cache_usage": round(used, 3),
        "num_preemptions": num_preempted,
    }
    words, more = _of_memory(before, now)
    log.info(
        "%d running, %d waiting, %.1f prompt and %.1f output tokens/s, KV cache %.1f %% used%s",
        now.num_running,
        now.num_waiting,
        num_prompt / seconds,
        num_output / seconds,
        100 * used,
        "".join(f", {word}" for word in words),
        extra=fields | more,
    )


def _of_memory(before: EngineStats, now: EngineStats) -> tuple[list[str], dict[str, float]]:
    """What only some engines have to say, in words and as fields: hits of the prefix cache, swap space, who gave way."""
    words: list[str] = []
    fields: dict[str, float] = {}
    if num_queries := now.num_prefix_queries - before.num_prefix_queries:
        hits = (now.num_prefix_hits - before.num_prefix_hits) / num_queries
        fields["prefix_cache_hit_rate"] = round(hits, 3)
        words.append(f"{100 * hits:.1f} % of prompt tokens cached")
    if now.num_host_blocks:
        parked = (now.memory.num_host_used - now.memory.num_host_cached) / now.num_host_blocks
        fields["swap_space_usage"] = round(parked, 3)
        words.append(f"swap space {100 * parked:.1f} % used")
    num_swapped = now.num_swap_preemptions - before.num_swap_preemptions
    if num_preempted := now.num_preemptions - before.num_preemptions:
        fields["num_swap_preemptions"] = num_swapped
        words.append(f"{num_preempted} preempted" + (f", {num_swapped} of them by swap" if num_swapped else ""))
    return words, fields
