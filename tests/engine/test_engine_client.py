"""The client over a stand-in engine: text, ends, aborts in every state, identity, faults, closing."""

from __future__ import annotations

import asyncio
import contextlib
import gc
import threading
import time

import pytest
from engine_stand_in import Bytes, StandIn, client_of, echo, spell

from corekit.api import EngineDead, InvalidRequest, Prompt, RequestFailed, RequestOutput, SamplingParams


def run(engine, body, **options):
    """Run `body(client)` on a loop of its own, then check that the engine is left empty."""
    client = client_of(engine, **options)
    client.start()

    async def main():
        return await asyncio.wait_for(body(client), 20)

    try:
        result = asyncio.run(main())
        deadline = time.monotonic() + 5
        while not engine.idle and time.monotonic() < deadline:
            time.sleep(0.001)
        assert client.health().state == "dead" or (engine.idle and not client._streams)
        return result
    finally:
        client.close()


async def listen(client, prompt="hello", *, request_id=None, **params) -> list[RequestOutput]:
    prompt = Prompt(text=prompt) if isinstance(prompt, str) else prompt
    return [output async for output in client.generate(prompt, SamplingParams(**params), request_id=request_id)]


def joined(outputs, index=0) -> str:
    return "".join(o.text for output in outputs for o in output.outputs if o.index == index)


def ends(outputs) -> dict:
    return {o.index: o.finish_reason for output in outputs for o in output.outputs if o.finish_reason}


async def until(condition) -> None:
    while not condition():
        await asyncio.sleep(0.001)


def test_one_answer():
    outputs = run(StandIn(), lambda client: listen(client, max_tokens=12))
    assert joined(outputs) == "hellohellohe"
    assert [output.finished for output in outputs] == [False] * (len(outputs) - 1) + [True]
    assert (ends(outputs), outputs[-1].num_prompt_tokens, outputs[0].prompt) == ({0: "length"}, 5, "hello")


def test_eos_ends_and_ignore_eos_does_not():
    assert ends(run(StandIn(spell("ab")), lambda c: listen(c, max_tokens=9))) == {0: "stop"}
    outputs = run(StandIn(spell("ab")), lambda c: listen(c, max_tokens=9, ignore_eos=True))
    assert (ends(outputs), sum(len(o.token_ids) for out in outputs for o in out.outputs)) == ({0: "length"}, 9)


@pytest.mark.parametrize("overshoot", [1, 7])
def test_a_stop_string_ends_the_request_in_the_engine_too(overshoot):
    engine = StandIn(spell("one two END three", then=(65,)), overshoot=overshoot)
    outputs = run(engine, lambda c: listen(c, max_tokens=300, stop="END"))
    assert (joined(outputs), ends(outputs)) == ("one two ", {0: "stop"})
    assert bytes(i for out in outputs for o in out.outputs for i in o.token_ids) == b"one two END"
    assert engine.reasons == [(outputs[0].request_id, "stop")]


def test_min_tokens_with_a_stop_string():
    outputs = run(StandIn(spell("ENDxyENDz", then=(65,))), lambda c: listen(c, max_tokens=50, stop="END", min_tokens=5))
    assert (joined(outputs), ends(outputs)) == ("ENDxy", {0: "stop"})


def test_samples_end_on_their_own():
    engine = StandIn(lambda asked, sample, at: b"ab.."[at] if at >= sample else 120)
    outputs = run(engine, lambda c: listen(c, n=3, max_tokens=4, stop="."))
    assert {i: joined(outputs, i) for i in range(3)} == {0: "ab", 1: "xb", 2: "xx"}
    assert ends(outputs) == {0: "stop", 1: "stop", 2: "stop"}
    assert sum(output.finished for output in outputs) == 1


def test_a_slow_caller_gets_everything_merged():
    async def body(client):
        outputs = []
        async for output in client.generate(Prompt(text="ab"), SamplingParams(max_tokens=200)):
            await asyncio.sleep(0.05)
            outputs.append(output)
        return outputs

    outputs = run(StandIn(), body)
    assert joined(outputs) == "ab" * 100
    assert len(outputs) < 50


