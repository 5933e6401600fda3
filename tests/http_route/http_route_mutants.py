"""A right part with routes, and broken ones: one fault each, and the law that must see it."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from contextlib import aclosing
from typing import Any

from starlette.requests import Request
from starlette.responses import JSONResponse, Response

from corekit.api import EngineClient, Prompt, Provider, Route, SamplingParams


class Right:
    """`GET /queue` counts who waits; `POST /shout` answers a text in capitals; `GET /twice/{number:int}` needs no engine."""

    def routes(self, client: EngineClient) -> Sequence[Route]:
        self.client = client
        return [
            Route(path="/queue", methods=("GET",), endpoint=self.queue),
            Route(path="/shout", methods=("POST",), endpoint=self.shout),
            Route(path="/twice/{number:int}", methods=("GET",), endpoint=self.twice),
        ]

    async def queue(self, request: Request) -> Response:
        return JSONResponse({"waiting": self.client.stats().num_waiting})

    async def twice(self, request: Request) -> Response:
        return JSONResponse(2 * request.path_params["number"])

    async def shout(self, request: Request) -> Response:
        try:
            text = (await request.json())["text"]
        except (ValueError, KeyError, TypeError, RecursionError):
            return JSONResponse({"error": 'send {"text": ...}'}, 400)
        return JSONResponse({"text": (await self.said(text)).upper()})

    async def said(self, text: str) -> str:
        async with aclosing(self.client.generate(Prompt(text=text), SamplingParams(max_tokens=8))) as news:
            return "".join([output.outputs[0].text async for output in news])


class CountsAtOnce(Right):
    """The number of those who waited when the server was composed."""

    def routes(self, client: EngineClient) -> Sequence[Route]:
        self.waiting = client.stats().num_waiting
        return super().routes(client)


class OnlyOnce(Right):
    """Hands its routes out, and has none left for a second frontend."""

    given = False

    def routes(self, client: EngineClient) -> Sequence[Route]:
        routes, self.given = [] if self.given else super().routes(client), True
        return routes


class Relative(Right):
    def routes(self, client: EngineClient) -> Sequence[Route]:
        return [*super().routes(client), Route(path="queue/length", methods=("GET",), endpoint=self.queue)]


class SmallLetters(Right):
    def routes(self, client: EngineClient) -> Sequence[Route]:
        return [*super().routes(client), Route(path="/queue/length", methods=("get",), endpoint=self.queue)]


class UnknownKind(Right):
    def routes(self, client: EngineClient) -> Sequence[Route]:
        return [*super().routes(client), Route(path="/thrice/{number:integer}", methods=("GET",), endpoint=self.twice)]


class PathForEachMethod(Right):
    """One route of a path for each method."""

    def routes(self, client: EngineClient) -> Sequence[Route]:
        return [*super().routes(client), Route(path="/queue", methods=("POST",), endpoint=self.queue)]


class AfterAllOthers(Right):
    """A path below one that takes any."""

    def routes(self, client: EngineClient) -> Sequence[Route]:
        first = Route(path="/{anything:path}", methods=("GET",), endpoint=self.queue)
        return [first, *super().routes(client)]


class GivesAValue(Right):
    """The web framework that its author knows makes JSON of it."""

    async def queue(self, request: Request) -> Any:
        return {"waiting": self.client.stats().num_waiting}


class AnswersWithAnError(Right):
    async def queue(self, request: Request) -> Response:
        return JSONResponse({}, 404)


class TrustsBodies(Right):
    async def shout(self, request: Request) -> Response:
        return JSONResponse({"text": (await self.said((await request.json())["text"])).upper()})


class SwallowsFaults(Right):
    """Nobody hears why there is no text."""

    async def said(self, text: str) -> str:
        try:
            return await super().said(text)
        except Exception:
            return ""


class LeavesTheGenerator(Right):
    """Takes the first piece, and leaves the generator as it is."""

    async def said(self, text: str) -> str:
        self.news = self.client.generate(Prompt(text=text), SamplingParams(max_tokens=8))
        async for output in self.news:
            return output.outputs[0].text
        return ""


class InTheBackground(Right):
    """What it generates goes on by itself."""

    async def said(self, text: str) -> str:
        self.task = asyncio.create_task(super().said(text))
        return await asyncio.shield(self.task)


MUTANTS: Mapping[type[Right], str] = {
    CountsAtOnce: "test_routes_are_known_before_the_engine",
    OnlyOnce: "test_routes_are_the_same_each_time",
    Relative: "test_paths_and_methods_can_be_mounted",
    SmallLetters: "test_paths_and_methods_can_be_mounted",
    UnknownKind: "test_paths_and_methods_can_be_mounted",
    PathForEachMethod: "test_no_route_hides_another",
    AfterAllOthers: "test_no_route_hides_another",
    GivesAValue: "test_every_route_answers",
    AnswersWithAnError: "test_every_route_answers",
    TrustsBodies: "test_whatever_is_sent_is_answered",
    SwallowsFaults: "test_faults_of_the_engine_are_told",
    LeavesTheGenerator: "test_nothing_is_left_of_a_call",
    InTheBackground: "test_nothing_is_left_of_a_call",
}


def provider_of(part: type[Right]) -> Provider[Any]:
    return Provider(name="shout", api=1, summary="a route that answers in capitals, for a test", build=lambda context, options: part())
