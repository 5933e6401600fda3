"""The line about the load: what it says, when it is silent, and that it lives as long as the engine is served."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import pytest

from corekit.api import AllocatorStats, EngineStats
from corekit.compose.assemble import assemble
from corekit.compose.load_log import EVERY_SECONDS, LoadLog

IDLE = EngineStats(
    num_running=0,
    num_waiting=0,
    num_blocks=200,
    num_free_blocks=200,
    block_size=16,
    num_prompt_tokens=1000,
    num_output_tokens=500,
    num_cached_tokens=0,
    num_preemptions=2,
    num_finished={},
    num_steps=9,
)


class Client:
    def __init__(self, seen: Sequence[EngineStats]) -> None:
        self._seen = iter(seen)

    def stats(self) -> EngineStats:
        return next(self._seen)


def said(caplog: pytest.LogCaptureFixture, seen: Sequence[EngineStats], seconds: Callable[[int], float] = lambda turn: EVERY_SECONDS) -> list[str]:
    """The lines about an engine that was seen so, with a clock that moves while the line sleeps."""
    caplog.set_level(logging.INFO)
    now, naps = 50.0, []

    async def sleep(asked: float) -> None:
        nonlocal now
        naps.append(asked)
        if len(naps) == len(seen):
            raise asyncio.CancelledError
        now += seconds(len(naps))

    client: Any = Client(seen)
    with pytest.raises(asyncio.CancelledError):
        asyncio.run(LoadLog(client, clock=lambda: now, sleep=sleep).run())
    assert set(naps) == {EVERY_SECONDS}
    return caplog.messages


def test_what_is_done_in_ten_seconds(caplog: pytest.LogCaptureFixture) -> None:
    busy = replace(IDLE, num_running=2, num_waiting=5, num_prompt_tokens=2180, num_output_tokens=845, num_free_blocks=126)
    thrashing = replace(busy, num_preemptions=5)
    assert said(caplog, [IDLE, busy, thrashing]) == [
        "2 running, 5 waiting, 118.0 prompt and 34.5 output tokens/s, KV cache 37.0 % used",
        "2 running, 5 waiting, 0.0 prompt and 0.0 output tokens/s, KV cache 37.0 % used, 3 preempted",
    ]
    record = caplog.records[0]
    assert (record.levelname, record.name) == ("INFO", "corekit.compose.load_log")
    assert (record.num_running, record.output_tokens_per_second, record.kv_cache_usage) == (2, 34.5, 0.37)  # type: ignore[attr-defined]


def test_what_the_memory_did_in_ten_seconds(caplog: pytest.LogCaptureFixture) -> None:
    """Hits of these ten seconds, not of all; who gave way by swap; the swap space that parked requests use, as long as there is one."""
    space = replace(IDLE, num_running=2, num_prefix_queries=4000, num_prefix_hits=400, num_host_blocks=200, num_swap_preemptions=1)
    hits = replace(space, num_prefix_queries=5000, num_prefix_hits=1050, memory=AllocatorStats(num_host_used=80, num_host_cached=30))
    parks = replace(hits, num_preemptions=6, num_swap_preemptions=4)
    recomputes = replace(parks, num_prefix_queries=5100, num_preemptions=7, memory=AllocatorStats(num_host_cached=20, num_host_used=20))
    lines = said(caplog, [space, hits, parks, recomputes])
    assert [line.partition("KV cache 0.0 % used, ")[2] for line in lines] == [
        "65.0 % of prompt tokens cached, swap space 25.0 % used",
        "swap space 25.0 % used, 4 preempted, 3 of them by swap",
        "0.0 % of prompt tokens cached, swap space 0.0 % used, 1 preempted",
    ]
    first, second, third = caplog.records
    assert (first.prefix_cache_hit_rate, first.swap_space_usage) == (0.65, 0.25)  # type: ignore[attr-defined]
    assert (second.num_preemptions, second.num_swap_preemptions) == (4, 3)  # type: ignore[attr-defined]
    assert not hasattr(second, "prefix_cache_hit_rate"), "nobody asked, so there is no rate"
    assert third.num_swap_preemptions == 0  # type: ignore[attr-defined]


def test_rates_are_those_of_the_time_that_passed(caplog: pytest.LogCaptureFixture) -> None:
    (line,) = said(caplog, [IDLE, replace(IDLE, num_running=1, num_output_tokens=700)], lambda turn: 25.0)
    assert "8.0 output tokens/s" in line


def test_an_idle_engine_is_silent_once_its_last_work_was_told(caplog: pytest.LogCaptureFixture) -> None:
    done = replace(IDLE, num_output_tokens=600)
    assert said(caplog, [IDLE, IDLE, done, done, done]) == ["0 running, 0 waiting, 0.0 prompt and 10.0 output tokens/s, KV cache 0.0 % used"]


class Doors:
    async def serve(self, client: object) -> None:
        await asyncio.sleep(0.01)
        self.tasks = {task.get_coro().__qualname__ for task in asyncio.all_tasks()}  # type: ignore[union-attr]


@pytest.mark.parametrize("wanted", [True, False])
def test_it_lives_as_long_as_the_engine_is_served(wanted: bool) -> None:
    doors = Doors()

    async def main() -> None:
        await assembly.serve()
        assert len(asyncio.all_tasks()) == 1

    tables = {"model": {"source": "none", "use": "scripted"}, "engine": {"log_stats": wanted, "threads": 1}, "block_allocator": {"num_blocks": 8}}
    with assemble(tables, frontends=[doors]) as assembly:
        asyncio.run(main())
    assert ("LoadLog.run" in doors.tasks) is wanted
