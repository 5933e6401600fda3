"""Hears the engine's steps and requests, as times and sizes. Called on the engine's thread: adds numbers, and never waits. Knows no clients."""

from __future__ import annotations

from collections.abc import Iterator

from prometheus_client.core import CounterMetricFamily, Metric

from corekit.api import Durations, RequestStats, StepStats

from .buckets import PER_TOKEN, REQUEST, SAMPLES, STEP, STEP_TOKENS, TOKENS
from .distribution import Distribution
from .families import by, distribution, distributions


class EngineEars:
    """An observer. Invariant: takes the same room and time, however much it has heard."""

    def __init__(self) -> None:
        self._phases = {phase: Distribution(STEP) for phase in ("plan", "submit", "collect", "commit")}
        self._plan, self._submit, self._collect, self._commit = self._phases.values()
        self._step_tokens = Distribution(STEP_TOKENS)
        self._queue, self._inference, self._prefill, self._decode, self._per_token = (Distribution(b) for b in (REQUEST, REQUEST, REQUEST, REQUEST, PER_TOKEN))
        self._prompt, self._generated, self._longest, self._max_tokens = (Distribution(TOKENS) for _ in range(4))
        self._samples = Distribution(SAMPLES)
        self._aborted = dict.fromkeys(("queue", "prefill", "decode"), 0)

    def on_step(self, stats: StepStats) -> None:
        self._plan.add(stats.plan_seconds)
        self._submit.add(stats.submit_seconds)
        self._collect.add(stats.collect_seconds)
        self._commit.add(stats.commit_seconds)
        self._step_tokens.add(stats.num_tokens)

    def on_request(self, stats: RequestStats) -> None:
        queued, first, total = stats.queue_seconds, stats.first_token_seconds, stats.total_seconds
        if queued is not None:
            self._queue.add(queued)
            self._inference.add(total - queued)
            self._prompt.add(stats.num_prompt_tokens)
            self._max_tokens.add(stats.max_tokens)
            self._samples.add(stats.num_samples)
        if queued is not None and first is not None:
            self._prefill.add(first - queued)
            self._decode.add(total - first)
            self._generated.add(stats.num_output_tokens)
            self._longest.add(stats.num_longest_tokens)
            if stats.num_longest_tokens > 1:
                self._per_token.add((total - first) / (stats.num_longest_tokens - 1))
        if stats.finish_reason == "abort":
            self._aborted["queue" if queued is None else "prefill" if first is None else "decode"] += 1

    def collect(self) -> Iterator[Metric]:
        phases: dict[tuple[str, ...], Durations] = {(phase,): seen.seen() for phase, seen in self._phases.items()}
        yield distributions("corekit_engine_step_seconds", "Parts of a step, one after the other.", ("phase",), phases)
        yield distribution("corekit_iteration_tokens_total", "Tokens that a step computed.", self._step_tokens)
        yield distribution("corekit_request_queue_time_seconds", "From a request's arrival in the engine to its admission.", self._queue)
        yield distribution("corekit_request_inference_time_seconds", "From a request's admission to its end.", self._inference)
        yield distribution("corekit_request_prefill_time_seconds", "From a request's admission to its first token.", self._prefill)
        yield distribution("corekit_request_decode_time_seconds", "From a request's first token to its end.", self._decode)
        yield distribution("corekit_request_time_per_output_token_seconds", "Mean time for a token after the first, of a request.", self._per_token)
        yield distribution("corekit_request_prompt_tokens", "Tokens of a prompt.", self._prompt)
        yield distribution("corekit_request_generation_tokens", "Tokens generated for a request, all its samples together.", self._generated)
        yield distribution("corekit_request_max_num_generation_tokens", "Tokens of a request's longest sample.", self._longest)
        yield distribution("corekit_request_params_n", "Samples that a request asked for.", self._samples)
        yield distribution("corekit_request_params_max_tokens", "Tokens allowed to a sample: as asked for, or what the context left.", self._max_tokens)
        yield by("corekit_aborted_requests", "Requests that were ended early, by how far they were.", "where", self._aborted, CounterMetricFamily)
