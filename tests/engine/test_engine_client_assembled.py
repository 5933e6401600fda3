"""The client on the real engine with the scripted model, on both executors: what callers see, and that nothing is left behind."""

from __future__ import annotations

import asyncio
import time
from contextlib import aclosing

import pytest

from corekit.api import InvalidRequest, Prompt, RequestFailed, SamplingParams
from corekit.compose.assemble import assemble

BOTH = pytest.mark.parametrize("executor", ["in-process", "delayed"])
SCRIPT = [tuple(piece.encode()) for piece in ("alpha", " be", "ta", " gam", "ma", " end")]


def run(executor, body, *, scripts=(), seats=4, blocks=32, block_size=4, max_model_len=128, **options):
    """Run `body(client)`, then the common end: nobody runs or waits, all blocks are free, and a plain request is answered."""
    config = {
        "model": {"source": "none", "use": "scripted", "options": {"scripts": [list(ids) for ids in scripts], **options}, "max_model_len": max_model_len},
        "engine": {"device": "cpu", "threads": 1},
        "tokenizer": {"use": "bytes"},
        "scheduler": {"max_num_seqs": seats, "max_num_batched_tokens": 64},
        "block_allocator": {"num_blocks": blocks, "block_size": block_size, "stack": ["free-list"]},
        "executor": {"use": executor},
    }
    assembly = assemble(config, frontends=(), environ={})

    async def main():
        result = await asyncio.wait_for(body(assembly.client), 30)
        assert ends(await listen(assembly.client, "hi", max_tokens=2)) == {0: "length"}
        return result

    with assembly:
        result = asyncio.run(main())
        deadline = time.monotonic() + 10
        while not assembly.engine.idle and time.monotonic() < deadline:
            time.sleep(0.002)
        stats = assembly.client.stats()
        assert (stats.num_running, stats.num_waiting, stats.num_free_blocks) == (0, 0, stats.num_blocks)
    assert assembly.engine.audit() == []
    return result


async def listen(client, prompt, *, request_id=None, **params):
    prompt = Prompt(text=prompt) if isinstance(prompt, str) else prompt
    return [output async for output in client.generate(prompt, SamplingParams(temperature=0.0, **params), request_id=request_id)]


def joined(outputs, index=0):
    return "".join(o.text for output in outputs for o in output.outputs if o.index == index)


def ids(outputs, index=0):
    return [i for output in outputs for o in output.outputs if o.index == index for i in o.token_ids]


def ends(outputs):
    return {o.index: o.finish_reason for output in outputs for o in output.outputs if o.finish_reason}


async def until(condition):
    while not condition():
        await asyncio.sleep(0.001)


@BOTH
@pytest.mark.parametrize("include", [False, True])
def test_stop_strings_and_overshoot(executor, include):
    outputs = run(
        executor, lambda c: listen(c, "x", max_tokens=60, stop="beta gamma", include_stop_str_in_output=include, logprobs=0), scripts=[sum(SCRIPT, ())]
    )
    assert joined(outputs) == ("alpha beta gamma" if include else "alpha ")
    assert (bytes(ids(outputs)), ends(outputs)) == (b"alpha beta gamma", {0: "stop"})
    assert [lp.token_id for output in outputs for o in output.outputs for lp in o.logprobs] == ids(outputs)


@BOTH
def test_held_text_is_given_out_at_eos_and_at_length(executor):
    script = tuple(b"Mars?\n")

    async def body(client):
        return await listen(client, "x", max_tokens=60, stop="\n\n"), await listen(client, "x", max_tokens=6, stop="\n\n")

    eos, length = run(executor, body, scripts=[script])
    assert (joined(eos), ends(eos), ids(eos)[-1]) == ("Mars?\n", {0: "stop"}, 256)
    assert (joined(length), ends(length)) == ("Mars?\n", {0: "length"})


@BOTH
def test_min_tokens_against_eos_stop_ids_and_stop_strings(executor):
    async def body(client):
        for params in ({}, {"stop_token_ids": (98,)}, {"stop": "b"}, {"stop": "ab"}):
            outputs = await listen(client, "x" * 60, max_tokens=20, min_tokens=5, **params)
            assert 5 <= len(ids(outputs)) <= 20, params
        ignoring = await listen(client, "x", max_tokens=9, ignore_eos=True, min_tokens=3)
        assert (len(ids(ignoring)), ends(ignoring), joined(ignoring)[:2]) == (9, {0: "length"}, "ab")

    run(executor, body, scripts=[tuple(b"ab")])


