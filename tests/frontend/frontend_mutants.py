"""A small right frontend, one prompt a line over TCP, and broken ones: one fault each, and the law that must see it."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import AsyncIterator, Mapping
from contextlib import aclosing
from dataclasses import dataclass
from typing import Any

from corekit.api import CorekitError, EngineClient, Prompt, Provider, SamplingParams


@dataclass(frozen=True, slots=True, kw_only=True)
class LinesOptions:
    port: int = 0


class Right:
    """Every line is a prompt, every answer a line; one that starts with "error: " is none."""

    def __init__(self, options: LinesOptions) -> None:
        self._port = options.port
        self._listener: socket.socket | None = None
        self._talks: set[asyncio.Task[None]] = set()

    @property
    def address(self) -> str | None:
        return None if self._listener is None else "{}:{}".format(*self._listener.getsockname())

    def bind(self) -> None:
        if self._listener is None:
            self._listener = self.listener()

    def listener(self) -> socket.socket:
        listener = socket.socket()
        try:
            listener.bind(("127.0.0.1", self._port))
        except OSError as error:
            listener.close()
            raise self.refusal(error) from None
        return listener

    def refusal(self, error: OSError) -> OSError:
        return OSError(error.errno, f"cannot listen on 127.0.0.1:{self._port}: {error.strerror}")

    async def serve(self, client: EngineClient) -> None:
        self.bind()
        server = await asyncio.start_server(lambda reader, writer: self.talk(client, reader, writer), sock=self._listener)
        try:
            await self.until_cancelled()
        finally:
            server.close()
            await self.end_talks()
            self.forget_address()

    async def until_cancelled(self) -> None:
        await asyncio.Event().wait()

    async def end_talks(self) -> None:
        for task in self._talks:
            task.cancel()
        if self._talks:
            await asyncio.wait(self._talks)

    def forget_address(self) -> None:
        self._listener = None

    async def talk(self, client: EngineClient, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task: Any = asyncio.current_task()
        self._talks.add(task)
        try:
            async for line in reader:
                await self.answer(client, line.decode().rstrip(), writer)
                writer.write(b"\n")
        except (ConnectionError, asyncio.CancelledError):
            pass
        finally:
            self._talks.discard(task)
            writer.close()

    async def answer(self, client: EngineClient, text: str, writer: asyncio.StreamWriter) -> None:
        try:
            async for piece in self.pieces(client, text):
                writer.write(piece.encode())
                await writer.drain()
        except CorekitError as error:
            writer.write(f"error: {error}".encode())

    async def pieces(self, client: EngineClient, text: str) -> AsyncIterator[str]:
        async with aclosing(client.generate(Prompt(text=text), SamplingParams(max_tokens=64))) as news:
            async for output in news:
                yield output.outputs[0].text


class TakesACancellationForAReload(Right):
    async def until_cancelled(self) -> None:
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            await asyncio.Event().wait()


class LeavesItsConnections(Right):
    async def end_talks(self) -> None:
        pass


class AddressWithoutAServer(Right):
    def forget_address(self) -> None:
        self._old = self._listener.getsockname()  # type: ignore[union-attr]
        self._listener = None

    @property
    def address(self) -> str | None:
        return super().address or "{}:{}".format(*getattr(self, "_old", ("127.0.0.1", self._port)))


class BindsAgain(Right):
    def bind(self) -> None:
        if self._listener is not None and not self._talks:
            self._listener.close()
        self._listener = self.listener()


class SaysBusyAndNotWhere(Right):
    def refusal(self, error: OSError) -> OSError:
        return OSError(error.errno, "the address is busy")


class LosesThePieceThatEnds(Right):
    async def pieces(self, client: EngineClient, text: str) -> AsyncIterator[str]:
        async with aclosing(client.generate(Prompt(text=text), SamplingParams(max_tokens=64))) as news:
            async for output in news:
                if output.finished:
                    break
                yield output.outputs[0].text


class TakesBytesForCharacters(Right):
    async def answer(self, client: EngineClient, text: str, writer: asyncio.StreamWriter) -> None:
        await super().answer(client, text.encode().decode("latin-1"), writer)


class OneAnswerForAll(Right):
    async def answer(self, client: EngineClient, text: str, writer: asyncio.StreamWriter) -> None:
        self._parts: list[str] = []
        try:
            async for piece in self.pieces(client, text):
                self._parts.append(piece)
            writer.write("".join(self._parts).encode())
        except CorekitError as error:
            writer.write(f"error: {error}".encode())


class CollectsForWhoeverLeft(Right):
    async def answer(self, client: EngineClient, text: str, writer: asyncio.StreamWriter) -> None:
        try:
            writer.write("".join([piece async for piece in self.pieces(client, text)]).encode())
        except CorekitError as error:
            writer.write(f"error: {error}".encode())


class EndsWithTheFirstFault(Right):
    async def until_cancelled(self) -> None:
        self._fault = asyncio.Event()
        await self._fault.wait()

    async def answer(self, client: EngineClient, text: str, writer: asyncio.StreamWriter) -> None:
        try:
            async for piece in self.pieces(client, text):
                writer.write(piece.encode())
                await writer.drain()
        except CorekitError as error:
            writer.write(f"error: {error}".encode())
            self._fault.set()


class SwallowsFaults(Right):
    async def answer(self, client: EngineClient, text: str, writer: asyncio.StreamWriter) -> None:
        try:
            async for piece in self.pieces(client, text):
                writer.write(piece.encode())
                await writer.drain()
        except CorekitError:
            pass


class AnswersOnAnotherLoop(Right):
    async def answer(self, client: EngineClient, text: str, writer: asyncio.StreamWriter) -> None:
        async def whole() -> str:
            return "".join([piece async for piece in self.pieces(client, text)])

        writer.write((await asyncio.to_thread(asyncio.run, whole())).encode())


MUTANTS: Mapping[type[Right], str] = {
    TakesACancellationForAReload: "test_it_serves_until_it_is_cancelled",
    LeavesItsConnections: "test_it_leaves_nothing_alive",
    AddressWithoutAServer: "test_the_address_is_there_from_bind_to_the_end",
    BindsAgain: "test_a_second_bind_does_nothing",
    SaysBusyAndNotWhere: "test_a_busy_address_is_named",
    LosesThePieceThatEnds: "test_a_whole_answer_arrives",
    TakesBytesForCharacters: "test_text_of_any_script_goes_both_ways",
    OneAnswerForAll: "test_callers_get_their_own_answers",
    CollectsForWhoeverLeft: "test_a_caller_that_leaves_ends_its_request",
    EndsWithTheFirstFault: "test_a_fault_ends_its_own_request_only",
    SwallowsFaults: "test_a_fault_is_told",
    AnswersOnAnotherLoop: "test_the_client_is_used_on_the_loop_of_serve",
}


def provider_of(part: type[Right]) -> Provider[Any]:
    return Provider(name="lines", api=1, summary="one prompt per line, for a test", build=lambda context, options: part(options), options=LinesOptions)
