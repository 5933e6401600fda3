"""The observer `opentelemetry`: what a collector receives of the requests of a real engine, and what happens where there is none."""

from __future__ import annotations

import asyncio
import gc
import threading
import time
from collections.abc import Iterator, Mapping
from contextlib import aclosing, contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any, ClassVar

import corekit_opentelemetry
import pytest
from corekit_opentelemetry import OpenTelemetryOptions, corekit_register_observers
from corekit_opentelemetry.options import OptionsError
from corekit_opentelemetry.spans import RequestSpans, open_tracer
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest

from corekit.api import BuildContext, Prompt, RequestStats, SamplingParams
from corekit.compose.assemble import assemble
from corekit.compose.errors import ConfigError
from corekit.testing import ObserverKit

(PROVIDER,) = corekit_register_observers()
NOWHERE = "http://127.0.0.1:9/v1/traces"
"""The port of `discard`, at which nobody listens."""
SECOND = 1_000_000_000
ENGINE = {
    "model": {"source": "none", "use": "scripted", "max_model_len": 128},
    "tokenizer": {"use": "bytes"},
    "block_allocator": {"num_blocks": 32, "block_size": 4},
    "engine": {"threads": 1},
    "frontend": [],
}


class TestOpenTelemetry(ObserverKit):
    provider = PROVIDER
    options: ClassVar[Mapping[str, Any]] = {"endpoint": NOWHERE, "max_waiting": 64, "timeout_seconds": 0.5}
    num_kept = 600


class Collector:
    """Keeps what it was sent."""

    def __init__(self, status: int = 200) -> None:
        self.requests: list[ExportTraceServiceRequest] = []
        self.headers: list[dict[str, str]] = []
        collector = self

        class Door(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                body = self.rfile.read(int(self.headers["content-length"]))
                collector.requests.append(ExportTraceServiceRequest.FromString(body))
                collector.headers.append({name.lower(): value for name, value in self.headers.items()})
                self.send_response(status)
                self.send_header("content-length", "0")
                self.end_headers()

            def log_message(self, *arguments: Any) -> None:
                pass

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Door)
        self.endpoint = f"http://127.0.0.1:{self._server.server_port}/v1/traces"

    @contextmanager
    def listening(self) -> Iterator[Collector]:
        thread = threading.Thread(target=self._server.serve_forever)
        thread.start()
        try:
            yield self
        finally:
            self._server.shutdown()
            thread.join()
            self._server.server_close()

    def spans(self) -> list[Any]:
        return [span for request in self.requests for resource in request.resource_spans for scope in resource.scope_spans for span in scope.spans]


def plain(span: Any) -> dict[str, Any]:
    """Attributes as Python's own values."""
    found = {}
    for pair in span.attributes:
        kind = pair.value.WhichOneof("value")
        value = getattr(pair.value, kind)
        found[pair.key] = [item.string_value for item in value.values] if kind == "array_value" else value
    return found


def stats(number: int = 0, **more: Any) -> RequestStats:
    known = {
        "request_id": f"r{number}",
        "finish_reason": "stop",
        "num_samples": 1,
        "num_prompt_tokens": 5,
        "num_output_tokens": 3,
        "num_cached_tokens": 0,
        "num_preemptions": 0,
        "queue_seconds": 0.5,
        "first_token_seconds": 2.0,
        "total_seconds": 3.0,
    }
    return RequestStats(**(known | more))


async def ask(client: Any) -> None:
    async with aclosing(client.generate(Prompt(text="a secret"), SamplingParams(max_tokens=4), request_id="one", tenant="alice")) as news:
        async for _ in news:
            pass
    async with aclosing(client.generate(Prompt(text="left"), SamplingParams(max_tokens=64, ignore_eos=True), request_id="two")) as news:
        async for _ in news:
            break


