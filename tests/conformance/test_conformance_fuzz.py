"""Thousands of bad requests on every route: no server error, every error in OpenAI's form, and afterwards the server is as before."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import httpx
import pytest
from conformance_rig import MODEL, Server, served
from edge_bodies import EdgeRequest, requests
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st
from hypothesis.errors import Unsatisfiable
from wire_models import Exchange as Wire
from wire_models import error_faults, faults, stream_faults

pytestmark = [pytest.mark.ci, pytest.mark.timeout(1800)]

TOGETHER = 6
"""Requests that are under way at the same time."""
FUZZ: dict[str, Any] = {"suppress_health_check": list(HealthCheck), "database": None, "phases": [Phase.generate]}
"""The request that failed is shown as it was: to make it smaller takes minutes of requests."""
TYPED = ("/v1/completions", "/v1/chat/completions", "/v1/responses", "/v1/models")


@pytest.fixture(scope="module")
def server() -> Iterator[Server]:
    """Short contexts, since many of those requests are right and ask for all that there is. Keys open the administration too."""
    with served(texts=("This is 世é!",), max_model_len=64, seats=32, blocks=600, http={"body_seconds": 5.0}) as server:
        before = plain(server)
        yield server
        server.check_end()
        assert plain(server) == before
        stats = server.assembly.client.stats()
        assert "error" not in stats.num_finished, stats.num_finished


def plain(server: Server) -> Any:
    answer = server.http.post("/v1/completions", json={"model": MODEL, "prompt": "Q", "temperature": 0, "logprobs": 1, "cache_salt": "plain"}).json()
    return answer["choices"], answer["usage"]["completion_tokens"]


def verdict(method: str, path: str, response: httpx.Response) -> list[str]:
    """What is wrong with the answer to whatever was sent."""
    if response.status_code >= 500:
        return [f"{response.status_code}: {response.text[:300]}"]
    if method == "HEAD":
        return []
    if response.status_code >= 400:
        return error_faults(response.status_code, response.content, response.headers)
    if path not in TYPED:
        return []
    if response.headers["content-type"].startswith("text/event-stream"):
        return stream_faults(path, response.content)
    return faults(Wire(method, path, response.status_code, response.headers, bytearray(response.content)))


def sent(server: Server, request: EdgeRequest) -> httpx.Response:
    given = {name: value.encode() for name, value in {"content-type": "application/json", **request.headers}.items()}
    return server.http.request(request.method, request.path, content=request.body, headers=given)  # type: ignore[arg-type]


def test_edges_of_every_field(server: Server, pytestconfig: pytest.Config) -> None:
    """Bodies from a corpus of what broke other servers, several at a time."""
    statuses: Counter[int] = Counter()
    number = max(100, pytestconfig.option.fuzz) * 2 // 3 // TOGETHER
    with ThreadPoolExecutor(TOGETHER) as pool:

        @settings(max_examples=number, **FUZZ)
        @given(batch=st.lists(requests(), min_size=TOGETHER, max_size=TOGETHER))
        def all_are_answered(batch: list[EdgeRequest]) -> None:
            for request, response in zip(batch, pool.map(lambda one: sent(server, one), batch), strict=True):
                statuses[response.status_code] += 1
                assert verdict(request.method, request.path, response) == [], request
            assert server.at_rest(), server.audit()

        all_are_answered()
    print("edges of fields:", dict(sorted(statuses.items())))
    assert statuses[200] >= number / 2, "so many were refused that nothing behind the door was tried"
    assert statuses[400] >= number


def test_bodies_made_from_the_schema(server: Server, pytestconfig: pytest.Config) -> None:
    """What `/openapi.json` promises, and what it forbids, drawn by schemathesis for every operation."""
    schemathesis = pytest.importorskip("schemathesis", reason="pip install schemathesis")
    document = server.http.get("/openapi.json").json()
    operations = [found.ok() for found in schemathesis.openapi.from_dict(document).get_all_operations()]
    weights = [12 if operation.method.upper() == "POST" else 1 for operation in operations]
    number = max(100, pytestconfig.option.fuzz) // 2
    statuses: Counter[tuple[str, int]] = Counter()
    for operation, weight in zip(operations, weights, strict=True):
        for mode in schemathesis.GenerationMode:
            share = max(5, number * weight // sum(weights) // 2)
            statuses += drawn(server, operation, mode, share)
    print("from the schema:", dict(sorted(statuses.items())))
    assert sum(statuses.values()) >= number * 0.6
    assert statuses["positive", 200] >= 20 < statuses["negative", 400]


def drawn(server: Server, operation: Any, mode: Any, number: int) -> Counter[tuple[str, int]]:
    statuses: Counter[tuple[str, int]] = Counter()

    @settings(max_examples=number, **FUZZ)
    @given(case=operation.as_strategy(generation_mode=mode))
    def is_answered(case: Any) -> None:
        response = called(server, case)
        statuses[mode.value, response.status_code] += 1
        found = verdict(case.method, case.formatted_path, response)
        assert found == [], (case.method, case.formatted_path, case.body)
        if str(response.status_code) not in operation.definition.raw["responses"]:
            raise AssertionError(f"{case.method} {case.formatted_path} answered {response.status_code}, which its schema does not have: {response.text[:200]}")

    try:
        is_answered()
    except Unsatisfiable:  # a path's name that is no text, or no field at all to be wrong
        assert mode.value == "negative"
        assert not operation.body
    return statuses


def called(server: Server, case: Any) -> httpx.Response:
    """To the one model that there is, which no schema tells."""
    body = {**case.body, "model": MODEL} if isinstance(case.body, dict) and isinstance(case.body.get("model"), str) else case.body
    content = body if isinstance(body, bytes) else b"" if type(body).__name__ == "NotSet" else json.dumps(body).encode()
    given = {"content-type": "application/json", **{str(name): str(value) for name, value in (case.headers or {}).items()}}
    encoded = {name.encode("latin-1", "ignore"): value.encode("latin-1", "ignore") for name, value in given.items()}
    return server.http.request(case.method, case.formatted_path, content=content, headers=list(encoded.items()), params=case.query or None)
