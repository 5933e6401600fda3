"""Kit of slot `http_route`: its routes are known before the engine is, can be mounted, and answer whatever is sent to them."""

from __future__ import annotations

import asyncio
import json
import re
from collections.abc import Callable, Coroutine, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, ClassVar

import pytest

from corekit.api import BuildContext, CorekitError, EngineDead, HttpRoute, InvalidRequest, Overloaded, RequestFailed, Route

from .fake_client import FakeClient
from .kit import Kit, left_running, running

if TYPE_CHECKING:
    from starlette.requests import Request

_SAMPLES: Mapping[str, Any] = {"int": 1, "float": 1.5, "path": "x/y"}
_BODIES: Mapping[str, bytes] = {
    "nothing": b"",
    "no JSON": b"{",
    "no UTF-8": b"\xff\xfe",
    "null": b"null",
    "an array": b"[]",
    "a text": b'"text"',
    "an object without fields": b"{}",
    "deep nesting": b"[" * 5000,
    "a number too large": b'{"n": 1e999}',
}
_FAULTS = (InvalidRequest("wrong", field="prompt"), Overloaded("full"), RequestFailed("failed"), EngineDead("dead"))
_WITH_BODY = frozenset({"POST", "PUT", "PATCH"})
_STEPS = 20
"""Turns of the loop after which a call that was cancelled must have ended."""


class HttpRouteKit(Kit):
    """`examples`: path -> a body that the route takes, as JSON; a path without one is sent an object without fields.

    `seconds`: the longest that an answer may take. The engine behind it is a FakeClient.
    """

    slot = "http_route"
    examples: ClassVar[Mapping[str, Any]] = {}
    seconds: ClassVar[float] = 10.0

    # -- what is mounted -------------------------------------------------------------------------------------------

    def test_routes_are_known_before_the_engine(self) -> None:
        """`routes` asks the client for nothing: it is called at composition, when the engine may still be loading."""
        client = _Untouched()
        self._routes(client)
        assert not client.asked, f"routes() uses client.{client.asked[0]}; read what the client knows when a request comes"

    def test_routes_are_the_same_each_time(self) -> None:
        """Every frontend is given the same routes, however often they are asked for."""
        component = self.build()
        first, second = ([(route.path, route.methods) for route in component.routes(FakeClient())] for _ in range(2))
        assert first == second, f"routes() gave {first}, and then {second}"
        assert first, "routes() gave none"

    def test_paths_and_methods_can_be_mounted(self) -> None:
        """A path begins with a slash and has parameters that starlette knows; methods are in capitals, at least one; the endpoint can be called."""
        from starlette.routing import compile_path

        for route in self._routes():
            assert isinstance(route, Route), f"routes() gave {route!r}, expected a corekit.api.Route"
            assert route.path.startswith("/"), f"the path {route.path!r} does not begin with a slash"
            try:
                compile_path(route.path)
            except (AssertionError, ValueError) as error:
                raise AssertionError(f"the path {route.path!r} is none that can be mounted: {error}") from error
            right = isinstance(route.methods, tuple) and route.methods and all(re.fullmatch("[A-Z]+", method) for method in route.methods)
            assert right, f'the methods of {route.path} are {route.methods!r}, expected a tuple such as ("GET", "POST")'
            assert callable(route.endpoint), f"the endpoint of {route.path} is {route.endpoint!r}, expected a function"

    def test_no_route_hides_another(self) -> None:
        """Each path is there once, and none is matched by one before it: it could never be reached."""
        from starlette.routing import compile_path

        before: list[str] = []
        for route in self._routes():
            hides = [path for path in before if path == route.path or compile_path(path)[0].fullmatch(_filled(route.path)[0])]
            assert not hides, f"{route.path} is never reached: {hides[0]} stands before it and matches"
            before.append(route.path)

    # -- what is answered ------------------------------------------------------------------------------------------

    def test_every_route_answers(self) -> None:
        """Asked as `examples` say, each gives a starlette response that is no error. What takes a body and has no example may refuse it."""
        unknown = []

        async def law(client: FakeClient) -> None:
            for route, method in self._calls():
                status = await self._status(client, route, method, self._example(route))
                if 400 <= status < 500 and method in _WITH_BODY and route.path not in self.examples:
                    unknown.append(f"{method} {route.path}")
                    continue
                assert 100 <= status < 400, f"{method} {route.path} was answered with {status}"

        self._run(law)
        if unknown:
            pytest.skip(f"this law needs `examples`: say there what {', '.join(unknown)} takes")

    def test_whatever_is_sent_is_answered(self) -> None:
        """A body of any kind, or none, gets a response below 500: nothing but an error of corekit's own leaves an endpoint."""

        async def law(client: FakeClient) -> None:
            for route, method in self._calls():
                for name, body in _BODIES.items():
                    status = await self._status(client, route, method, body)
                    assert status < 500, f"{method} {route.path} was sent {name} as its body, and answered with {status}"

        self._run(law)

    def test_faults_of_the_engine_are_told(self) -> None:
        """When the engine refuses, the caller hears of it: the endpoint raises an error of corekit's own, or answers with a status from 400 on."""

        async def law(client: _Client) -> None:
            for route, method in self._calls():
                for fault in _FAULTS:
                    asked = len(client.refused)
                    client.error, client.fail_at = fault, 0
                    status = await self._status(client, route, method, self._example(route))
                    client.error = client.fail_at = None
                    if len(client.refused) > asked:
                        assert status >= 400, f"{method} {route.path} was answered with {status} although the engine said {fault!r}"

        self._run(law)

    def test_nothing_is_left_of_a_call(self) -> None:
        """When a call is over, or was cancelled in its midst, no request of it is alive in the engine, and no task and no thread is left."""

        async def law(client: FakeClient) -> None:
            for route, method in self._calls():
                for cancelled in (False, True):
                    client.endless, client.step_seconds = cancelled, 0.001 if cancelled else 0.0
                    before, call = asyncio.all_tasks(), asyncio.create_task(self._status(client, route, method, self._example(route)))
                    await asyncio.wait({call}, timeout=0.05 if cancelled else self.seconds)
                    call.cancel()
                    await asyncio.wait({call}, timeout=self.seconds)
                    for _ in range(_STEPS):
                        await asyncio.sleep(0)
                    what = f"{method} {route.path} was {'cancelled' if cancelled else 'answered'}"
                    assert not client.alive, f"{what}, and its request goes on: close the generator (contextlib.aclosing)"
                    left = [task.get_name() for task in asyncio.all_tasks() - before - {call}]
                    assert not left, f"{what}, and left tasks: {left}"

        there = running()
        self._run(law)
        left = left_running(there)
        assert not left, f"threads or processes are left: {left}"

    # -- how a part is driven --------------------------------------------------------------------------------------

    def context(self) -> BuildContext:
        client = FakeClient()
        return BuildContext(tokenizer=client.tokenizer, max_model_len=client.model.max_model_len)

    def _routes(self, client: Any = None) -> Sequence[Route]:
        component: HttpRoute = self.build()
        return component.routes(client or FakeClient())

    def _run(self, law: Callable[[_Client], Coroutine[Any, Any, None]]) -> None:
        client = _Client()
        self._mounted = self._routes(client)
        asyncio.run(law(client))

    def _calls(self) -> Iterator[tuple[Route, str]]:
        for route in self._mounted:
            for method in route.methods:
                yield route, method

    def _example(self, route: Route) -> bytes:
        return json.dumps(self.examples.get(route.path, {})).encode()

    async def _status(self, client: FakeClient, route: Route, method: str, body: bytes) -> int:
        """Of the answer. What an endpoint may raise counts as the status that a frontend makes of it."""
        from starlette.exceptions import HTTPException

        request, statuses = _request(route, method, body), list[int]()

        async def send(message: Any) -> None:
            if message["type"] == "http.response.start":
                statuses.append(message["status"])

        said = f"{method} {route.path}"
        try:
            async with asyncio.timeout(self.seconds):
                response = await route.endpoint(request)
                assert callable(response), f"{said} returned {response!r}, expected a starlette response"
                await response(request.scope, request.receive, send)
        except CorekitError as error:
            return 400 if isinstance(error, InvalidRequest) else 503 if isinstance(error, Overloaded | EngineDead) else 500
        except HTTPException as error:
            return error.status_code
        except TimeoutError as error:
            raise AssertionError(f"{said} has no answer after {self.seconds:g} s (seconds)") from error
        except AssertionError:
            raise
        except Exception as error:
            raise AssertionError(f"{said} was sent {body[:40]!r} and raised {error!r}; a caller would hear of a fault of the server") from error
        assert statuses, f"{said} returned a response that answers nothing"
        return statuses[0]