def test_cached_tokens_are_reported():
    outputs = run(StandIn(cached=3), lambda client: listen(client, max_tokens=2))
    assert {output.num_cached_tokens for output in outputs} == {3}


# -- aborts


def slow(**options) -> StandIn:
    return StandIn(step_seconds=0.002, **options)


@pytest.mark.parametrize("n", [1, 3])
@pytest.mark.parametrize("by", ["abort", "close", "cancel"])
@pytest.mark.parametrize("state", ["queued", "prefill", "decoding"])
def test_abort_in_every_state(state, by, n):
    engine = slow(seats=3, chunk=1 if state == "prefill" else 1024)

    async def body(client):
        first = asyncio.create_task(listen(client, max_tokens=100, n=3, request_id="first")) if state == "queued" else None
        await until(lambda: first is None or engine.started == ["first"])
        iterator = client.generate(Prompt(text="x" * 290), SamplingParams(max_tokens=100, n=n), request_id="it")
        heard: list[RequestOutput] = []

        async def hear():
            async with contextlib.aclosing(iterator):
                async for output in iterator:
                    heard.append(output)
                    if by == "close":
                        break

        task = asyncio.create_task(hear())
        await until(lambda: {"queued": "it" in client._streams.engine_ids, "prefill": "it" in engine.started, "decoding": bool(heard)}[state])
        at = engine.num_steps
        if by == "abort":
            assert client.abort("it")
            await task
            assert (set(ends(heard).values()), len(ends(heard)), heard[-1].finished) == ({"abort"}, n, True)
        elif by == "cancel" or state != "decoding":
            task.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await task
        await until(lambda: all(a.asked.request_id != "it" for a in engine.running + engine.waiting) and "it" not in client._streams.engine_ids)
        assert engine.num_steps - at <= 4
        assert ("it" in engine.started) == (state != "queued")
        if first is not None:
            assert ends(await first) == {0: "length", 1: "length", 2: "length"}
        assert not client.abort("it")
        return ends(await listen(client, max_tokens=3))

    assert run(engine, body) == {0: "length"}


def test_an_iterator_that_nobody_holds_any_more_ends_its_request():
    engine = slow()

    async def body(client):
        async for _ in client.generate(Prompt(text="abc"), SamplingParams(max_tokens=300)):
            break
        gc.collect()
        await until(lambda: engine.idle)

    run(engine, body)
    assert engine.num_tokens < 50


def test_an_iterator_that_was_never_advanced_queues_nothing():
    engine = StandIn()

    async def body(client):
        iterator = client.generate(Prompt(text="abc"), SamplingParams())
        await asyncio.sleep(0.01)
        await iterator.aclose()

    run(engine, body)
    assert engine.num_steps == 0


def test_a_loop_that_closed_with_its_iterator_open_leaves_no_request():
    engine = slow()
    client = client_of(engine)
    client.start()
    loop = asyncio.new_event_loop()
    iterator = client.generate(Prompt(text="abc"), SamplingParams(max_tokens=300))
    loop.run_until_complete(anext(iterator))
    loop.close()
    deadline = time.monotonic() + 5
    while not engine.idle and time.monotonic() < deadline:
        time.sleep(0.005)
    assert engine.num_tokens < 50
    assert ends(asyncio.run(listen(client, max_tokens=2))) == {0: "length"}
    client.close()
    with contextlib.suppress(StopIteration):
        iterator.aclose().send(None)


def test_an_abort_of_what_the_engine_has_finished_wakes_it_all_the_same():
    engine = StandIn()

    async def body(client):
        news = client.generate(Prompt(text="ab"), SamplingParams(max_tokens=5), request_id="it")
        task = asyncio.ensure_future(anext(news))
        await asyncio.sleep(0)  # it is queued now, and nothing of it is heard before the next pause
        deadline = time.monotonic() + 5
        while not (engine.num_tokens == 5 and engine.idle) and time.monotonic() < deadline:
            time.sleep(0.001)  # the loop hears nothing meanwhile
        assert client.abort("it")
        await until(lambda: engine.idle)
        assert joined([await task, *[output async for output in news]]) == "ababa"

    run(engine, body)


