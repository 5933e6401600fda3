"""AsyncLLM on models without weights: streams, aborts, many tasks and loops, and the end."""

from __future__ import annotations

import asyncio
import gc
import threading
import time
from contextlib import aclosing, closing, suppress

import pytest

from corekit.api import EngineDead, InvalidRequest, Prompt, RequestFailed, SamplingParams
from corekit.llm import LLM, AsyncLLM

GREEDY = SamplingParams(temperature=0.0, max_tokens=8)
ENDLESS = SamplingParams(temperature=0.0, max_tokens=200, ignore_eos=True)

# The first byte of a prompt chooses the script: chr(99) alpha, chr(100) beta, chr(101) gamma.


def scripted(*, options=None, make=AsyncLLM, **given):
    model = {"use": "scripted", "options": {"texts": ["alpha", "beta", "gamma"], **(options or {})}}
    given = {"max_model_len": 256, "max_num_seqs": 4, "num_blocks": 256, "block_size": 4, "stack": ["free-list"], "threads": 1, **given}
    return make("none", config={"model": model, "tokenizer": {"use": "bytes"}}, **given)


@pytest.fixture(scope="module")
def llm():
    made = scripted()
    yield made
    made.close()


async def text(news) -> str:
    return "".join([output.outputs[0].text async for output in news])


async def settled(llm) -> None:
    """Until the engine has nothing left; every block is free again."""
    async with asyncio.timeout(5):
        while not llm.assembly.engine.idle:
            await asyncio.sleep(0.002)
    stats = llm.assembly.client.stats()
    assert (stats.num_running, stats.num_waiting, stats.num_free_blocks) == (0, 0, stats.num_blocks)
    assert len(llm.assembly.client._streams) == 0


def test_answers_come_in_pieces_that_make_the_whole():
    async def main():
        outputs = [output async for output in llm.generate("c", GREEDY)]
        assert len(outputs) > 1
        assert [output.finished for output in outputs] == [False] * (len(outputs) - 1) + [True]
        assert "".join(output.outputs[0].text for output in outputs) == "alpha"
        assert sum((output.outputs[0].token_ids for output in outputs), ()) == (*b"alpha", 256)
        whole = await llm.answer("c", GREEDY)
        assert (whole.outputs[0].text, whole.outputs[0].finish_reason, whole.finished, whole.prompt) == ("alpha", "stop", True, "c")

    with closing(scripted(options={"step_seconds": 0.1})) as llm:  # slower than a loop that is kept from running for a while
        asyncio.run(main())


def test_it_answers_as_LLM_does(llm):
    hello = [{"role": "c", "content": "hi"}]
    several = SamplingParams(temperature=1.0, seed=3, n=2, logprobs=1, max_tokens=4)

    async def main():
        return [
            await llm.answer("d", several),
            await llm.answer([101, 65], GREEDY),
            await llm.answer(Prompt(token_ids=(101,)), GREEDY),
            await llm.answer(hello),
            await text(llm.chat(hello)),
            await text(llm.generate([101], GREEDY)),
        ]

    got = asyncio.run(main())
    with scripted(make=LLM) as blocking:
        wanted = blocking.generate(["d", [101, 65], Prompt(token_ids=(101,))], [several, GREEDY, GREEDY]) + blocking.chat(hello)
    for one, other in zip(got, wanted, strict=False):
        assert (one.outputs, one.prompt, one.num_prompt_tokens) == (other.outputs, other.prompt, other.num_prompt_tokens)
    assert got[4:] == ["alpha", "gamma"]


@pytest.mark.parametrize(
    ("ask", "said"),
    [
        (lambda llm: llm.generate(5), "prompt must be text, a list of token ids or a Prompt, got int"),
        (lambda llm: llm.generate(["a", "b"]), r"prompt\[0\] must be a token id, got 'a'"),
        (lambda llm: llm.generate("a", {"n": 2}), r"params must be SamplingParams, as in SamplingParams\(max_tokens=3\), got dict"),
        (lambda llm: llm.chat("hello"), "messages must be a list of messages, got str"),
        (lambda llm: llm.chat([{"rol": "user"}]), r"messages\[0\] must be a mapping with a role .*"),
    ],
)
def test_what_is_wrong_is_said_at_the_call(llm, ask, said):
    with pytest.raises(InvalidRequest, match=f"^{said}$"):
        ask(llm)


