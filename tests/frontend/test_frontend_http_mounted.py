"""Routes of parts on a server: behind its keys, counted by their path, and refused where a path is taken, by both names."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Iterator, Sequence
from contextlib import aclosing
from pathlib import Path
from typing import Any

import httpx
import pytest
from click.testing import CliRunner
from corekit_openai_http import HttpOptions
from corekit_openai_http.app import OWN_PATHS
from corekit_openai_http.frontend import OpenAiHttp
from http_live import Live, PlainClient, check_error
from starlette.requests import Request
from starlette.responses import JSONResponse, Response, StreamingResponse

from corekit.api import EngineClient, InvalidRequest, Overloaded, Prompt, Provider, Route, SamplingParams
from corekit.cli import main
from corekit.compose.assemble import assemble
from corekit.compose.errors import ConfigError

TABLES: dict[str, Any] = {
    "model": {"source": "none", "use": "scripted"},
    "engine": {"device": "cpu", "threads": 1},
    "block_allocator": {"num_blocks": 16},
    "frontend": [{"use": "openai-http", "options": {"port": 0}}],
}


async def answer(request: Request) -> Response:
    return JSONResponse({"path": request.url.path})


def route(path: str, *methods: str, endpoint: Any = answer) -> Route:
    return Route(path=path, methods=methods or ("GET",), endpoint=endpoint)


def provider(name: str, *routes: Route) -> Provider[Any]:
    class Part:
        def routes(self, client: object) -> Any:
            return routes

    return Provider(name=name, api=1, summary="routes, for a test", build=lambda context, options: Part())


class Served(Live):
    """With routes of other parts."""

    def __init__(self, client: PlainClient, *routes: Route, **options: Any) -> None:
        super().__init__(client, **options)
        self.frontend.add_routes(routes, of="test-part")


class Shouts:
    """`POST /shout` has the engine answer, in capitals; `GET /queue` and `GET /twice/{number:int}`."""

    def routes(self, client: EngineClient) -> Sequence[Route]:
        self._client = client
        return [
            route("/queue", endpoint=self.queue),
            route("/shout", "POST", endpoint=self.shout),
            route("/twice/{number:int}", endpoint=self.twice),
        ]

    async def queue(self, request: Request) -> Response:
        return JSONResponse({"waiting": self._client.stats().num_waiting})

    async def twice(self, request: Request) -> Response:
        return JSONResponse(2 * request.path_params["number"])

    async def shout(self, request: Request) -> Response:
        prompt = Prompt(text=(await request.json())["text"])
        async with aclosing(self._client.generate(prompt, SamplingParams(max_tokens=8))) as news:
            return JSONResponse({"text": "".join([output.outputs[0].text async for output in news]).upper()})


async def wrong(request: Request) -> Response:
    raise InvalidRequest("number must be small", field="number")


async def full(request: Request) -> Response:
    raise Overloaded("no room")


async def broken(request: Request) -> Response:
    raise KeyError("hunter2")


async def stream(request: Request) -> Response:
    async def pieces() -> Any:
        yield b"one "
        yield b"two"

    return StreamingResponse(pieces())


@pytest.fixture(scope="module")
def live() -> Iterator[Served]:
    client = PlainClient()
    routes = [*Shouts().routes(client), route("/wrong", endpoint=wrong), route("/full", endpoint=full), route("/broken", endpoint=broken)]
    with Served(client, *routes, route("/stream", endpoint=stream), route("/{rest:path}"), api_keys=("key",)) as started:
        yield started


KEY = {"authorization": "Bearer key"}


def test_they_are_behind_the_keys_like_all_others(live: Served) -> None:
    for path in ("/queue", "/twice/2", "/stream", "/anything"):
        assert check_error(live.http.get(path))["code"] == "invalid_api_key"
        assert live.http.get(path, headers=KEY).status_code == 200
    assert live.http.post("/shout", json={"text": "hi"}, headers=KEY).json() == {"text": "HELLO"}
    assert live.http.get("/twice/21", headers=KEY).json() == 42
    assert live.http.get("/stream", headers=KEY).text == "one two"


def test_their_answers_have_ids_and_are_counted_by_path(live: Served) -> None:
    answered = live.http.get("/twice/7", headers=KEY | {"x-request-id": "mine"})
    assert answered.headers["x-request-id"] == "mine"
    page = live.http.get("/metrics", headers=KEY).text
    assert 'handler="/twice/{number}"' in page
    assert "/twice/7" not in page


def test_what_they_raise_is_an_error_in_openais_form(live: Served) -> None:
    for path, status, code in (("/wrong", 400, None), ("/full", 503, "server_overloaded"), ("/broken", 500, "internal_error")):
        answered = live.http.get(path, headers=KEY)
        assert (answered.status_code, check_error(answered)["code"]) == (status, code)
        assert "hunter2" not in answered.text
    assert check_error(live.http.get("/wrong", headers=KEY))["param"] == "number"
    answered = live.http.get("/shout", headers=KEY)
    assert answered.status_code in (200, 405), "the path that takes the rest may have it"


def test_own_paths_stay_the_servers(live: Served) -> None:
    """A part that takes whatever is left takes nothing that is the server's."""
    assert live.http.get("/health").json() == {"status": "ok"}
    assert live.http.get("/v1/models", headers=KEY).json()["object"] == "list"
    assert live.http.get("/nowhere", headers=KEY).json() == {"path": "/nowhere"}


