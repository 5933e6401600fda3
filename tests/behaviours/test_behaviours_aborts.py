"""Aborts in every state, clients that leave, and names: on the whole engine with both executors, by steps and by HTTP."""

from __future__ import annotations

import asyncio
import random
from concurrent.futures import ThreadPoolExecutor
from contextlib import aclosing
from typing import Any

import httpx
import pytest
from behaviours_rig import ASCII, EXECUTORS, Answer, Job, ask, build, engine, eventually, greedy, served, until

from corekit.api import InvalidRequest, Prompt, SamplingParams
from corekit.builtin.fingerprint import solo
from corekit.engine.engine import Engine
from corekit.engine.request import NewRequest

GREEDY = SamplingParams(temperature=0, max_tokens=12, ignore_eos=True)
COMPLETIONS = "/v1/completions"

# -- by steps: nothing runs beside the test, so every moment is met


PROMPTS = {"one": ("first prompt", 1), "it": ("the one that goes, longer than a step", 3), "other": ("and a third one that is long too", 2)}
EXPECTED = {name: solo(prompt.encode(), max_tokens=12, options=ASCII) for name, (prompt, _) in PROMPTS.items()}


def submit(engine: Engine, name: str) -> None:
    prompt, n = PROMPTS[name]
    params = SamplingParams(temperature=0, n=n, max_tokens=12)
    engine.submit(NewRequest(request_id=name, token_ids=tuple(prompt.encode()), params=params, max_tokens=12, seed=0, end_ids=(), arrival_time=0.0))


def abort_after(engine: Engine, num_steps: int, sample: int | None) -> tuple[set[tuple[str, bool, bool]], dict[tuple[str, int], str]]:
    """(states that the abort met as (state, in flight, has answered), reasons by sample)."""
    states: set[tuple[str, bool, bool]] = set()
    tokens: dict[tuple[str, int], list[int]] = {}
    ends: dict[tuple[str, int], str] = {}
    for name in PROMPTS:
        submit(engine, name)
    for count in range(500):
        if engine.idle:
            break
        if count == num_steps:
            group = engine.scheduler.groups.get("it")
            states = {(r.state.value, r.steps_in_flight > 0, r.num_output_tokens > 0) for r in (group.samples if group else ()) if sample in (None, r.sample)}
            if not count and sample != 2:
                states = {("sent", False, False)}
            engine.abort("it", sample=sample)
        for delta in engine.step():
            key = delta.request_id, delta.sample
            assert key not in ends, "news after the end"
            tokens.setdefault(key, []).extend(delta.token_ids)
            if delta.finish_reason:
                ends[key] = delta.finish_reason
    assert engine.idle and engine.audit() == []
    for key, reason in ends.items():
        assert tuple(tokens[key]) == EXPECTED[key[0]][: len(tokens[key])]
        assert reason == "abort" or (reason, len(tokens[key])) == ("length", 12)
    return states, ends


@pytest.mark.parametrize("executor", EXECUTORS)
@pytest.mark.parametrize(("blocks", "sample"), [(14, None), (64, 0), (64, 2)])
def test_an_abort_at_every_step_touches_nobody_else(executor: str, blocks: int, sample: int | None) -> None:
    """Queued, in the middle of a prefill, decoding, preempted, with tokens on their way: after any number of steps."""
    assembly = build(executor, blocks=blocks, budget=12, seats=6)
    met = set()
    for num_steps in range(28):
        states, ends = abort_after(assembly.engine, num_steps, sample)
        met |= states
        aborted = {key for key, reason in ends.items() if reason == "abort"}
        assert {("one", 0), ("other", 0), ("other", 1)} <= ends.keys() - aborted
        assert aborted <= {("it", n) for n in range(3) if sample in (None, n) or not any(state[2] for state in states)}
        assert bool(aborted) == any(state != "finished" for state, _, _ in states)
    assembly.close()
    assert any(state == "running" and answered for state, _, answered in met)
    if blocks == 14:
        assert any(state == "preempted" for state, _, _ in met)
    if sample == 2:  # it appears when the prefill commits
        return
    assert {("waiting", False, False)} < met
    if executor == "delayed":
        assert ("running", True, True) in met and ("running", True, False) in met, "no token was between its step and its commit"


# -- by the client


@pytest.mark.parametrize("executor", EXECUTORS)
@pytest.mark.parametrize("n", [1, 3])
def test_an_abort_in_the_middle_of_a_prefill_of_50_chunks(executor: str, n: int) -> None:
    """The neighbour goes on; of the prefill no chunk is computed after the next step or two."""
    with engine(executor, model="scripted", budget=9, texts=("ab" * 40,), step_seconds=0.004) as assembly:
        stats = assembly.client.stats

        async def body() -> tuple[Answer, int]:
            neighbour = asyncio.create_task(ask(assembly, Job("Q", SamplingParams(temperature=0, max_tokens=60))))
            await until(lambda: stats().num_running == 1)
            params = SamplingParams(temperature=0, max_tokens=40, n=n)
            task = asyncio.create_task(ask(assembly, Job("p" * 400, params)))
            await until(lambda: stats().num_running == 2)
            begun = stats().num_steps
            await until(lambda: stats().num_steps >= begun + 5)
            task.cancel()
            left = stats().num_steps
            await until(lambda: stats().num_running == 1)
            gone = stats().num_steps
            assert not neighbour.done()
            return (await neighbour)[0], gone - left

        answer, num_steps = asyncio.run(body())
        assert answer.text == ("ab" * 40)[:60]
        assert num_steps <= 3
        assert stats().num_finished == {"length": 1, "abort": 1}