# -- identity


def test_a_second_request_of_one_id_is_refused_and_the_first_unharmed():
    async def body(client):
        first = asyncio.create_task(listen(client, "abc", max_tokens=30, request_id="same"))
        await until(lambda: "same" in client._streams.engine_ids)
        with pytest.raises(InvalidRequest, match="'same' is in use") as refused:
            await listen(client, request_id="same")
        assert refused.value.field == "request_id"
        assert joined(await first) == "abc" * 10
        return joined(await listen(client, "xyz", max_tokens=3, request_id="same"))

    assert run(slow(), body) == "xyz"


@pytest.mark.parametrize("by", ["abort", "close"])
def test_an_id_can_be_used_again_right_after_an_abort(by):
    engine = slow(seats=8)

    async def body(client):
        for round_number in range(20):
            old = client.generate(Prompt(text="old"), SamplingParams(max_tokens=300), request_id="it")
            if round_number % 2:
                await anext(old)
            else:
                task = asyncio.ensure_future(anext(old))
                await until(lambda: "it" in client._streams._by_name)
                if by == "close":
                    task.cancel()
                await asyncio.sleep(0)
            if by == "abort":
                assert client.abort("it")
            else:
                with contextlib.suppress(RuntimeError):
                    await old.aclose()
            new = await listen(client, "new", max_tokens=6, request_id="it")
            assert (joined(new), ends(new), new[0].request_id) == ("newnew", {0: "length"}, "it")
            if by == "abort":
                if not round_number % 2:
                    await task
                assert {o for output in [x async for x in old] for o in ends([output]).values()} <= {"abort"}

    run(engine, body)


# -- faults


def test_a_fault_of_a_row_ends_its_request_only_after_its_text():
    engine = slow(script=lambda asked, sample, at: -1 if asked.token_ids[0] == 98 and at == 5 else echo(asked, sample, at))

    async def body(client):
        good = asyncio.create_task(listen(client, "abc", max_tokens=30))
        heard = []

        async def hear():
            async for output in client.generate(Prompt(text="bad"), SamplingParams(max_tokens=30, n=2)):
                heard.append(output)

        with pytest.raises(RequestFailed, match="the row fell over"):
            await hear()
        assert joined(heard) == "badba"
        assert joined(await good) == "abc" * 10

    run(engine, body)


def test_a_slow_caller_gets_the_text_before_the_error():
    async def body(client):
        news = client.generate(Prompt(text="bad"), SamplingParams(max_tokens=30))
        first = await anext(news)
        await until(lambda: not len(client._streams))
        second = await anext(news)
        assert (joined([first, second]), second.finished) == ("badba", False)
        with pytest.raises(RequestFailed, match="fell over"):
            await anext(news)

    run(slow(script=lambda asked, sample, at: -1 if at == 5 else echo(asked, sample, at)), body)


def test_a_fault_of_the_decoder_ends_its_request_only():
    async def body(client):
        good = asyncio.create_task(listen(client, "abc", max_tokens=30))
        with pytest.raises(RequestFailed, match=r"decoder.*Bytes.*fell over"):
            await listen(client, Prompt(token_ids=(98, 0, 98)), max_tokens=30, n=2)
        assert joined(await good) == "abc" * 10

    run(slow(), body)


def test_a_fault_of_the_tokenizer_ends_its_request_only():
    async def body(client):
        with pytest.raises(RequestFailed, match=r"tokenizer \(Bytes\).*fell over"):
            await listen(client, "boom")
        return joined(await listen(client, max_tokens=5))

    assert run(StandIn(), body) == "hello"