@pytest.mark.parametrize("path", [path.replace("{id}", "x") for path in OWN_PATHS])
def test_no_path_of_the_server_can_be_taken(path: str) -> None:
    with pytest.raises(ValueError, match=r"of mine is taken by openai-http itself"):
        OpenAiHttp(HttpOptions()).add_routes([route(path)], of="mine")


@pytest.mark.parametrize(
    ("made", "says"),
    [
        (route("queue"), "the path 'queue' of mine does not begin with a slash"),
        (route("/admin/x"), "the path /admin/x of mine is below /admin/, which is openai-http's own"),
        (route("/v1/models/{name}/files"), "is taken by openai-http itself, whose /v1/models/{id} comes before it and answers such paths too"),
        (route("/x", "get"), "the methods of /x of mine must be names"),
        (Route(path="/x", methods=(), endpoint=answer), "the methods of /x of mine must be names"),
        (route("/x", endpoint="answer"), "the endpoint of /x of mine must be a function"),
        (route("/{x:integer}"), "the path /{x:integer} of mine is none: Unknown path convertor 'integer'"),
        (route("/{x}/{x}"), "the path /{x}/{x} of mine is none: Duplicated param name x"),
    ],
)
def test_what_cannot_be_mounted(made: Route, says: str) -> None:
    frontend = OpenAiHttp(HttpOptions())
    with pytest.raises(ValueError) as caught:
        frontend.add_routes([route("/fine"), made], of="mine")
    assert says in str(caught.value)
    frontend.add_routes([route("/fine")], of="mine")  # nothing of the first was added


def test_a_clash_names_both() -> None:
    parts = [provider("first", route("/same"), route("/each/{name}")), provider("second", route("/same")), provider("third", route("/each/one"))]
    with pytest.raises(ConfigError) as caught:
        assemble(TABLES, http_routes=parts, environ={}, progress=False)
    assert [problem.partition(": ")[2] for problem in caught.value.problems] == [
        "the path /same of second from (python) is taken by first from (python)",
        "the path /each/one of third from (python) is taken by first from (python), whose /each/{name} comes before it and answers such paths too",
    ]


def test_what_are_no_routes() -> None:
    parts = [provider("one", "/path"), Provider(name="two", api=1, summary="routes, for a test", build=lambda context, options: Generator())]  # type: ignore[arg-type]
    with pytest.raises(ConfigError) as caught:
        assemble(TABLES, http_routes=parts, environ={}, progress=False)
    first, second = caught.value.problems
    assert "one from (python) gave a str among others as its routes, expected a sequence of corekit.api.Route" in first
    assert "two from (python) gave a generator as its routes" in second


class Generator:
    def routes(self, client: object) -> Any:
        yield route("/x")


def test_without_a_frontend_that_takes_them() -> None:
    with pytest.raises(ConfigError, match=r"one from .* has routes, but no frontend here takes any"):
        assemble({**TABLES, "frontend": []}, http_routes=[provider("one", route("/x"))], environ={}, progress=False)


PLUGIN = """
from corekit.api import Provider, Route, hookimpl

async def answer(request):
    raise NotImplementedError

class Part:
    def __init__(self, path):
        self.path = path
    def routes(self, client):
        return [Route(path=self.path, methods=("GET",), endpoint=answer)]

@hookimpl
def corekit_register_http_routes():
    def made(name, path):
        return Provider(name=name, api=1, summary="one route", build=lambda context, options: Part(path))
    return [made("one", "/same"), made("other", "/same"), made("greedy", "/health")]
"""


def test_check_finds_clashes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Before anything is loaded, with the place in the file."""
    (tmp_path / "clashing_routes.py").write_text(PLUGIN)
    monkeypatch.syspath_prepend(str(tmp_path))
    parts = "".join(f'[[http_route]]\nuse = "{name}"\n' for name in ("one", "other", "greedy"))
    frontend = '[[frontend]]\nuse = "openai-http"\noptions = {port = 0}\n'
    imports = '[plugins]\nimport = ["clashing_routes", "corekit_openai_http"]\n'
    file = tmp_path / "corekit.toml"
    file.write_text('[model]\nsource = "none"\nuse = "scripted"\n[engine]\nthreads = 1\n[block_allocator]\nnum_blocks = 16\n' + imports + frontend + parts)
    try:
        result = CliRunner().invoke(main, ["check", str(file)])
    finally:
        sys.modules.pop("clashing_routes", None)
    assert result.exit_code == 3
    assert "2 problems" in result.stderr
    for number, says in (
        (2, "the path /same of other from clashing_routes is taken by one from clashing_routes"),
        (3, "the path /health of greedy from clashing_routes"),
    ):
        (line,) = [line for line in result.stderr.splitlines() if says in line]
        assert f"[[http_route]] number {number}" in line
    assert "Traceback" not in result.stderr


def test_they_are_served_whole(tmp_path: Path) -> None:
    """From tables to an answer, with the engine's own client behind it."""

    async def body(assembly: Any) -> None:
        (frontend,) = assembly.frontends
        frontend.bind()
        serving = asyncio.create_task(assembly.serve())
        async with httpx.AsyncClient(base_url=frontend.address) as http:
            assert (await http.get("/queue")).json() == {"waiting": 0}
            assert "text" in (await http.post("/shout", json={"text": "hi"})).json()
        serving.cancel()
        await asyncio.wait({serving})

    part = Provider(name="right", api=1, summary="routes, for a test", build=lambda context, options: Shouts())
    with assemble({**TABLES, "tokenizer": {"use": "bytes"}}, http_routes=[part], environ={}, progress=False) as assembly:
        asyncio.run(asyncio.wait_for(body(assembly), 30))
