"""Requests as their client saw them, as a Chrome trace: all that is known of a server. Knows no engine."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from .chrome_trace import ChromeTrace
from .timeline import REQUESTS, Stretch, draw_stretches
from .trace import Trace


def asked_trace(traces: Sequence[Trace], stretches: Iterable[Stretch]) -> bytes:
    """One track for each answered request, and a counter of those in flight."""
    trace = ChromeTrace()
    draw_stretches(trace, stretches)
    changes: list[tuple[float, int]] = []
    for number, one in enumerate(sorted(traces, key=lambda one: one.began)):
        ended = one.arrivals[-1]
        track = trace.track(REQUESTS, f"request {number}")
        counts = {"prompt_tokens": one.num_prompt_tokens, "cached_tokens": one.num_cached_tokens, "output_tokens": one.num_output_tokens}
        began = min(one.began, one.sent)
        track.span(f"request {number}", began, ended, counts)
        if one.due is not None:
            track.span("due, not sent", began, one.sent)
        track.span("waiting", one.sent, one.arrivals[0])
        track.span("decode", one.arrivals[0], ended)
        changes += [(began, 1), (ended, -1)]
    in_flight = 0
    for time, change in sorted(changes):
        in_flight += change
        trace.counter(REQUESTS, "in flight", time, {"requests": in_flight})
    return trace.encoded({"requests": len(traces)})
