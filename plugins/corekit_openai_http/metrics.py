"""Metrics in Prometheus' text form: the engine's own counts, and times as this frontend sees them. Labels come from fixed sets only."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator

from prometheus_client import CollectorRegistry, Counter, Histogram, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric

from corekit.api import CompletionOutput, EngineClient

from .memory_metrics import device_memory, host_memory

_METHODS = frozenset({"GET", "HEAD", "POST", "PUT", "PATCH", "DELETE", "OPTIONS"})
_REASONS = ("stop", "length", "abort", "error")
_SHORT = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5)
_LONG = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60, 120, 300)


class EngineCounts:
    """Reads the engine's statistics when the page is asked for; keeps nothing."""

    def __init__(self, client: EngineClient) -> None:
        self._client = client

    def collect(self) -> Iterator[Metric]:
        stats = self._client.stats()
        used = 1 - stats.num_free_blocks / stats.num_blocks if stats.num_blocks else 0.0
        yield GaugeMetricFamily("corekit_num_requests_running", "Requests that hold a seat.", stats.num_running)
        yield GaugeMetricFamily("corekit_num_requests_waiting", "Requests in the queue.", stats.num_waiting)
        yield GaugeMetricFamily("corekit_kv_cache_usage_perc", "Share of KV blocks that requests use, 0 to 1; cached ones that nobody uses are free.", used)
        yield CounterMetricFamily("corekit_prompt_tokens", "Prompt tokens of accepted requests.", stats.num_prompt_tokens)
        yield CounterMetricFamily("corekit_generation_tokens", "Tokens generated.", stats.num_output_tokens)
        yield CounterMetricFamily("corekit_num_preemptions", "Times a request lost its blocks.", stats.num_preemptions)
        finished = CounterMetricFamily("corekit_request_success", "Requests that ended, by reason.", labels=["finished_reason"])
        for reason in _REASONS:
            finished.add_metric([reason], stats.num_finished.get(reason, 0))
        yield finished
        yield from device_memory(stats)
        if stats.num_host_blocks:
            yield from host_memory(stats)


class Meters:
    """One registry per frontend: two servers in one process do not share counts."""

    def __init__(self, client: EngineClient) -> None:
        self._registry = CollectorRegistry()
        self._registry.register(EngineCounts(client))
        self._http = Counter("http_requests", "HTTP requests answered.", ("handler", "method", "status"), registry=self._registry)
        self._first = Histogram("corekit_time_to_first_token_seconds", "Arrival to first token.", buckets=_LONG, registry=self._registry)
        self._whole = Histogram("corekit_e2e_request_latency_seconds", "Arrival to last token.", buckets=_LONG, registry=self._registry)
        self._between = Histogram("corekit_inter_token_latency_seconds", "Time per token after the first.", buckets=_SHORT, registry=self._registry)

    def answered(self, handler: str, method: str, status: int) -> None:
        self._http.labels(handler, method if method in _METHODS else "other", str(status)).inc()

    def start(self) -> Stopwatch:
        return Stopwatch(self._first.observe, self._between.observe, self._whole.observe)

    def page(self) -> bytes:
        return generate_latest(self._registry)


class Stopwatch:
    """Times of one request, from its arrival."""

    def __init__(self, first: Callable[[float], None], between: Callable[[float], None], whole: Callable[[float], None]) -> None:
        self._first, self._between, self._whole = first, between, whole
        self._arrival = time.monotonic()
        self._last: dict[int, float] = {}

    def news(self, index: int, output: CompletionOutput) -> None:
        """Something new of choice `index`."""
        if not output.token_ids:
            return
        now = time.monotonic()
        if not self._last:
            self._first(now - self._arrival)
        if index in self._last:
            self._between((now - self._last[index]) / len(output.token_ids))
        self._last[index] = now

    def done(self) -> None:
        self._whole(time.monotonic() - self._arrival)