@pytest.mark.parametrize("executor", EXECUTORS)
def test_text_that_is_held_back_comes_out_at_an_abort(executor: str) -> None:
    with engine(executor, model="scripted", texts=("Mars?\n" + "!" * 60,), step_seconds=0.004) as assembly:

        async def body() -> Answer:
            answer, aborted = Answer(), False
            async with aclosing(
                assembly.client.generate(Prompt(text="Q"), SamplingParams(temperature=0, max_tokens=60, stop="\n!!!!!x"), request_id="a")
            ) as news:
                async for output in news:
                    for piece in output.outputs:
                        answer.ids += piece.token_ids
                        answer.text += piece.text
                        answer.reason = piece.finish_reason
                    if not aborted and 6 <= len(answer.ids) <= 11:  # on a busy machine news come together
                        assert answer.text == "Mars?"
                        aborted = assembly.client.abort("a")
            return answer

        answer = asyncio.run(body())
        assert answer.reason == "abort"
        assert answer.text == bytes(answer.ids).decode()


@pytest.mark.parametrize("executor", EXECUTORS)
def test_one_name_at_a_time_and_again_at_once(executor: str) -> None:
    """The second is refused by name, the first unharmed; after an abort the name is free and outputs do not mix."""
    rng = random.Random(3)
    with engine(executor, seats=4, blocks=20) as assembly:

        async def body() -> None:
            first = asyncio.create_task(ask(assembly, Job("first", GREEDY), request_id="same"))
            await asyncio.sleep(0)
            with pytest.raises(InvalidRequest, match="'same' is in use") as refused:
                await ask(assembly, Job("second", GREEDY), request_id="same")
            assert refused.value.field == "request_id"
            assert (await first)[0].ids == greedy("first", 12)
            for turn in range(20):
                old = asyncio.create_task(ask(assembly, Job(f"old {turn}", GREEDY), request_id="same"))
                await asyncio.sleep(rng.random() * 0.01)
                assembly.client.abort("same")
                answer = (await ask(assembly, Job(f"new {turn}", GREEDY), request_id="same"))[0]
                assert (answer.ids, answer.reason) == (greedy(f"new {turn}", 12), "length")
                (ended,) = await old
                assert ended.reason in ("abort", "length")
                assert ended.ids == greedy(f"old {turn}", 12)[: len(ended.ids)]

        asyncio.run(body())


# -- by HTTP


def leave(http: httpx.Client, after, fields: dict) -> None:
    """Send, wait for `after()`, and close the connection."""

    async def go() -> None:
        async with httpx.AsyncClient(base_url=http.base_url, timeout=20, verify=False) as client:
            task = asyncio.create_task(client.post(COMPLETIONS, json={"model": "scripted", "prompt": "Q", "temperature": 0, **fields}))
            await until(after)
            assert not task.done()
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)

    asyncio.run(go())


LEAVING: list[dict[str, Any]] = [{"stream": True}, {}, {"prompt": "p" * 400}, {"n": 3}, {"prompt": "p" * 400, "n": 3, "stream": True}]


@pytest.mark.parametrize("executor", EXECUTORS)
def test_a_client_that_leaves_stops_the_work(executor: str) -> None:
    """At the fifth step of at least fifty: the rest is not computed."""
    with served(executor, model="scripted", budget=8, texts=("x" * 300,), step_seconds=0.01) as (http, assembly):
        stats = assembly.client.stats
        for num_left, fields in enumerate(LEAVING, 1):
            begun = stats().num_steps
            leave(http, lambda begun=begun: stats().num_steps >= begun + 5, {"max_tokens": 100, **fields})
            assert eventually(lambda: assembly.engine.idle)
            assert stats().num_steps <= begun + 15, fields
            assert stats().num_finished == {"abort": num_left}


@pytest.mark.parametrize(("executor", "streaming"), [("in-process", True), ("delayed", False)])
def test_a_queued_request_whose_client_left_never_runs(executor: str, streaming: bool) -> None:
    """The model would raise on its prompt."""
    with served(executor, model="scripted", seats=1, texts=("x" * 40,), raise_on=ord("y"), step_seconds=0.01) as (http, assembly), ThreadPoolExecutor() as pool:
        stats = assembly.client.stats
        long = pool.submit(http.post, COMPLETIONS, json={"model": "scripted", "prompt": "Q", "temperature": 0, "max_tokens": 40})
        assert eventually(lambda: stats().num_running == 1)
        leave(http, lambda: stats().num_waiting == 1, {"prompt": "y" * 30, "stream": streaming})
        assert eventually(lambda: stats().num_waiting == 0, 0.3)
        assert not long.done()
        assert eventually(lambda: stats().num_finished.get("abort") == 1, 0.3)
        assert long.result().json()["choices"][0]["text"] == "x" * 40
        assert "error" not in stats().num_finished
