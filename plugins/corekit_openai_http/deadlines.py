"""The times by which one request must have said something, and all. Knows no engine; whoever answers hears of them by a future."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Literal

from .errors import ApiError
from .options import HttpOptions
from .stopwatch import Stopwatch

Missed = Literal["first_token", "total"]


@contextmanager
def deadlines(options: HttpOptions, stopwatch: Stopwatch) -> Iterator[asyncio.Future[Missed]]:
    """From here on, for as long as the context is open: the future is done once a deadline has passed."""
    loop = asyncio.get_running_loop()
    missed: asyncio.Future[Missed] = loop.create_future()

    def miss(which: Missed) -> None:
        if not missed.done() and (which == "total" or stopwatch.first_seconds is None):
            missed.set_result(which)

    times: tuple[tuple[Missed, float], ...] = (("first_token", options.first_token_seconds), ("total", options.total_seconds))
    timers = [loop.call_later(seconds, miss, which) for which, seconds in times if seconds]
    try:
        yield missed
    finally:
        for timer in timers:
            timer.cancel()


def too_late(missed: Missed, options: HttpOptions) -> ApiError:
    """408. A client that waited so long decides itself whether to ask again; OpenAI's would do it at once."""
    if missed == "first_token":
        message = f"The first token was not there within {options.first_token_seconds:g} s (first_token_seconds)"
        advice = "Try again when the server is less busy, or with a shorter prompt"
    else:
        message = f"The answer was not complete within {options.total_seconds:g} s (total_seconds)"
        advice = "Ask for fewer tokens, or for fewer choices"
    return ApiError(408, f"{message}. {advice}", code=f"{missed}_timeout", headers={"x-should-retry": "false"})
