"""Kit of slot `frontend`: it serves until told to end, leaves nothing behind, and one request's end is never another's.

The engine behind it is a `FakeClient`. How a frontend is asked is its author's to say (`ask`); without that, the laws that
need an answer are skipped.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Callable, Coroutine, Mapping
from contextlib import asynccontextmanager
from typing import Any, ClassVar

import pytest

from corekit.api import EngineDead, Frontend, InvalidRequest, Overloaded, RequestFailed, SupportsBind

from .fake_client import FakeClient
from .kit import Kit, left_running, running

_TURNS = 0.005
"""Seconds between two looks."""
_ERRORS = (InvalidRequest("the kit says no", field="prompt"), Overloaded("the kit is full"), RequestFailed("the kit failed"), EngineDead("the kit is dead"))


class FrontendKit(Kit):
    """An author supplies `ask`, and `options_at` where the frontend takes an address (`SupportsBind`).

    `seconds`: the longest that anything may take which has no reason to take long, the end after a cancellation included; a
    frontend that waits for what is in flight gets options that make this wait short. `reply`: what the engine answers.
    """

    slot = "frontend"
    seconds: ClassVar[float] = 10.0
    reply: ClassVar[str] = "hello"

    async def ask(self, frontend: Frontend, text: str) -> str:
        """Send one prompt as a caller would, and return the text of the whole answer; raise when the answer is an error.

        When it is cancelled it leaves: its connection is closed on the way out.
        """
        raise NotImplementedError

    def options_at(self, address: str) -> Mapping[str, Any] | None:
        """Options with which a second frontend would take exactly this address; None: the law of a busy address is skipped."""
        return None

    # -- start and end ---------------------------------------------------------------------------------------------

    def test_it_serves_until_it_is_cancelled(self) -> None:
        """`serve` goes on by itself, ends soon after it is cancelled, and raises nothing then."""

        async def law() -> None:
            client = FakeClient(reply=self.reply)
            async with self._serving(client) as (frontend, serving):
                await self._settle(frontend, serving)
                assert not serving.done(), "serve returned, and nobody had cancelled it"

        asyncio.run(law())

    def test_it_leaves_nothing_alive(self) -> None:
        """After its end no task, no thread and no open request is left, even if requests were in flight."""
        before = running()

        async def law() -> None:
            client = FakeClient(reply=self.reply)
            tasks = asyncio.all_tasks()
            asking = None
            async with self._serving(client) as (frontend, serving):
                await self._settle(frontend, serving)
                client.endless, client.step_seconds = True, _TURNS
                if self._can_ask:
                    asking = asyncio.create_task(self._ask(frontend, serving, "in flight"))
                    await self._until(lambda: bool(client.alive), "a request never reached the engine")
            assert not client.alive, f"serve has ended and {len(client.alive)} request(s) go on: close their generators before it returns"
            if asking is not None:
                asking.cancel()
                await asyncio.wait({asking})
            await self._until(lambda: not asyncio.all_tasks() - tasks - {asyncio.current_task()}, "serve has ended and left tasks")

        asyncio.run(law())
        left = left_running(before)
        assert not left, f"serve has ended, and these threads or processes go on: {left}"

    def test_the_address_is_there_from_bind_to_the_end(self) -> None:
        """With `SupportsBind`: `address` is None before `bind`, where it can be reached after, and None once `serve` has ended."""

        async def law() -> None:
            frontend = self.build()
            if not isinstance(frontend, SupportsBind):
                return
            before = frontend.address
            assert before is None, f"before bind the address is {before!r}, expected None"
            async with self._serving(FakeClient(), frontend) as (_, serving):
                await self._settle(frontend, serving)
                served = frontend.address
                assert isinstance(served, str), f"after bind the address is {served!r}, expected text"
            after = frontend.address
            assert after is None, f"after the end of serve the address is {after!r}, expected None"

        asyncio.run(law())

    def test_a_second_bind_does_nothing(self) -> None:
        """With `SupportsBind`: the address of the first `bind` stays."""

        async def law() -> None:
            frontend = self.build()
            if not isinstance(frontend, SupportsBind):
                return
            frontend.bind()
            first = frontend.address
            frontend.bind()
            assert frontend.address == first, f"the second bind moved the frontend from {first} to {frontend.address}"
            async with self._serving(FakeClient(), frontend) as (_, serving):
                await self._settle(frontend, serving)
                assert frontend.address == first, f"serve moved the frontend from {first} to {frontend.address}"

        asyncio.run(law())

    def test_a_busy_address_is_named(self) -> None:
        """With `SupportsBind`: an address that is taken makes `bind` raise an OSError that names it."""

        async def law() -> None:
            frontend = self.build()
            if not isinstance(frontend, SupportsBind):
                return
            async with self._serving(FakeClient(), frontend):
                address = str(frontend.address)
                if (options := self.options_at(address)) is None:
                    pytest.skip("this law needs `options_at`: override it with the options that take one address")
                second = type(type(self).__name__, (type(self),), {"options": options})().build()
                try:
                    second.bind()
                except OSError as error:
                    said = str(error)
                else:
                    raise AssertionError(f"a second frontend took {address}, which was taken already")
                place = address.rpartition("://")[2].rstrip("/")
                assert place in said, f"the OSError for the busy address {address} says {said!r}; expected it to name {place}"

        asyncio.run(law())

    # -- requests --------------------------------------------------------------------------------------------------

    def test_a_whole_answer_arrives(self) -> None:
        """What the engine says piece by piece arrives whole."""

        async def law(client: FakeClient, ask: _Ask, serving: _Serving) -> None:
            got = await ask("first words")
            assert got == self.reply, f"the engine said {self.reply!r}, the caller heard {got!r}"

        self._asking(law)

    def test_text_of_any_script_goes_both_ways(self) -> None:
        """What a caller asks reaches the engine, and what the engine says the caller, character by character."""

        async def law(client: FakeClient, ask: _Ask, serving: _Serving) -> None:
            client.reply = None
            for text in ("second", "ü 世 🙂"):
                got = await ask(text)
                assert text in got, f"the engine repeats the prompt; to {text!r} the caller heard {got!r}"

        self._asking(law)

    def test_callers_get_their_own_answers(self) -> None:
        """Several callers at once hear each what was said to them."""

        async def law(client: FakeClient, ask: _Ask, serving: _Serving) -> None:
            client.reply, client.step_seconds = None, 0.001
            texts = [f"caller {letter}" for letter in "abcdefgh"]
            answers = await asyncio.gather(*map(ask, texts))
            wrong = [(text, answer) for text, answer in zip(texts, answers, strict=True) if text not in answer or answer.count("caller") > 1]
            assert not wrong, f"the engine repeats prompts; {wrong[0][0]!r} was answered with {wrong[0][1]!r}"

        self._asking(law)

    def test_a_caller_that_leaves_ends_its_request(self) -> None:
        """When the caller is gone the request's generator is closed, so that nothing is computed for nobody; others are answered."""

        async def law(client: FakeClient, ask: _Ask, serving: _Serving) -> None:
            client.endless, client.step_seconds = True, _TURNS
            asking = asyncio.create_task(ask("never mind"))
            await self._until(lambda: bool(client.alive), "a request never reached the engine")
            await asyncio.sleep(4 * _TURNS)
            asking.cancel()
            await asyncio.wait({asking})
            await self._until(lambda: not client.alive, "the caller has left and its request goes on: close the generator when its caller is gone")
            client.endless = False
            assert await ask("and now") == self.reply, "after a caller had left, the next one was not answered rightly"

        self._asking(law)

    def test_a_fault_ends_its_own_request_only(self) -> None:
        """InvalidRequest, Overloaded, RequestFailed and EngineDead, at the begin of a request or within it, do not end the frontend."""

        async def law(client: FakeClient, ask: _Ask, serving: _Serving) -> None:
            for fault, at in _faults():
                client.error, client.fail_at = fault, at
                await asyncio.wait({asyncio.create_task(ask("fail"))})
                client.error = client.fail_at = None
                named = type(fault).__name__
                assert not serving.done(), f"{named} of one request ended the frontend"
                assert not client.alive, f"after {named} the request is still open"
                got = await ask("and now")
                assert got == self.reply, f"after {named} of one request the next one heard {got!r}, expected {self.reply!r}"

        self._asking(law)

    def test_a_fault_is_told(self) -> None:
        """A caller whose request fails can tell that from an answer, whole or cut."""

        async def law(client: FakeClient, ask: _Ask, serving: _Serving) -> None:
            for client.error, client.fail_at in _faults():
                try:
                    got = await ask("fail")
                except TimeoutError as waits:
                    raise AssertionError(f"after {client.error!r} the caller waits for ever") from waits
                except Exception as told:  # in whatever way
                    got = f"told: {told}"
                assert not self.reply.startswith(got), f"after {client.error!r} the caller hears {got!r}, which looks like an answer"

        self._asking(law)

    def test_the_client_is_used_on_the_loop_of_serve(self) -> None:
        """Every request is made on the event loop on which `serve` runs."""

        async def law(client: FakeClient, ask: _Ask, serving: _Serving) -> None:
            await ask("where")
            assert client.loops == {asyncio.get_running_loop()}, "a request came from another event loop than that of serve"

        self._asking(law)

    # -- how a frontend is driven ----------------------------------------------------------------------------------

    @property
    def _can_ask(self) -> bool:
        return type(self).ask is not FrontendKit.ask

    def _asking(self, law: Callable[[FakeClient, _Ask, _Serving], Coroutine[Any, Any, None]]) -> None:
        """Run a law on a frontend that has answered once already."""

        async def main() -> None:
            client = FakeClient(reply=self.reply)
            async with self._serving(client) as (frontend, serving):
                await self._first_answer(frontend, serving)
                await law(client, lambda text: self._ask(frontend, serving, text), serving)

        if not self._can_ask:
            pytest.skip("this law needs `ask`: override it to send one prompt as a caller would")
        asyncio.run(main())

    @asynccontextmanager
    async def _serving(self, client: FakeClient, frontend: Any = None) -> AsyncIterator[tuple[Frontend, _Serving]]:
        """A frontend that serves within the block, and has ended after it."""
        frontend = frontend or self.build()
        if isinstance(frontend, SupportsBind):
            frontend.bind()
        serving: _Serving = asyncio.create_task(frontend.serve(client))
        try:
            await asyncio.sleep(0)
            yield frontend, serving
        finally:
            serving.cancel()
            await asyncio.wait({serving}, timeout=self.seconds)
        assert serving.done(), f"serve was cancelled {self.seconds:g} s ago and goes on"
        fault = None if serving.cancelled() else serving.exception()
        assert fault is None, f"serve ended with {fault!r}, expected it to return"

    async def _settle(self, frontend: Any, serving: _Serving) -> None:
        """Let it come to serve, and go on for a moment."""
        if self._can_ask:
            await self._first_answer(frontend, serving)
        await asyncio.sleep(10 * _TURNS)

    async def _first_answer(self, frontend: Frontend, serving: _Serving) -> None:
        """A frontend without `bind` takes a moment until it can be reached."""
        end = time.monotonic() + self.seconds
        while True:
            try:
                await self._ask(frontend, serving, "ready?")
                return
            except OSError:
                if isinstance(frontend, SupportsBind) or serving.done() or time.monotonic() > end:
                    raise
                await asyncio.sleep(_TURNS)

    async def _ask(self, frontend: Frontend, serving: _Serving, text: str) -> str:
        try:
            return await asyncio.wait_for(self.ask(frontend, text), self.seconds)
        except TimeoutError as error:
            raise TimeoutError(f"ask(frontend, {text!r}) has no answer after {self.seconds:g} s (seconds)") from error

    async def _until(self, holds: Callable[[], bool], otherwise: str) -> None:
        end = time.monotonic() + self.seconds
        while not holds():
            assert time.monotonic() < end, f"{otherwise} (waited {self.seconds:g} s)"
            await asyncio.sleep(_TURNS)


_Serving = asyncio.Task[None]
_Ask = Callable[[str], Coroutine[Any, Any, str]]


def _faults() -> list[tuple[Exception, int]]:
    return [(error, at) for error in _ERRORS for at in (0, 2)]