@BOTH
def test_a_stop_id_ends_ids_text_and_logprobs_alike(executor):
    outputs = run(executor, lambda c: listen(c, "x", max_tokens=20, stop_token_ids=(ord("t"),), logprobs=1), scripts=[sum(SCRIPT, ())])
    assert (joined(outputs), bytes(ids(outputs)), ends(outputs)) == ("alpha bet", b"alpha bet", {0: "stop"})
    last = outputs[-1].outputs[-1]
    assert last.stop_reason == ord("t")
    assert sum(len(o.logprobs) for output in outputs for o in output.outputs) == len(ids(outputs))


@BOTH
def test_characters_are_never_split_or_sent_twice(executor):
    text = "A 世界 é😀b"
    outputs = run(executor, lambda c: listen(c, "x", max_tokens=60), texts=[text])
    assert joined(outputs) == text
    assert all("\ufffd" not in o.text for output in outputs for o in output.outputs)


@BOTH
@pytest.mark.parametrize("n", [1, 3])
@pytest.mark.parametrize("state", ["queued", "prefill", "decoding"])
def test_abort_in_every_state_frees_everything(executor, state, n):
    async def body(client):
        params = SamplingParams(temperature=0.0, max_tokens=40, ignore_eos=True, n=n)
        first = asyncio.create_task(listen(client, "x", max_tokens=40, ignore_eos=True, n=3)) if state == "queued" else None
        await until(lambda: first is None or client.stats().num_running)
        heard = []

        async def hear():
            async with aclosing(client.generate(Prompt(text="y" * 80), params, request_id="it")) as news:
                async for output in news:
                    heard.append(output)

        task = asyncio.create_task(hear())
        await until(
            lambda: {"queued": client.stats().num_waiting, "prefill": client.stats().num_running and client.stats().num_steps, "decoding": heard}[state]
        )
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
        if state == "queued":
            await until(lambda: not client.stats().num_waiting)
            assert not heard
        else:
            await until(lambda: not client.stats().num_running)
        if first is not None:
            assert ends(await first) == {0: "length", 1: "length", 2: "length"}

    run(executor, body, seats=3, step_seconds=0.005, scripts=[tuple(b"long")])


@BOTH
def test_one_id_twice_and_again_right_after_an_abort(executor):
    async def body(client):
        first = asyncio.create_task(listen(client, "x", max_tokens=59, request_id="same"))
        await until(lambda: client.stats().num_running)
        with pytest.raises(InvalidRequest, match="in use"):
            await listen(client, "x", request_id="same")
        assert joined(await first) == ("abc" * 20)[:59]
        for _ in range(5):
            old = asyncio.create_task(listen(client, "x", max_tokens=60, request_id="same"))
            await until(lambda: client.stats().num_running + client.stats().num_waiting)
            assert client.abort("same")
            assert joined(await listen(client, "x", max_tokens=3, request_id="same")) == "abc"
            assert ends(await old) == {0: "abort"}

    run(executor, body, scripts=[tuple(b"abc") * 20], step_seconds=0.004)


@BOTH
def test_a_request_that_can_never_fit_stops_nobody(executor):
    async def body(client):
        for size, max_tokens in ((40, 2), (20, 13)):
            with pytest.raises(InvalidRequest, match="is 32 tokens"):
                await listen(client, "y" * size, max_tokens=max_tokens)
        for max_tokens in (12, None):
            full = await listen(client, "y" * 20, max_tokens=max_tokens, ignore_eos=True)
            assert (ends(full), len(ids(full))) == ({0: "length"}, 12)

    run(executor, body, blocks=8, scripts=[tuple(b"abc")])


@BOTH
def test_a_fault_of_one_row_ends_its_request_only(executor):
    async def body(client):
        good = asyncio.create_task(listen(client, "x", max_tokens=30, ignore_eos=True))
        with pytest.raises(RequestFailed, match="scripted to fail"):
            await listen(client, "x!", max_tokens=30)
        assert len(ids(await good)) == 30

    run(executor, body, scripts=[tuple(b"abc")], raise_on=ord("!"))


@BOTH
def test_closing_with_requests_alive_leaves_a_sound_engine(executor):
    config = {
        "model": {"source": "none", "use": "scripted", "options": {"step_seconds": 0.002}},
        "tokenizer": {"use": "bytes"},
        "executor": {"use": executor},
        "scheduler": {"max_num_seqs": 2},
        "block_allocator": {"num_blocks": 64, "stack": ["free-list"]},
    }
    assembly = assemble(config, frontends=(), environ={})
    assembly.start()

    async def main():
        tasks = [asyncio.create_task(listen(assembly.client, "hello", max_tokens=200, ignore_eos=True)) for _ in range(4)]
        await until(lambda: assembly.client.stats().num_steps > 3)
        await asyncio.to_thread(assembly.close)
        return [ends(outputs) for outputs in await asyncio.gather(*tasks)]

    assert asyncio.run(main()) == [{0: "abort"}] * 4
    assert assembly.engine.audit() == []
