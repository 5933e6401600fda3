"""Finished requests as spans. The engine's thread only queues them; a thread of this part makes spans, and the SDK's own sends them.

Knows counts and times. Knows neither what was said nor who asked.
"""

from __future__ import annotations

import threading
import time
import weakref
from collections.abc import Mapping
from queue import SimpleQueue
from typing import NamedTuple

from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import BatchSpanProcessor
from opentelemetry.sdk.trace.sampling import TraceIdRatioBased
from opentelemetry.trace import SpanKind, Status, StatusCode, Tracer

from corekit.api import RequestStats, StepStats

from .options import OpenTelemetryOptions

_OPERATION = "text_completion"
_NANOSECONDS = 1_000_000_000

Value = str | int | float | tuple[str, ...]


class Finished(NamedTuple):
    """A request, and the Unix time in nanoseconds at which it had ended."""

    time: int
    stats: RequestStats


Waiting = SimpleQueue[Finished | None]
"""None ends the writer."""


class Destination(NamedTuple):
    """Where spans go, and how much may wait on the way."""

    provider: TracerProvider
    max_waiting: int
    patience: float
    """Seconds that the end may take."""


def open_tracer(options: OpenTelemetryOptions) -> Destination:
    """Spans in batches over OTLP. Connects when it has something to send."""
    resource = Resource.create({"service.name": options.service_name})
    provider = TracerProvider(sampler=TraceIdRatioBased(options.sample_ratio), resource=resource, shutdown_on_exit=False)
    exporter = OTLPSpanExporter(endpoint=options.endpoint, headers=dict(options.headers), timeout=options.timeout_seconds)
    batch = min(512, options.max_waiting)
    provider.add_span_processor(BatchSpanProcessor(exporter, max_queue_size=options.max_waiting, max_export_batch_size=batch))
    return Destination(provider, options.max_waiting, options.timeout_seconds)


class RequestSpans:
    """At most `max_waiting` requests wait here, and as many spans in the SDK; what is more is dropped, and counted here."""

    def __init__(self, destination: Destination, *, model_name: str) -> None:
        self._waiting: Waiting = SimpleQueue()
        self._max_waiting = destination.max_waiting
        self._num_dropped = 0
        tracer = destination.provider.get_tracer("corekit")
        writer = threading.Thread(target=_write, args=(self._waiting, tracer, model_name), name="corekit-spans", daemon=True)
        writer.start()
        weakref.finalize(self, _finish, self._waiting, writer, destination)  # with its engine, or with the process

    @property
    def num_dropped(self) -> int:
        return self._num_dropped

    def on_step(self, stats: StepStats) -> None:
        pass

    def on_request(self, stats: RequestStats) -> None:
        if self._waiting.qsize() < self._max_waiting:
            self._waiting.put(Finished(time.time_ns(), stats))
        else:
            self._num_dropped += 1


def _write(waiting: Waiting, tracer: Tracer, model_name: str) -> None:
    while (finished := waiting.get()) is not None:
        _span(tracer, model_name, finished)


def _span(tracer: Tracer, model_name: str, finished: Finished) -> None:
    stats = finished.stats
    began = finished.time - round(stats.total_seconds * _NANOSECONDS)
    name, kind = f"{_OPERATION} {model_name}", SpanKind.SERVER
    span = tracer.start_span(name, kind=kind, attributes=attributes(stats, model_name), start_time=began)
    if stats.first_token_seconds is not None:
        span.add_event("first_token", timestamp=began + round(stats.first_token_seconds * _NANOSECONDS))
    if stats.finish_reason == "error":
        span.set_status(Status(StatusCode.ERROR))
    span.end(finished.time)


def attributes(stats: RequestStats, model_name: str) -> Mapping[str, Value]:
    """Names of OpenTelemetry's conventions for generative AI where they have one, then those that vLLM uses for times, in seconds."""
    queued, first, total = stats.queue_seconds, stats.first_token_seconds, stats.total_seconds
    found: dict[str, Value | None] = {
        "gen_ai.operation.name": _OPERATION,
        "gen_ai.provider.name": "corekit",
        "gen_ai.request.model": model_name,
        "gen_ai.request.id": stats.request_id,
        "gen_ai.request.max_tokens": stats.max_tokens,
        "gen_ai.request.choice.count": stats.num_samples,
        "gen_ai.response.finish_reasons": (stats.finish_reason,),
        "gen_ai.usage.input_tokens": stats.num_prompt_tokens,
        "gen_ai.usage.output_tokens": stats.num_output_tokens,
        "gen_ai.usage.cache_read.input_tokens": stats.num_cached_tokens,
        "gen_ai.latency.time_in_queue": queued,
        "gen_ai.latency.time_to_first_token": first,
        "gen_ai.latency.time_in_model_prefill": None if first is None or queued is None else first - queued,
        "gen_ai.latency.time_in_model_decode": None if first is None else total - first,
        "gen_ai.latency.e2e": total,
        "corekit.num_preemptions": stats.num_preemptions,
    }
    return {name: value for name, value in found.items() if value is not None}


def _finish(waiting: Waiting, writer: threading.Thread, destination: Destination) -> None:
    """Spans that still wait are sent, as far as the time allows."""
    waiting.put(None)
    writer.join(destination.patience)
    last = threading.Thread(target=destination.provider.shutdown, name="corekit-spans-end", daemon=True)
    last.start()  # a collector that does not answer must not hold up the end of the process
    last.join(destination.patience)
