"""An observer that remembers when each step and each request was where, for any engine. Knows the public news of an engine, nothing inside it.

timeline = Timeline()
with assemble(config, observers=(timeline,), frontends=()) as assembly:
    ...
timeline.write(Path("trace.json"))
"""

from __future__ import annotations

import heapq
from collections import deque
from collections.abc import Iterable, Sequence
from pathlib import Path
from time import perf_counter
from typing import NamedTuple

from corekit.api import RequestStats, StepStats

from .chrome_trace import ChromeTrace, Track
from .whole_file import write_whole

REQUESTS = "requests"


class Stretch(NamedTuple):
    """Something that went on meanwhile, such as a repetition of a benchmark. Times are those of `time.perf_counter`."""

    name: str
    began: float
    ended: float


class _Step(NamedTuple):
    """What is kept of StepStats: its memory report would be most of it."""

    heard: float
    number: int
    rows: int
    tokens: int
    output_tokens: int
    preempted: int
    copies: int
    running: int
    waiting: int
    free_blocks: int
    blocks: int
    began: float
    plan: float
    submit: float
    collect: float
    commit: float


class Timeline:
    """Told on the engine's thread, written from any. Invariant: it keeps the newest `max_steps` steps and `max_requests` requests, no more."""

    def __init__(self, *, max_steps: int = 100_000, max_requests: int = 100_000) -> None:
        for name, value in (("max_steps", max_steps), ("max_requests", max_requests)):
            if type(value) is not int or not 1 <= value <= 10_000_000:
                raise ValueError(f"{name} must be an integer from 1 to 10000000, got {value!r}")
        self._steps: deque[_Step] = deque(maxlen=max_steps)
        self._requests: deque[tuple[float, RequestStats]] = deque(maxlen=max_requests)
        self._num_steps = self._num_requests = 0

    def on_step(self, stats: StepStats) -> None:
        heard = perf_counter()
        spent = stats.plan_seconds + stats.submit_seconds + stats.collect_seconds + stats.commit_seconds
        self._num_steps += 1
        self._steps.append(
            _Step(
                heard=heard,
                number=stats.number,
                rows=stats.num_rows,
                tokens=stats.num_tokens,
                output_tokens=stats.num_output_tokens,
                preempted=stats.num_preempted,
                copies=stats.num_copies,
                running=stats.num_running,
                waiting=stats.num_waiting,
                free_blocks=stats.num_free_blocks,
                blocks=stats.num_blocks,
                began=stats.plan_time or heard - spent,
                plan=stats.plan_seconds,
                submit=stats.submit_seconds,
                collect=stats.collect_seconds,
                commit=stats.commit_seconds,
            )
        )

    def on_request(self, stats: RequestStats) -> None:
        self._num_requests += 1
        self._requests.append((perf_counter(), stats))

    def encoded(self, stretches: Iterable[Stretch] = ()) -> bytes:
        """The trace so far, as `chrome_trace` has it."""
        steps, requests = tuple(self._steps), tuple(self._requests)  # at one go, while the engine may append
        trace = ChromeTrace()
        draw_stretches(trace, stretches)
        _draw_steps(trace, steps)
        _draw_requests(trace, requests)
        return trace.encoded(
            {
                "steps": len(steps),
                "steps_forgotten": self._num_steps - len(steps),
                "requests": len(requests),
                "requests_forgotten": self._num_requests - len(requests),
            }
        )

    def write(self, path: Path, stretches: Iterable[Stretch] = (), *, asked: str = "trace") -> None:
        """Whole or not at all. Raises BenchError where it cannot be written. asked: what named the path, for that error."""
        write_whole(path, self.encoded(stretches), asked)


def draw_stretches(trace: ChromeTrace, stretches: Iterable[Stretch]) -> None:
    found = list(stretches)
    if found:
        track = trace.track("benchmark", "repetitions")
        for one in found:
            track.span(one.name, one.began, one.ended)


def _draw_steps(trace: ChromeTrace, steps: Sequence[_Step]) -> None:
    """Steps in flight at once are on tracks of their own: one track for each that the executor keeps in flight."""
    tracks: list[Track] = []
    free: list[tuple[float, int]] = []  # when each track's last step ended
    for step in sorted(steps, key=lambda step: step.began):
        if free and free[0][0] <= step.began:
            _, at = heapq.heappop(free)
        else:
            at = len(tracks)
            tracks.append(trace.track("steps", f"steps in flight, {at + 1}"))
        heapq.heappush(free, (step.heard, at))
        _draw_step(tracks[at], step)
    for step in steps:
        trace.counter("steps", REQUESTS, step.heard, {"running": step.running, "waiting": step.waiting})
        if step.blocks:
            trace.counter("steps", "blocks in use", step.heard, {"blocks": step.blocks - step.free_blocks})


def _draw_step(track: Track, step: _Step) -> None:
    counts = {name: getattr(step, name) for name in ("rows", "tokens", "output_tokens", "preempted", "copies")}
    collecting = step.heard - step.commit - step.collect
    submitted = min(step.began + step.plan + step.submit, collecting)
    track.span(f"step {step.number}", step.began, step.heard, counts)
    track.span("plan", step.began, min(step.began + step.plan, submitted))
    track.span("submit", min(step.began + step.plan, submitted), submitted)
    track.span("collect", collecting, collecting + step.collect)
    track.span("commit", collecting + step.collect, step.heard)


def _draw_requests(trace: ChromeTrace, requests: Iterable[tuple[float, RequestStats]]) -> None:
    for ended, stats in sorted(requests, key=lambda one: one[0] - one[1].total_seconds):
        arrived = ended - stats.total_seconds
        admitted = ended if stats.queue_seconds is None else min(arrived + stats.queue_seconds, ended)
        first = ended if stats.first_token_seconds is None else min(arrived + stats.first_token_seconds, ended)
        track = trace.track(REQUESTS, stats.request_id)
        counts = {
            "finish_reason": stats.finish_reason,
            "samples": stats.num_samples,
            "prompt_tokens": stats.num_prompt_tokens,
            "cached_tokens": stats.num_cached_tokens,
            "output_tokens": stats.num_output_tokens,
            "preemptions": stats.num_preemptions,
        }
        track.span(stats.request_id, arrived, ended, counts)
        track.span("queued", arrived, admitted)
        if stats.queue_seconds is not None:
            track.span("prefill", admitted, max(admitted, first))
        if stats.first_token_seconds is not None:
            track.span("decode", max(admitted, first), ended)
