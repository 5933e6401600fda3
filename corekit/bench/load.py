"""When requests are sent: a closed loop keeps a number in flight, an open loop follows the clock. Knows neither engine nor HTTP."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import replace
from time import perf_counter

from .errors import BenchError
from .trace import Outcome, Trace
from .workload import Request

Ask = Callable[[Request], Awaitable[Trace]]
"""Sends one request and follows its answer to the end; raises BenchError when it fails. `ask.py` and `http_client.py` have one each."""

Answered = Callable[[], None]
"""Told after each outcome, for progress."""


async def closed_loop(ask: Ask, requests: Sequence[Request], concurrency: int, answered: Answered) -> list[Outcome]:
    """The next request is sent when one of `concurrency` is answered."""
    outcomes: list[Outcome] = []
    waiting = iter(requests)

    async def ask_in_turn() -> None:
        for request in waiting:
            outcomes.append(await _outcome(ask, request))
            answered()

    async with asyncio.TaskGroup() as tasks:
        for _ in range(concurrency):
            tasks.create_task(ask_in_turn())
    return outcomes


async def open_loop(ask: Ask, requests: Sequence[Request], times: Sequence[float], answered: Answered) -> list[Outcome]:
    """Each request is sent at its time, in seconds from now, whatever became of those before.

    Its latencies count from that time, not from when it was sent: a client that is late, because the server has its processor or
    the event loop was busy, would else leave out the waiting of just those requests that waited (coordinated omission, G. Tene).
    """
    outcomes: list[Outcome] = []

    async def ask_one(request: Request, due: float) -> None:
        outcome = await _outcome(ask, request)
        outcomes.append(replace(outcome, due=due) if isinstance(outcome, Trace) else outcome)
        answered()

    began = perf_counter()
    async with asyncio.TaskGroup() as tasks:
        for request, time in zip(requests, times, strict=True):
            due = began + time
            await asyncio.sleep(due - perf_counter())  # by absolute times: a late wake-up delays no later arrival
            tasks.create_task(ask_one(request, due))
    return outcomes


async def _outcome(ask: Ask, request: Request) -> Outcome:
    try:
        return await ask(request)
    except BenchError as error:
        return error
