"""Logits processors on a whole engine: when they are started and asked, whose fault a fault is, and that steps in flight change nothing."""

from __future__ import annotations

import asyncio
import itertools
import threading
import time

import pytest
from world import Setting, World

from corekit.api import EngineDead, InvalidRequest, NewSample, Prompt, RequestFailed, SamplingParams
from corekit.compose.assemble import assemble

EXECUTORS = pytest.mark.parametrize(("executor", "depth"), [("in-process", 1), ("delayed", 3)])
TEXT = b"abcabcabc"


class Row:
    """Bans the ids that `banned` names after so many accepted ones; raises where it is told to."""

    def __init__(self, banned, raises: str = "") -> None:
        self._banned = banned
        self._raises = raises
        self.accepted: list[int] = []

    def accept(self, token_ids) -> None:
        self.accepted += token_ids
        if self._raises == "accept" and len(self.accepted) >= 3:
            raise ValueError("accept is broken")

    def rollback(self, count: int) -> None:
        raise AssertionError("nothing was accepted in vain")

    def fill(self, mask_row: memoryview) -> None:
        if self._raises == "fill" and len(self.accepted) == 2:
            raise ValueError("fill is broken")
        for id in self._banned(self.accepted):
            mask_row[id // 32] &= ~(1 << id % 32)


class Processor:
    """Constrains requests whose prompt begins with "!"; the others are left alone."""

    def __init__(self, banned=lambda accepted: (), *, raises: str = "", start=None) -> None:
        self.rows: dict[tuple[str, int], Row] = {}
        self._banned, self._raises, self._start = banned, raises, start

    def start(self, sample: NewSample) -> Row | None:
        assert threading.current_thread() is not threading.main_thread()
        if sample.token_ids[0] != ord("!"):
            return None
        if self._start is not None:
            self._start()
        row = self.rows[sample.request_id, sample.sample] = Row(self._banned, self._raises)
        return row


def run(executor: str, depth: int, processors, body, **options):
    """`body(client)` on a scripted engine; then everything has come back."""
    config = {
        "model": {"source": "none", "use": "scripted", "options": {"texts": [TEXT.decode()], **options}, "max_model_len": 128},
        "engine": {"device": "cpu", "threads": 1},
        "tokenizer": {"use": "bytes"},
        "scheduler": {"max_num_seqs": 8, "max_num_batched_tokens": 64},
        "block_allocator": {"num_blocks": 32, "block_size": 4, "stack": ["free-list"]},
        "executor": {"use": executor, "options": {"depth": depth} if executor == "delayed" else {}},
    }
    assembly = assemble(config, frontends=(), logits_processors=processors, environ={})

    async def main():
        return await asyncio.wait_for(body(assembly.client), 30)

    with assembly:
        result = asyncio.run(main())
        deadline = time.monotonic() + 10
        while not assembly.engine.idle and time.monotonic() < deadline:
            time.sleep(0.002)
    assert assembly.engine.audit() == []
    return result


async def ask(client, text: str, **params) -> dict[int, bytes]:
    found: dict[int, bytes] = {}
    async for output in client.generate(Prompt(text=text), SamplingParams(**{"temperature": 0.0, "max_tokens": 9, "ignore_eos": True, **params})):
        for part in output.outputs:
            found[part.index] = found.get(part.index, b"") + bytes(part.token_ids)
    return found


@EXECUTORS
def test_a_constraint_hears_every_token_before_the_next_is_drawn(executor, depth):
    """What may come depends on all that came: with steps in flight a late mask would let the same letter through twice."""
    processor = Processor(lambda accepted: accepted[-1:])

    async def both(client):
        banned = (256,)  # no byte
        return await asyncio.gather(
            ask(client, "!x", banned_token_ids=banned),
            ask(client, "x", banned_token_ids=banned),
            ask(client, "!x", n=3, temperature=1.0, banned_token_ids=banned),
        )

    constrained, free, several = run(executor, depth, [processor], both, random=True)
    answers = [constrained[0], *several.values()]
    assert [len(answer) for answer in [*answers, free[0]]] == [9] * 5
    assert all(a != b for answer in answers for a, b in itertools.pairwise(answer))
    assert sorted(bytes(row.accepted) for row in processor.rows.values()) == sorted(answers)


@EXECUTORS
def test_several_processors_forbid_together(executor, depth):
    first, second = Processor(lambda accepted: map(ord, "a")), Processor(lambda accepted: map(ord, "b"))

    async def one(client):
        return await ask(client, "!x")

    answer = run(executor, depth, [first, second], one)[0]
    assert not set(b"ab") & set(answer)
    assert len(answer) == 9


@EXECUTORS
@pytest.mark.parametrize("raises", ["accept", "fill"])
def test_a_fault_ends_its_own_request(executor, depth, raises):
    async def both(client):
        neighbour = asyncio.create_task(ask(client, "x"))
        with pytest.raises(RequestFailed, match=rf"Row\.{raises} raised ValueError: {raises} is broken"):
            await ask(client, "!x", n=2)
        return await neighbour

    assert run(executor, depth, [Processor(raises=raises)], both) == {0: TEXT}


@EXECUTORS
def test_nothing_left_to_draw_ends_its_own_request(executor, depth):
    async def both(client):
        neighbour = asyncio.create_task(ask(client, "x"))
        with pytest.raises(RequestFailed, match=r"nothing|left"):
            await ask(client, "!x")
        return await neighbour

    assert run(executor, depth, [Processor(lambda accepted: range(257) if len(accepted) == 3 else ())], both) == {0: TEXT}


def test_a_start_may_refuse_or_fail():
    def refuse():
        raise InvalidRequest("this grammar is none", field="grammar")

    def fail():
        raise KeyError("broken")

    async def one(client):
        await ask(client, "!x")

    with pytest.raises(InvalidRequest, match="this grammar is none"):
        run("in-process", 1, [Processor(start=refuse)], one)
    with pytest.raises(RequestFailed, match=r"Processor\.start raised KeyError: 'broken'"):
        run("in-process", 1, [Processor(start=fail)], one)


def test_a_slow_start_holds_nobody_up_and_may_be_left():
    go = threading.Event()

    async def one(client):
        slow = asyncio.create_task(ask(client, "!x"))
        assert await ask(client, "x") == {0: TEXT}
        assert not slow.done()
        slow.cancel()
        with pytest.raises(asyncio.CancelledError):
            await slow
        again = asyncio.create_task(ask(client, "!x"))
        go.set()
        return await again

    assert run("in-process", 1, [Processor(start=lambda: go.wait(20))], one) == {0: TEXT}


def test_many_slow_starts_hold_no_tokenizer_up():
    """Long texts are encoded in threads too; they must not stand in line behind forty grammars."""
    go = threading.Event()

    async def many(client):
        slow = [asyncio.create_task(ask(client, "!x", max_tokens=1)) for _ in range(40)]
        try:
            with pytest.raises(InvalidRequest, match="context"):
                await asyncio.wait_for(ask(client, "x" * 2000), 10)
            assert await asyncio.wait_for(ask(client, "x"), 10) == {0: TEXT}
        finally:
            go.set()
        await asyncio.gather(*slow)

    run("in-process", 1, [Processor(start=lambda: go.wait(20))], many)


def test_a_closed_engine_prepares_nothing_and_keeps_no_threads():
    go, begun = threading.Event(), threading.Event()

    def start():
        begun.set()
        go.wait(20)

    async def one(client):
        slow = asyncio.create_task(ask(client, "!x"))
        await asyncio.to_thread(begun.wait, 10)
        client.close()
        go.set()
        with pytest.raises(EngineDead, match="the engine was closed"):
            await slow
        with pytest.raises(EngineDead, match="the engine was closed"):
            await client._starter.start("late", (1,), SamplingParams())

    run("in-process", 1, [Processor(start=start)], one)
    deadline = time.monotonic() + 10
    while any(thread.name.startswith("corekit-start") for thread in threading.enumerate()) and time.monotonic() < deadline:
        time.sleep(0.002)
    assert time.monotonic() < deadline


def test_a_prompt_that_draws_nothing_yet_waits_for_no_token():
    """Masks follow from every token before them; a chunk that draws none needs no mask, and steps stay in flight."""
    world = World(Setting(depth=3, max_num_batched_tokens=2))
    world.ask(range(12), max_tokens=3, constrained=True)
    world.step()
    world.step()
    assert len(world.engine._flights) == 2
    world.finish()


def test_parts_are_named_in_tables_too():
    """A provider's name in `[[logits_processor]]` reaches the engine."""
    from corekit.api import Provider
    from corekit.compose.catalog import Candidate, build_catalog
    from corekit.compose.discovery import Plugin, discover

    provider = Provider(name="no-a", api=1, summary="never says a", build=lambda context, options: Processor(lambda accepted: map(ord, "a")))
    here = Candidate(slot="logits_processor", provider=provider, plugin=Plugin(distribution="here", version="", entry="", module=""))
    config = {"model": {"source": "none", "use": "scripted", "options": {"texts": [TEXT.decode()]}}, "logits_processor": [{"use": "no-a"}], "frontend": []}
    assembly = assemble(config, catalog=build_catalog(discover(), [here]), environ={})

    async def main():
        return await ask(assembly.client, "!x")

    with assembly:
        assert b"a" not in asyncio.run(main())[0]
    assert "no-a" in {part.name for part in assembly.parts}