def test_a_collector_receives_a_span_for_each_request_and_no_text() -> None:
    with Collector().listening() as collector:
        options = {"endpoint": collector.endpoint, "service_name": "shop", "model_name": "small", "headers": {"authorization": "env:COLLECTOR_KEY"}}
        before = time.time_ns()
        config = {**ENGINE, "observer": [{"use": "opentelemetry", "options": options}]}
        with assemble(config, environ={"COLLECTOR_KEY": "Bearer k"}, progress=False) as assembly:
            asyncio.run(ask(assembly.client))
        del assembly
        gc.collect()  # the observer ends with its engine, and sends what waits
        spans = {plain(span)["gen_ai.response.finish_reasons"][0]: span for span in collector.spans()}
        assert set(spans) == {"length", "abort"}
        span, found = spans["length"], plain(spans["length"])
        assert span.name == "text_completion small"
        assert {name: found[name] for name in found if not name.startswith("gen_ai.latency") and name != "gen_ai.request.id"} == {
            "gen_ai.operation.name": "text_completion",
            "gen_ai.provider.name": "corekit",
            "gen_ai.request.model": "small",
            "gen_ai.request.max_tokens": 4,
            "gen_ai.request.choice.count": 1,
            "gen_ai.response.finish_reasons": ["length"],
            "gen_ai.usage.input_tokens": 8,
            "gen_ai.usage.output_tokens": 4,
            "gen_ai.usage.cache_read.input_tokens": 0,
            "corekit.num_preemptions": 0,
        }
        assert found["gen_ai.request.id"] == "one"
        assert before < span.start_time_unix_nano < span.end_time_unix_nano < time.time_ns()
        parts = [found[f"gen_ai.latency.{name}"] for name in ("time_in_queue", "time_in_model_prefill", "time_in_model_decode")]
        assert sum(parts) == pytest.approx(found["gen_ai.latency.e2e"])
        assert span.end_time_unix_nano - span.start_time_unix_nano == pytest.approx(found["gen_ai.latency.e2e"] * SECOND, abs=2)
        (resource,) = {pair.value.string_value for pair in collector.requests[0].resource_spans[0].resource.attributes if pair.key == "service.name"}
        assert resource == "shop"
        assert collector.headers[0]["authorization"] == "Bearer k"
        sent = b"".join(request.SerializeToString() for request in collector.requests)
        assert b"secret" not in sent
        assert b"alice" not in sent


def test_times_and_faults_of_a_span() -> None:
    with Collector().listening() as collector:
        observer = RequestSpans(open_tracer(OpenTelemetryOptions(endpoint=collector.endpoint)), model_name="m")
        observer.on_request(stats(0))
        observer.on_request(stats(1, finish_reason="error", queue_seconds=None, first_token_seconds=None, num_output_tokens=0))
        del observer
        gc.collect()
        good, bad = sorted(collector.spans(), key=lambda span: str(plain(span)["gen_ai.request.id"]))
    assert good.end_time_unix_nano - good.start_time_unix_nano == 3 * SECOND
    (event,) = good.events
    assert (event.name, event.time_unix_nano - good.start_time_unix_nano) == ("first_token", 2 * SECOND)
    latencies = {name.removeprefix("gen_ai.latency."): value for name, value in plain(good).items() if "latency" in name}
    assert latencies == {"time_in_queue": 0.5, "time_to_first_token": 2.0, "time_in_model_prefill": 1.5, "time_in_model_decode": 1.0, "e2e": 3.0}
    assert (good.status.code, bad.status.code) == (0, 2)
    assert not bad.events
    assert [name for name in plain(bad) if "latency" in name] == ["gen_ai.latency.e2e"]


def test_a_ratio_of_the_requests_has_spans() -> None:
    with Collector().listening() as collector:
        observer = RequestSpans(open_tracer(OpenTelemetryOptions(endpoint=collector.endpoint, sample_ratio=0.25)), model_name="m")
        for number in range(1000):
            observer.on_request(stats(number))
        assert observer.num_dropped == 0
        del observer
        gc.collect()
        assert 150 < len(collector.spans()) < 350, "of a thousand, by chance"


def test_a_collector_that_is_not_there_costs_spans_and_no_time() -> None:
    observer = RequestSpans(open_tracer(OpenTelemetryOptions(endpoint=NOWHERE, max_waiting=16, timeout_seconds=0.2)), model_name="m")
    began = time.monotonic()
    for number in range(5000):
        observer.on_request(stats(number))
    assert time.monotonic() - began < 10.0, "five thousand requests of which most are dropped take milliseconds"
    assert observer.num_dropped > 0
    began = time.monotonic()
    del observer
    gc.collect()
    assert time.monotonic() - began < 20.0


def test_without_the_sdk_it_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    assert PROVIDER.refuse(BuildContext()) == []
    monkeypatch.setattr(corekit_opentelemetry, "find_spec", lambda name: None)
    with pytest.raises(ConfigError, match=r"opentelemetry\.sdk and .*pip install 'corekit\[otel\]'"):
        assemble({**ENGINE, "observer": [{"use": "opentelemetry"}]}, environ={}, progress=False)


@pytest.mark.parametrize(
    ("options", "fault"),
    [
        ({"endpoint": "127.0.0.1:4318"}, "endpoint must be a URL"),
        ({"endpoint": "http://x:99999/"}, "endpoint must be a URL"),
        ({"service_name": " "}, "service_name must not be empty"),
        ({"sample_ratio": 1.5}, "sample_ratio must be from 0 to 1, got 1.5"),
        ({"sample_ratio": float("nan")}, "sample_ratio must be from 0 to 1"),
        ({"max_waiting": 1}, "max_waiting must be from 16"),
        ({"timeout_seconds": 0}, "timeout_seconds must be from 0.1"),
        ({"headers": {"a": "b\nc"}}, "headers must be printable"),
    ],
)
def test_bounds(options: dict[str, Any], fault: str) -> None:
    with pytest.raises(OptionsError, match=fault):
        OpenTelemetryOptions(**options)
