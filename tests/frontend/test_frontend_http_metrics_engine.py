"""What /metrics says of a real engine's steps and requests, under vLLM's names too, and in both text forms."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import pytest
from corekit_openai_http import HttpOptions
from corekit_openai_http.distribution import Distribution
from corekit_openai_http.drain import Drain
from corekit_openai_http.engine_ears import EngineEars
from corekit_openai_http.frontend import OpenAiHttp
from corekit_openai_http.loop_lag import EVERY_SECONDS, LoopLag
from corekit_openai_http.metrics import Meters
from http_live import Live, PlainClient, eventually, everything
from hypothesis import given
from hypothesis import strategies as st
from prometheus_client.openmetrics.parser import text_string_to_metric_families as openmetrics
from prometheus_client.parser import text_string_to_metric_families as plain_text

from corekit.api import Health, Overloaded, Provider, RequestStats
from corekit.compose.assemble import assemble
from corekit.compose.assembly import Assembly
from corekit.testing import ObserverKit

TEXT = "/v1/completions"
OLDER = {
    "vllm:gpu_cache_usage_perc": "corekit_kv_cache_usage_perc",
    "vllm:cpu_cache_usage_perc": "corekit_cpu_cache_usage_perc",
    "vllm:time_per_output_token_seconds": "corekit_inter_token_latency_seconds",
    "vllm:gpu_prefix_cache_queries": "corekit_prefix_cache_queries",
    "vllm:gpu_prefix_cache_hits": "corekit_prefix_cache_hits",
}
TODAY = (
    "num_requests_running",
    "num_requests_waiting",
    "kv_cache_usage_perc",
    "prompt_tokens",
    "generation_tokens",
    "time_to_first_token_seconds",
    "inter_token_latency_seconds",
    "request_time_per_output_token_seconds",
    "e2e_request_latency_seconds",
    "request_success",
    "num_preemptions",
    "prefix_cache_queries",
    "prefix_cache_hits",
    "request_queue_time_seconds",
    "request_inference_time_seconds",
    "request_prefill_time_seconds",
    "request_decode_time_seconds",
    "request_prompt_tokens",
    "request_generation_tokens",
    "request_max_num_generation_tokens",
    "request_params_n",
    "request_params_max_tokens",
    "iteration_tokens_total",
    "cache_config_info",
)


class TestEngineEars(ObserverKit):
    provider = Provider(name="engine-ears", api=1, summary="what the frontend hears of the engine", build=lambda context, options: EngineEars())


@pytest.fixture(scope="module")
def served() -> Iterator[tuple[Live, Assembly]]:
    """After three requests: one of two choices, one that its client left, one that was streamed."""
    frontend = OpenAiHttp(HttpOptions(port=0, metric_aliases="vllm", served_model_names=("shown", "other")))
    with assemble(everything(max_model_len=512, num_blocks=256), frontends=[frontend], progress=False) as assembly:
        live = Live(assembly.client)
        live.frontend = frontend
        with live:
            body = {"model": "other", "prompt": "Question", "temperature": 0, "ignore_eos": True}
            assert live.http.post(TEXT, json={**body, "n": 2, "max_tokens": 7}).status_code == 200
            with live.http.stream("POST", TEXT, json={**body, "max_tokens": 400, "stream": True}) as stream:
                next(stream.iter_lines())
            assert eventually(lambda: assembly.client.stats().num_finished.get("abort") == 1)
            assert live.http.post(TEXT, json={**body, "max_tokens": 3, "stream": True}).status_code == 200
            assert eventually(lambda: assembly.engine.idle)
            assert eventually(lambda: numbers(live)["http_requests_total", f"handler={TEXT}", "method=POST", "status=200"] == 3)  # counted after the answer
            yield live, assembly


def numbers(live: Live, accept: str = "text/plain") -> dict[tuple[str, ...], float]:
    families = (openmetrics if "openmetrics" in accept else plain_text)(live.http.get("/metrics", headers={"accept": accept}).text)
    return {
        (sample.name, *(f"{label}={value}" for label, value in sorted(sample.labels.items()))): sample.value for family in families for sample in family.samples
    }


MODEL = "model_name=shown"


def test_steps_and_requests_are_heard(served: tuple[Live, Assembly]) -> None:
    live, assembly = served
    found, stats = numbers(live), assembly.client.stats()
    for phase in ("plan", "submit", "collect", "commit"):
        assert found["corekit_engine_step_seconds_count", MODEL, f"phase={phase}"] == stats.num_steps > 10
        assert found["corekit_engine_step_seconds_sum", MODEL, f"phase={phase}"] > 0
    assert found["corekit_iteration_tokens_total_count", MODEL] == stats.num_steps
    for name in ("queue_time_seconds", "inference_time_seconds", "prefill_time_seconds", "decode_time_seconds", "prompt_tokens", "generation_tokens"):
        assert found[f"corekit_request_{name}_count", MODEL] == 3
    assert found["corekit_request_prompt_tokens_sum", MODEL] == stats.num_prompt_tokens == 24
    assert found["corekit_request_params_n_sum", MODEL] == 2 + 1 + 1
    assert found["corekit_request_params_max_tokens_sum", MODEL] == 7 + 400 + 3
    assert found["corekit_request_generation_tokens_sum", MODEL] - found["corekit_request_max_num_generation_tokens_sum", MODEL] == 7, "of the second choice"
    assert found["corekit_request_generation_tokens_sum", MODEL] == stats.num_output_tokens
    assert found["corekit_request_queue_time_seconds_sum", MODEL] + found["corekit_request_prefill_time_seconds_sum", MODEL] < 60
    assert [found["corekit_aborted_requests_total", MODEL, f"where={where}"] for where in ("queue", "prefill", "decode")] == [0, 0, 1]
    assert found["corekit_e2e_request_latency_seconds_count", MODEL] == 2
    assert found["corekit_time_to_first_token_seconds_count", MODEL] == 3


def test_every_metric_of_vllm_that_is_here_has_its_name_too(served: tuple[Live, Assembly]) -> None:
    families = {family.name: family for family in plain_text(served[0].http.get("/metrics").text)}
    aliases = {name for name in families if name.startswith("vllm:")}
    assert {f"vllm:{name}" for name in TODAY} | set(OLDER) <= aliases
    for name in aliases:
        ours = families[OLDER.get(name, name.replace("vllm:", "corekit_"))]
        assert (families[name].type, len(families[name].samples)) == (ours.type, len(ours.samples))
        assert all(sample.labels["model_name"] == "shown" and sample.labels["engine"] == "0" for sample in families[name].samples)
        if "time" not in name:
            assert [sample.value for sample in families[name].samples] == [sample.value for sample in ours.samples]
        assert families[name].documentation.startswith("Deprecated: ") is (name in OLDER)
    labels = families["vllm:cache_config_info"].samples[0].labels
    assert {"block_size": "4", "num_gpu_blocks": "256", "num_cpu_blocks": "8"}.items() <= labels.items()


def test_openmetrics_says_the_same(served: tuple[Live, Assembly]) -> None:
    live = served[0]
    response = live.http.get("/metrics", headers={"accept": "application/openmetrics-text; version=1.0.0,text/plain;q=0.5"})
    assert response.headers["content-type"].startswith("application/openmetrics-text")
    assert response.text.endswith("# EOF\n")
    assert response.text.count("# EOF") == 1
    assert numbers(live, "application/openmetrics-text").keys() == numbers(live).keys()


@pytest.mark.parametrize(
    "accept", ["", "*/*", "application/openmetrics-text; version=abc", "text/plain; version=; escaping=", ";;,", "application/openmetrics-text;version"]
)
def test_whatever_is_accepted_there_is_an_answer(served: tuple[Live, Assembly], accept: str) -> None:
    response = served[0].http.get("/metrics", headers={"accept": accept})
    assert response.status_code == 200
    assert "corekit_num_requests_running{" in response.text


def test_aliases_are_only_there_when_asked_for() -> None:
    async def page() -> str:
        meters = Meters(HttpOptions())
        meters.attach(PlainClient(), Drain())
        return (await meters.page(""))[0].decode()

    assert "vllm:" not in asyncio.run(page())


def test_refusals_by_reason_and_streams_that_fail() -> None:
    client = PlainClient(fail_at=0, error=Overloaded("full"))
    with Live(client, api_keys=("key",)) as live:
        body = {"model": "tiny", "prompt": "x"}
        assert live.http.post(TEXT, json=body).status_code == 401
        live.http.headers["authorization"] = "Bearer key"
        assert [live.http.post(TEXT, json=body).status_code for _ in range(2)] == [503, 503]
        assert live.http.post(TEXT, json={**body, "temperature": -1}).status_code == 400
        client.fail_at = 3
        assert "error" in live.http.post(TEXT, json={**body, "stream": True}).text
        client.dead = "a fault"
        assert live.http.post(TEXT, json=body).status_code == 503
        assert live.http.get("/health").status_code == 503
        found = numbers(live)
        refused = {
            reason: found["corekit_admission_rejections_total", "model_name=tiny", f"reason={reason}"]
            for reason in ("queue_full", "engine_dead", "draining", "loading")
        }
        assert refused == {"queue_full": 2, "engine_dead": 1, "draining": 0, "loading": 0}, "what asks for health asks for no work"
        assert found["corekit_stream_errors_total", "model_name=tiny"] == 1
        assert found["corekit_engine_alive", "model_name=tiny"] == 0
        assert found["corekit_drain_state", "model_name=tiny"] == 0


def test_states() -> None:
    class Loading(PlainClient):
        def health(self) -> Health:
            return Health(state="dead", reason="loads", loading=True)

    async def state(drains: bool) -> dict[str, float]:
        meters, drain = Meters(HttpOptions()), Drain()
        meters.attach(Loading(), drain)
        drain.begun = drain.begun or drains
        return {sample.name: sample.value for family in plain_text((await meters.page(""))[0].decode()) for sample in family.samples}

    assert asyncio.run(state(False))["corekit_engine_alive"] == 1, "whoever is woken for a server that loads is woken for nothing"
    assert asyncio.run(state(False))["corekit_drain_state"] == 0


def test_waiting_by_reason_adds_up() -> None:
    client = PlainClient()
    client.counts = replace(client.counts, num_waiting=5, num_deferred=2)
    with Live(client) as live:
        found = numbers(live)
    reasons = [found["corekit_num_requests_waiting_by_reason", "model_name=tiny", f"reason={reason}"] for reason in ("capacity", "deferred")]
    assert reasons == [3, 2]


@pytest.mark.parametrize(("queued", "first", "where"), [(None, None, "queue"), (1.0, None, "prefill"), (1.0, 2.0, "decode")])
def test_where_a_request_was_aborted(queued: float | None, first: float | None, where: str) -> None:
    ears = EngineEars()
    known: dict[str, Any] = {"num_samples": 1, "num_prompt_tokens": 1, "num_output_tokens": 1, "num_cached_tokens": 0, "num_preemptions": 0}
    ears.on_request(RequestStats(request_id="r", finish_reason="abort", queue_seconds=queued, first_token_seconds=first, total_seconds=3.0, **known))
    (family,) = (family for family in ears.collect() if family.name == "corekit_aborted_requests")
    assert {sample.labels["where"] for sample in family.samples if sample.value} == {where}


@given(st.lists(st.floats(0, 100), max_size=20), st.lists(st.floats(0, 100), min_size=1, max_size=5, unique=True).map(sorted))
def test_a_distribution_counts_as_its_definition_says(values: list[float], bounds: list[float]) -> None:
    taken = Distribution(bounds)
    for value in values:
        taken.add(value)
    seen = taken.seen()
    assert [sum(seen.counts[: at + 1]) for at in range(len(bounds))] == [sum(value <= bound for value in values) for bound in bounds]
    assert sum(seen.counts) == len(values)
    assert seen.sum == pytest.approx(sum(values))


def test_the_loop_is_free_while_the_page_is_written() -> None:
    """Between two metrics others have their turn: none waits for the whole page."""

    async def turns() -> tuple[int, int]:
        meters, num_turns, done = Meters(HttpOptions()), 0, asyncio.Event()
        meters.attach(PlainClient(), Drain())

        async def neighbour() -> None:
            nonlocal num_turns
            while not done.is_set():
                num_turns += 1
                await asyncio.sleep(0)

        beside = asyncio.create_task(neighbour())
        text, _ = await meters.page("")
        done.set()
        await beside
        return num_turns, len(re.findall(rb"^# TYPE", text, re.MULTILINE))

    num_turns, num_families = asyncio.run(turns())
    assert num_turns >= num_families > 40


def test_a_loop_that_was_held_up_shows() -> None:
    async def held(seconds: float) -> float:
        lag = LoopLag()
        watch = asyncio.create_task(lag.watch())
        loop = asyncio.get_running_loop()
        await asyncio.sleep(EVERY_SECONDS / 2)
        end = loop.time() + seconds
        while loop.time() < end:
            pass
        await asyncio.sleep(EVERY_SECONDS / 2)
        watch.cancel()
        return lag.worst()

    assert asyncio.run(held(EVERY_SECONDS)) >= EVERY_SECONDS / 2
