"""Patient callers at a full queue: in their order, without looking again and again, and nobody is forgotten."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace

import pytest
from engine_stand_in import StandIn, client_of

from corekit.api import EngineDead, Prompt, SamplingParams


async def ask(client, size=1, name=None):
    prompt = Prompt(token_ids=(65,) * size)
    return [output async for output in client.generate(prompt, SamplingParams(max_tokens=3), request_id=name, patient=True)]


def counted(client) -> list[int]:
    """The prompt sizes of all looks at the queue."""
    looks: list[int] = []
    room = client._room

    def counting(queue, num_tokens):
        looks.append(num_tokens)
        room.check(queue, num_tokens)

    client._room = SimpleNamespace(check=counting)
    return looks


async def in_order(client, sizes):
    tasks = []
    for at, size in enumerate(sizes):
        tasks.append(asyncio.create_task(ask(client, size, str(at))))
        await asyncio.sleep(0)
    return tasks


def test_a_long_prompt_keeps_its_place_before_shorter_ones():
    engine = StandIn(seats=1)
    client = client_of(engine, tokens=50)
    sizes = [20, 20, 45, *[1] * 20]

    async def main():
        tasks = await in_order(client, sizes)
        client.start()
        await asyncio.wait_for(asyncio.gather(*tasks), 20)

    asyncio.run(main())
    client.close()
    assert engine.started == [str(at) for at in range(len(sizes))]


def test_who_waits_costs_nothing():
    engine = StandIn(seats=4, step_seconds=0.01)
    client = client_of(engine, queued=1)
    looks = counted(client)

    async def main():
        client.start()
        await asyncio.wait_for(asyncio.gather(*[ask(client) for _ in range(100)]), 20)

    asyncio.run(main())
    client.close()
    assert len(engine.started) == 100
    assert len(looks) <= 100 + engine.num_steps


def test_the_first_may_go_away():
    engine = StandIn(seats=1)
    client = client_of(engine, queued=1)

    async def main():
        tasks = await in_order(client, [1] * 5)
        await asyncio.sleep(0.01)
        tasks[1].cancel()
        tasks[3].cancel()
        client.start()
        await asyncio.wait_for(asyncio.wait(tasks), 20)

    asyncio.run(main())
    client.close()
    assert engine.started == ["0", "2", "4"]


def test_a_loop_that_closed_in_line_holds_up_nobody():
    engine = StandIn(seats=1)
    client = client_of(engine, queued=1)
    loop = asyncio.new_event_loop()
    loop.set_exception_handler(lambda *_: None)  # it says that a task was left behind
    task = None

    async def leave_behind():
        nonlocal task
        task = asyncio.ensure_future(ask(client, name="gone"))
        await asyncio.sleep(0.01)

    async def main():
        first = asyncio.create_task(ask(client, name="first"))
        await asyncio.sleep(0.01)
        await asyncio.to_thread(loop.run_until_complete, leave_behind())
        loop.close()
        last = asyncio.create_task(ask(client, name="last"))
        client.start()
        await asyncio.wait_for(asyncio.gather(first, last), 20)

    asyncio.run(main())
    client.close()
    assert engine.started == ["first", "last"]
    assert task is not None
    task.get_coro().close()


@pytest.mark.parametrize("started", [False, True])
def test_the_end_of_the_engine_is_told_to_all(started):
    client = client_of(StandIn(seats=1, step_seconds=0.01), queued=1)

    async def main():
        if started:
            client.start()
        tasks = await in_order(client, [1] * 5)
        await asyncio.sleep(0.005)
        await asyncio.to_thread(client.close)
        return await asyncio.wait_for(asyncio.gather(*tasks, return_exceptions=True), 20)

    assert [type(result) for result in asyncio.run(main())[-3:]] == [EngineDead] * 3