def test_what_goes_beside_the_parameters_reaches_the_engine(llm):
    seen = []
    submit = llm.assembly.engine.submit
    llm.assembly.engine.submit = lambda new: (seen.append((new.request_id, new.priority, new.tenant, new.deadline)), submit(new))[1]

    async def main():
        asked = {"priority": -2, "tenant": "t", "deadline": 9.5}
        assert {o.request_id async for o in llm.generate("c", GREEDY, request_id="a", **asked)} == {"a"}
        assert {o.request_id async for o in llm.chat([{"role": "c", "content": "x"}], GREEDY, request_id="b", **asked)} == {"b"}
        assert (await llm.answer("c", GREEDY, request_id="c", **asked)).request_id == "c"
        with pytest.raises(InvalidRequest, match="priority must be an integer"):
            await llm.answer("c", GREEDY, priority=2**40)

    try:
        asyncio.run(main())
    finally:
        llm.assembly.engine.submit = submit
    assert seen == [(name, -2, "t", 9.5) for name in "abc"]


@pytest.mark.parametrize("how", ["close", "break", "cancel", "cancel answer"])
def test_whoever_leaves_ends_the_request_within_a_step(how):
    """The model's step takes long enough to count: after the one that runs, one more may have begun, and none after it."""

    async def main(llm):
        client, begun = llm.assembly.client, asyncio.Event()

        async def read():
            async for _ in llm.generate("c", ENDLESS):
                begun.set()

        if how in ("cancel", "cancel answer"):
            reading = asyncio.create_task(read() if how == "cancel" else llm.answer("c", ENDLESS))
            while not client.stats().num_output_tokens:
                await asyncio.sleep(0.001)
            before = client.stats().num_steps
            reading.cancel()
            with suppress(asyncio.CancelledError):
                await reading
        elif how == "close":
            news = llm.generate("c", ENDLESS)
            await anext(news)
            before = client.stats().num_steps
            await news.aclose()
        else:
            async for _ in llm.generate("c", ENDLESS):
                before = client.stats().num_steps
                break
        await settled(llm)
        assert client.stats().num_steps - before <= 3
        assert client.stats().num_finished.get("abort") == 1
        assert (await llm.answer("c", GREEDY)).outputs[0].text == "alpha"

    with_steps = scripted(options={"step_seconds": 0.04})  # a busy machine may keep this thread waiting for a while
    try:
        asyncio.run(main(with_steps))
    finally:
        with_steps.close()


def test_many_tasks_at_once_more_than_the_queue_holds():
    async def main():
        async with scripted(max_queued_requests=3) as llm:
            answers = await asyncio.gather(*(text(llm.generate("cde"[i % 3], GREEDY)) for i in range(60)))
            assert answers == ["alpha", "beta", "gamma"] * 20
            await settled(llm)

    asyncio.run(main())


def test_other_loops_and_threads_use_the_same_one(llm):
    got: dict[str, list[str]] = {}

    async def ask(name):
        got[name] = await asyncio.gather(*(text(llm.generate(name, GREEDY)) for _ in range(10)))

    threads = [threading.Thread(target=lambda name=name: asyncio.run(ask(name))) for name in "cde"]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert got == {"c": ["alpha"] * 10, "d": ["beta"] * 10, "e": ["gamma"] * 10}


def test_a_fault_is_its_requests_own():
    async def main():
        async with scripted(options={"raise_on": ord("!")}) as llm:
            other = asyncio.create_task(text(llm.generate("c", GREEDY)))
            with pytest.raises(RequestFailed, match="scripted to fail"):
                await text(llm.generate("!", ENDLESS))
            assert await other == "alpha"
            await settled(llm)

    asyncio.run(main())


def test_closing_answers_whoever_waits_and_holds_up_no_loop():
    async def main():
        async with scripted(options={"step_seconds": 0.005}, max_num_seqs=2) as llm:
            waiting = [asyncio.create_task(llm.answer("c", ENDLESS)) for _ in range(4)]
            while llm.assembly.client.stats().num_running < 2:
                await asyncio.sleep(0.001)
        results = await asyncio.wait_for(asyncio.gather(*waiting, return_exceptions=True), 5)
        assert all(isinstance(one, EngineDead) or one.outputs[0].finish_reason == "abort" for one in results)
        assert repr(llm) == "<AsyncLLM 'scripted', context 256 tokens, closed>"
        with pytest.raises(EngineDead, match="closed"):
            await anext(llm.generate("c"))
        await llm.aclose()
        llm.close()

    asyncio.run(main())


def test_an_iterator_keeps_its_engine_and_nobody_else_does():
    def engines() -> list[str]:
        return [thread.name for thread in threading.enumerate() if thread.name == "corekit-engine"]

    before = engines()

    async def main():
        news = scripted().generate("c", GREEDY)
        gc.collect()
        async with aclosing(news):
            assert await text(news) == "alpha"
        del news
        deadline = time.monotonic() + 5
        while engines() != before and time.monotonic() < deadline:
            gc.collect()
            await asyncio.sleep(0.01)

    asyncio.run(main())
    assert engines() == before
