"""Keys over the whole table of routes, as a stranger, a client and an administrator meet it, and what each of them can do after all of that."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import httpx
import pytest
from conformance_rig import MODEL, Server, fronted, served
from corekit_openai_http.app import OWN_PATHS
from wire_models import error_faults

from corekit.testing.fake_client import FakeClient

pytestmark = pytest.mark.ci
OPEN = {"/health", "/ready", "/ping", "/version"}
ADMIN = ("/admin/reset_prefix_cache", "/admin/drain", "/admin/resume", "/admin/abort")
UNKNOWN = ("/nowhere", "/v1", "/admin", "/admin/", "/health/", "/Health", "//health", "/v1//models", "/docs", "/static/x", "/v1/models/x/y", "/health%20")
METHODS = ("GET", "HEAD", "POST", "PUT", "DELETE", "OPTIONS", "PATCH")
USER, BOSS = "Bearer user-key", "Bearer boss-key"
WRONG = (None, "", "Bearer", "Bearer wrong", "Bearer user-ke", "Bearer user-keyy", "Bearer USER-KEY", "user-key", "Basic user-key")
WRONG += ("Bearer user-key boss-key", "Bearer user-key, Bearer boss-key")


@pytest.fixture(scope="module")
def server() -> Iterator[Server]:
    options = {"keys": {"alice": "user-key", "bob": "other-key"}, "admin_key": "boss-key"}
    with served(texts=("hello",), http=options, headers={"authorization": USER}) as server:
        yield server
        server.check_end()


def status(server: Server, method: str, path: str, authorization: str | None) -> int:
    """Of an answer that is well formed; without a body, which nobody's key depends on."""
    headers = {} if authorization is None else {"authorization": authorization}
    request = server.http.build_request(method, path.replace("{id}", MODEL).replace("{response_id}", "resp_1"), headers=headers)
    if authorization is None:
        del request.headers["authorization"]
    response = server.http.send(request)
    if response.status_code >= 400 and method != "HEAD":
        assert error_faults(response.status_code, response.content, response.headers) == []
    if response.status_code == 401:
        assert response.headers["www-authenticate"] == "Bearer"
    return response.status_code


@pytest.mark.parametrize("path", [*OWN_PATHS, *ADMIN, *UNKNOWN])
def test_only_the_listed_paths_are_open(server: Server, path: str) -> None:
    for method in METHODS:
        for authorization in WRONG:
            told = status(server, method, path, authorization)
            assert (told != 401) == (path in OPEN), (method, path, authorization, told)
        if path not in ADMIN:
            assert (status(server, method, path, USER) == 401) is path.startswith("/admin/"), (method, path)
            assert (status(server, method, path, BOSS) == 401) == (path not in OPEN and not path.startswith("/admin/")), (method, path)
        else:
            assert status(server, method, path, USER) == 401
            assert status(server, method, path, BOSS) not in (401, 500), "it is the administrator's"
    assert status(server, "POST", "/admin/resume", BOSS) == 200


def test_the_administrator_s_bodies_at_their_edges(server: Server) -> None:
    edges: list[Any] = [
        {},
        {"request_id": "x"},
        {"all": True},
        {"all": False},
        {"request_id": "x", "all": True},
        {"request_id": "\x1b"},
        {"request_id": "a" * 65},
    ]
    edges += [{"request_id": 1}, {"all": 1}, {"nonsense": 1}, [], 1, "x", None, {"request_id": None}, {"all": None}]
    for path in ("/admin/abort", "/admin/reset_prefix_cache", "/admin/resume"):
        for edge in edges:
            response = server.http.post(path, json=edge, headers={"authorization": BOSS})
            assert response.status_code in (200, 400), (path, edge, response.text)
            if response.status_code == 400:
                assert error_faults(400, response.content, response.headers) == []


def test_no_key_no_doors() -> None:
    """Without an administrator's key there is nothing to open; without keys everything else is."""

    with fronted(FakeClient()) as url, httpx.Client(base_url=url) as client:
        for path in ADMIN:
            for authorization in ("", "Bearer", BOSS):
                assert client.post(path, headers={"authorization": authorization}).status_code == 404
        assert client.get("/v1/models").status_code == 200