def test_a_dead_engine_answers_everybody_and_takes_nobody():
    engine = slow(seats=1)

    async def body(client):
        tasks = [asyncio.create_task(listen(client, max_tokens=300)) for _ in range(3)]
        await until(lambda: engine.num_steps > 2)
        engine.fault = RuntimeError("the device is gone")
        for task in tasks:
            with pytest.raises(EngineDead, match="the device is gone"):
                await task
        with pytest.raises(EngineDead, match="the device is gone"):
            await listen(client)
        return client.health()

    health = run(engine, body)
    assert (health.state, "the device is gone" in health.reason) == ("dead", True)


def test_an_executor_that_dies_while_nobody_asks_is_seen(monkeypatch):
    monkeypatch.setattr("corekit.engine.client.REST_SECONDS", 0.01)
    engine = StandIn()

    async def body(client):
        await listen(client, max_tokens=3)
        engine.fault = RuntimeError("rank 1 is gone")
        await until(lambda: client.health().state == "dead")
        return client.health().reason

    assert "rank 1 is gone" in run(engine, body)


def test_a_forked_child_is_told_that_the_engine_is_not_its_own(monkeypatch):
    client = client_of(StandIn())
    monkeypatch.setattr("corekit.engine.client.os.getpid", lambda: -1)
    with pytest.raises(EngineDead, match="make an engine here"):
        asyncio.run(listen(client))


# -- closing


def test_close_ends_everything_from_any_thread_and_twice():
    engine = slow(seats=1)
    client = client_of(engine)
    client.start()
    client.start()

    async def main():
        tasks = [asyncio.create_task(listen(client, max_tokens=300)) for _ in range(3)]
        await until(lambda: engine.num_steps > 2)
        closers = [threading.Thread(target=client.close) for _ in range(3)]
        for closer in closers:
            closer.start()
        results = await asyncio.gather(*tasks)
        for closer in closers:
            closer.join()
        with pytest.raises(EngineDead, match="closed"):
            await listen(client)
        return [ends(outputs) for outputs in results]

    assert asyncio.run(main()) == [{0: "abort"}] * 3
    client.close()
    assert engine.idle
    assert client.health().state == "dead"
    assert not any(thread.name == "corekit-engine" for thread in threading.enumerate())


def test_close_without_a_start_leaves_nobody_waiting():
    client = client_of(StandIn())

    async def main():
        task = asyncio.create_task(listen(client))
        await until(lambda: len(client._streams))
        client.close()
        with pytest.raises(EngineDead, match="closed"):
            await task

    asyncio.run(main())
    client.start()
    assert not any(thread.name == "corekit-engine" for thread in threading.enumerate())


def test_several_loops_share_one_client():
    engine = slow(seats=8)
    client = client_of(engine)
    client.start()
    texts = {}

    def work(name):
        texts[name] = joined(asyncio.run(listen(client, name, max_tokens=40)))

    threads = [threading.Thread(target=work, args=(name,)) for name in "abcd"]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    client.close()
    assert texts == {name: name * 40 for name in "abcd"}


def test_seeds_come_from_the_clients_own_source():
    def seeds(seed):
        seen = []
        engine = StandIn(lambda asked, sample, at: seen.append(asked.seed) or 65)

        async def body(client):
            for own in (None, None, 7):
                await listen(client, max_tokens=1, seed=own)

        run(engine, body, seed=seed)
        return seen

    assert seeds(1) == seeds(1)
    assert seeds(1)[:2] != seeds(2)[:2]
    assert seeds(1)[2] == 7
    assert len(set(seeds(1))) == 3


def test_tokenizer_without_a_thread_of_its_own_is_called_beside_the_loop_for_long_texts():
    seen = []

    class Watching(Bytes):
        def encode(self, text, *, add_special=True):
            seen.append(threading.current_thread() is threading.main_thread())
            return [65] * 3

    async def body(client):
        await listen(client, "short", max_tokens=1)
        await listen(client, "long" * 1000, max_tokens=1)

    run(StandIn(), body, tokenizer=Watching())
    assert seen == [True, False]