class _Client(FakeClient):
    """Counts whom it refused."""

    def __init__(self) -> None:
        super().__init__()
        self.refused: list[str] = []

    async def generate(self, *arguments: Any, **named: Any) -> Any:
        if self.error is not None:
            self.refused.append(repr(self.error))
            raise self.error
        generator = super().generate(*arguments, **named)
        try:
            async for output in generator:
                yield output
        finally:
            await generator.aclose()


class _Untouched:
    """A client that notes what is asked of it, and has nothing."""

    def __init__(self) -> None:
        self.asked: list[str] = []

    def __getattr__(self, name: str) -> Any:
        self.asked.append(name)
        return getattr(FakeClient(), name)


def _filled(path: str) -> tuple[str, dict[str, Any]]:
    """The path with a value for each parameter, and these."""
    values = {found[1]: _SAMPLES.get(found[2] or "", "x") for found in re.finditer(r"\{([^}:]*):?([^}]*)\}", path)}
    return re.sub(r"\{([^}:]*)[^}]*\}", lambda found: str(values[found[1]]), path), values


def _request(route: Route, method: str, body: bytes) -> Request:
    from starlette.requests import Request

    path, values = _filled(route.path)
    sent = [{"type": "http.request", "body": body, "more_body": False}]
    headers = [(b"host", b"kit"), (b"content-type", b"application/json"), (b"content-length", str(len(body)).encode())]

    async def receive() -> Any:
        if sent:
            return sent.pop()
        await asyncio.Event().wait()  # the client stays
        raise AssertionError

    scope = {
        "type": "http",
        "asgi": {"version": "3.0"},
        "http_version": "1.1",
        "method": method,
        "scheme": "http",
        "path": path,
        "raw_path": path.encode(),
        "query_string": b"",
        "headers": headers,
        "path_params": values,
        "server": ("kit", 80),
        "client": ("kit", 1),
        "root_path": "",
    }
    return Request(scope, receive)
