"""A reset of the prefix cache, on the whole engine: what came before is not found, nothing else changes, and whoever waits hears the end."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from corekit.api import EngineDead, Overloaded, Prompt, Provider, RequestFailed, SamplingParams
from corekit.builtin.free_list import FreeList
from corekit.compose.assemble import assemble
from corekit.compose.pending import PendingClient
from corekit.testing.fake_client import FakeClient
from corekit.testing.prefix_cache import PlainPrefixCache

PREFIX = "a prefix of several blocks, the same for all; "
CACHED = ["lru-prefix", "free-list"]
PARKS = {"stack": ["cpu-swap", "lru-prefix", "free-list"], "options": {"cpu-swap": {"num_host_blocks": 64}}}


def engine(executor: str = "in-process", blocks: int = 64, preemption: str = "auto", **allocator: Any) -> dict[str, Any]:
    return {
        "model": {"source": "none", "use": "fingerprint", "max_model_len": 128},
        "engine": {"device": "cpu", "threads": 1},
        "tokenizer": {"use": "bytes"},
        "scheduler": {"max_num_seqs": 4, "max_num_batched_tokens": 32, "preemption": preemption},
        "block_allocator": {"num_blocks": blocks, "block_size": 4, "stack": CACHED, **allocator},
        "executor": {"use": executor},
        "frontend": [],
    }


async def ask(client: Any, text: str, max_tokens: int = 4) -> tuple[tuple[int, ...], int]:
    """The ids of the answer, and how much of the prompt was cached."""
    ids: tuple[int, ...] = ()
    cached = 0
    async for output in client.generate(Prompt(text=PREFIX + text), SamplingParams(temperature=0, max_tokens=max_tokens, ignore_eos=True)):
        ids += output.outputs[0].token_ids
        cached = output.num_cached_tokens
    return ids, cached


@pytest.mark.parametrize("executor", ["in-process", "delayed"])
def test_what_came_before_is_not_found(executor: str) -> None:
    async def body(client: Any) -> None:
        first, cached = await ask(client, "x")
        assert cached == 0
        again, cached = await ask(client, "x")
        assert (again, cached) == (first, 44)
        before = client.stats()
        assert await client.reset_prefix_cache() == before.memory.num_idle > 0
        assert await client.reset_prefix_cache() == 0
        assert await ask(client, "x") == (first, 0)
        assert await ask(client, "x") == (first, 44), "what is computed afterwards is cached as ever"
        memory = client.stats().memory
        assert memory.num_free + memory.num_idle == before.num_blocks

    with assemble(engine(executor), environ={}, progress=False) as assembly:
        asyncio.run(asyncio.wait_for(body(assembly.client), 30))
    assert assembly.engine.audit() == []


@pytest.mark.parametrize("executor", ["in-process", "delayed"])
@pytest.mark.parametrize("parks", [False, True])
def test_requests_under_way_answer_the_same(executor: str, parks: bool) -> None:
    """In a pool that is too small for them, with a reset again and again; parked ones come back."""

    async def body(client: Any, resets: bool) -> list[tuple[int, ...]]:
        asked = asyncio.gather(*(ask(client, text * 3, 24) for text in "abcdef"))
        count = 0
        while resets and not asked.done():
            await client.reset_prefix_cache()
            count += 1
        answers = [ids for ids, _ in await asked]
        assert count > 5 or not resets
        assert client.stats().num_preemptions, "the pool is too large to prove anything"
        assert not parks or client.stats().num_swap_preemptions
        return answers

    found = []
    for resets in (False, True):
        tables = engine(executor, blocks=28, preemption="swap" if parks else "recompute", **(PARKS if parks else {}))
        with assemble(tables, environ={}, progress=False) as assembly:
            found.append(asyncio.run(asyncio.wait_for(body(assembly.client, resets), 60)))
        assert assembly.engine.audit() == []
    assert found[0] == found[1]


def test_without_a_prefix_cache_there_is_nothing_to_forget() -> None:
    with assemble(engine(stack=["free-list"]), environ={}, progress=False) as assembly:
        assert asyncio.run(assembly.client.reset_prefix_cache()) == 0


def test_a_layer_that_cannot_forget_is_named_and_nothing_happens() -> None:
    class Old:
        prefix_cache = True

        def __init__(self, inner: Any) -> None:
            self.inner = inner
            for name in ("take", "give", "find", "hold", "publish", "stats"):
                setattr(self, name, getattr(inner, name))

        @property
        def available(self) -> int:
            return int(self.inner.available)

    old: Provider[Any] = Provider(
        name="old", api=1, summary="a layer from before", build=lambda context, options: Old(PlainPrefixCache(FreeList(context.num_blocks or 0)))
    )

    async def body(client: Any) -> None:
        first, _ = await ask(client, "x")
        with pytest.raises(RequestFailed, match="Old, the top of the allocator stack, has no forget"):
            await client.reset_prefix_cache()
        assert await ask(client, "x") == (first, 44)

    with assemble(engine(), block_allocator=old, environ={}, progress=False) as assembly:
        asyncio.run(asyncio.wait_for(body(assembly.client), 30))


def test_whoever_waits_hears_of_the_end_and_whoever_left_harms_nobody() -> None:
    async def body(assembly: Any) -> None:
        client = assembly.client
        waiting = [asyncio.create_task(client.reset_prefix_cache()) for _ in range(3)]
        await asyncio.sleep(0)
        waiting[0].cancel()
        await asyncio.wait(waiting)
        assert [task.cancelled() or task.result() for task in waiting] == [True, 0, 0]
        assert (await ask(client, "x"))[1] == 0
        assembly.close()
        with pytest.raises(EngineDead):
            await client.reset_prefix_cache()

    with assemble(engine(), environ={}, progress=False) as assembly:
        asyncio.run(asyncio.wait_for(body(assembly), 30))


def test_an_engine_that_never_ran_answers_when_it_is_closed() -> None:
    async def body() -> None:
        assembly = assemble(engine(), environ={}, progress=False)
        waiting = asyncio.create_task(assembly.client.reset_prefix_cache())
        await asyncio.sleep(0.01)
        assembly.close()
        with pytest.raises(EngineDead):
            await waiting

    asyncio.run(asyncio.wait_for(body(), 30))


def test_while_it_loads() -> None:
    async def body() -> None:
        there = FakeClient()
        client = PendingClient(there.model, there.tokenizer)
        with pytest.raises(Overloaded, match="still loading"):
            await client.reset_prefix_cache()
        client.become(there)
        assert await client.reset_prefix_cache() == 2
        assert there.num_resets == 1

    asyncio.run(body())
