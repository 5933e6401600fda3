"""When requests are sent: a closed loop keeps a number in flight, an open loop follows the clock. Knows neither engine nor HTTP."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from random import Random
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


async def open_loop(ask: Ask, requests: Sequence[Request], rate: float, seed: int, answered: Answered) -> list[Outcome]:
    """Poisson arrivals of `rate` requests per second, whatever the server makes of them."""
    outcomes: list[Outcome] = []

    async def ask_one(request: Request) -> None:
        outcomes.append(await _outcome(ask, request))
        answered()

    arrival, random = perf_counter(), Random(seed)
    async with asyncio.TaskGroup() as tasks:
        for request in requests:
            await asyncio.sleep(arrival - perf_counter())  # by absolute times: a late wake-up delays no later arrival
            tasks.create_task(ask_one(request))
            arrival += random.expovariate(rate)
    return outcomes


async def _outcome(ask: Ask, request: Request) -> Outcome:
    try:
        return await ask(request)
    except BenchError as error:
        return error
