"""Parts that raise while steps run: what they touch ends, what they do not touch goes on. On the whole engine, both executors."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Sequence
from typing import Any

import pytest
from behaviours_rig import EXECUTORS, Answer, Job, ask, build, engine, eventually, greedy, run, until

from corekit.api import EngineDead, RequestFailed, RequestStats, SamplingParams, StepStats, TokenDecoder
from corekit.builtin.bytes_tokenizer import BytesTokenizer
from corekit.builtin.fcfs import Fcfs
from corekit.builtin.free_list import FreeList
from corekit.builtin.torch_sampler import TorchSampler

BOTH = pytest.mark.parametrize("executor", EXECUTORS)
MARK = 0.123
"""The min_p of requests whose row makes the sampler raise."""


class PickySampler(TorchSampler):
    def sample(self, logits: Any, batch: Any) -> Any:
        if ((batch.min_p - MARK).abs() < 1e-6).any() and not batch.all_greedy:
            raise ValueError("this row cannot be drawn")
        return super().sample(logits, batch)


class FragileDecoder:
    def __init__(self, inner: TokenDecoder) -> None:
        self.inner = inner
        self.num_pushes = 0

    def push(self, token_id: int) -> str:
        self.num_pushes += 1
        if self.num_pushes == 5:
            raise ValueError("the fifth token has no text")
        return self.inner.push(token_id)

    def finish(self) -> str:
        return self.inner.finish()


class FragileTokenizer(BytesTokenizer):
    def start_decoding(self, prompt_tail: Sequence[int] = (), *, skip_special_tokens: bool = True) -> TokenDecoder:
        inner = super().start_decoding(prompt_tail, skip_special_tokens=skip_special_tokens)
        return inner if skip_special_tokens else FragileDecoder(inner)


WRONG: dict[str, tuple[dict[str, Any], SamplingParams, str]] = {
    "sampler": ({"sampler": PickySampler()}, SamplingParams(temperature=0.5, min_p=MARK, max_tokens=20), "PickySampler.*this row cannot be drawn"),
    "decoder": ({"tokenizer": FragileTokenizer()}, SamplingParams(skip_special_tokens=False, max_tokens=20), "FragileTokenizer.*fifth token"),
}


@BOTH
@pytest.mark.parametrize("part", WRONG)
@pytest.mark.parametrize("n", [1, 3])
def test_a_part_that_fails_on_one_request_ends_that_one(executor: str, part: str, n: int) -> None:
    """By name; two neighbours, one of them seeded, answer what they answer alone, and it may happen again and again."""
    parts, params, said = WRONG[part]
    params = SamplingParams(temperature=params.temperature, min_p=params.min_p, skip_special_tokens=params.skip_special_tokens, max_tokens=20, n=n)
    seeded = Job("seeded", SamplingParams(seed=1, max_tokens=40, ignore_eos=True))
    with engine(executor, seats=12, parts=parts) as assembly:
        ((alone,),) = run(assembly, [seeded])

        async def main() -> list[Any]:
            bad = [ask(assembly, Job(f"wrong {number}", params)) for number in range(3)]
            good = [ask(assembly, seeded), ask(assembly, Job("greedy", SamplingParams(temperature=0, max_tokens=40, ignore_eos=True)))]
            return await asyncio.gather(*bad, *good, return_exceptions=True)

        *failed, ((neighbour,)), ((other,)) = asyncio.run(main())
        for error in failed:
            assert isinstance(error, RequestFailed)
            with pytest.raises(RequestFailed, match=said):
                raise error
        assert (neighbour.ids, other.ids) == (alone.ids, greedy("greedy", 40))
        assert eventually(lambda: assembly.engine.idle)


class Broken(Fcfs):
    """A policy that plans half a step and raises, whose accounting raises, too."""

    def plan(self, step: Any) -> None:
        step.schedule_many(step.running[:1])
        raise ValueError("no plan")

    def on_arrive(self, request: Any) -> None:
        raise ValueError("no arrival")

    def on_progress(self, request: Any, prompt_tokens: int, output_tokens: int) -> None:
        raise ValueError("no progress")

    def on_leave(self, request: Any) -> None:
        raise ValueError("no leave")


class Ears:
    """An observer; it raises on whatever `deaf` says."""

    def __init__(self, name: str, heard: list[tuple[str, str]], deaf: str = "") -> None:
        self.name = name
        self.heard = heard
        self.deaf = deaf

    def on_step(self, stats: StepStats) -> None:
        if self.deaf == "step":
            raise ValueError("deaf")

    def on_request(self, stats: RequestStats) -> None:
        self.heard.append((self.name, stats.finish_reason))
        if self.deaf == "request":
            raise ValueError("deaf")


@BOTH
def test_a_policy_that_always_raises_is_named_and_stops_nobody(executor: str, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.WARNING)
    with engine(executor, blocks=20, parts={"scheduler_policy": Broken()}) as assembly:
        answers = run(assembly, [Job(f"prompt {number}", SamplingParams(temperature=0, max_tokens=20, ignore_eos=True)) for number in range(5)])
        assert [answer.ids for (answer,) in answers] == [greedy(f"prompt {number}", 20) for number in range(5)]
        assert assembly.client.stats().num_preemptions
    said = [record.message for record in caplog.records]
    assert len([message for message in said if "Broken raised ValueError('no plan')" in message]) == 1
    assert {word for word in ("on_arrive", "on_progress", "on_leave") if any(word in message for message in said)} == {"on_arrive", "on_progress", "on_leave"}


@BOTH
@pytest.mark.parametrize("deaf", ["", "step", "request"])
def test_observers_hear_of_an_abort_in_every_state_in_their_order(executor: str, deaf: str) -> None:
    """Queued, in prefill, decoding: both hear once, the first first; one that raises takes nothing from the other."""
    heard: list[tuple[str, str]] = []
    observers = [Ears("first", heard, deaf), Ears("second", heard)]
    with engine(executor, seats=1, budget=8, model="scripted", texts=("x" * 90,), step_seconds=0.002, parts={"observers": observers}) as assembly:
        stats = assembly.client.stats

        async def main() -> None:
            for prompt, queued, reached in (
                ("Q", False, lambda: stats().num_running and stats().num_output_tokens),
                ("p" * 300, False, lambda: stats().num_running),
                ("Q", True, lambda: stats().num_waiting),
            ):
                num_heard = len(heard)
                params = SamplingParams(temperature=0, max_tokens=80)
                first = asyncio.create_task(ask(assembly, Job("Q", params))) if queued else None
                await until(lambda first=first: first is None or stats().num_running)
                task = asyncio.create_task(ask(assembly, Job(prompt, params), request_id="it"))
                await until(reached)
                assembly.client.abort("it")
                (answer,) = await task
                assert answer.reason == "abort"
                await until(lambda num_heard=num_heard: len(heard) > num_heard and heard[-1][0] == "second")
                if first is not None:
                    assert (await first)[0].reason == "length"
                await until(lambda: assembly.engine.idle)

        asyncio.run(main())
        assert eventually(lambda: heard[-1] == ("second", "length"))
        both = [("first", "abort"), ("second", "abort")]
        expected = {
            "": [*both * 3, ("first", "length"), ("second", "length")],
            "step": [("second", "abort")] * 3 + [("second", "length")],
            "request": [*both, ("second", "abort"), ("second", "abort"), ("second", "length")],
        }[deaf]
        assert heard == expected


class Dying(FreeList):
    """An allocator that breaks altogether after a while: no request can go on without blocks."""

    num_takes = 0

    def take(self, count: int) -> Any:
        self.num_takes += 1
        if self.num_takes > 12:
            raise ValueError("the pool is gone")
        return super().take(count)


@BOTH
def test_an_allocator_that_raises_leaves_nobody_waiting(executor: str) -> None:
    """Nothing can be done without blocks: everyone is answered with an error, health says why, and newcomers are refused at once."""
    with build(executor, parts={"block_allocator": Dying(128)}) as assembly:

        async def main() -> list[Any]:
            jobs = [Job(f"prompt {number}", SamplingParams(temperature=0, max_tokens=40, ignore_eos=True)) for number in range(4)]
            answers = await asyncio.wait_for(asyncio.gather(*(ask(assembly, job) for job in jobs), return_exceptions=True), 20)
            with pytest.raises(EngineDead, match="the pool is gone"):
                await ask(assembly, jobs[0])
            return list(answers)

        assert [type(answer) for answer in asyncio.run(main())] == [EngineDead] * 4
        health = assembly.client.health()
        assert health.state == "dead" and "the pool is gone" in health.reason


@BOTH
def test_a_fault_in_prefill_ends_all_samples_and_gives_seats_back(executor: str) -> None:
    with engine(executor, seats=4, model="scripted", texts=("fine",), raise_on=33) as assembly:
        for _ in range(4):

            async def main() -> Answer:
                bad = [ask(assembly, Job("bad!", SamplingParams(n=3))) for _ in range(3)]
                *errors, (good,) = await asyncio.gather(*bad, ask(assembly, Job("Q", SamplingParams(temperature=0))), return_exceptions=True)
                assert [type(error) for error in errors] == [RequestFailed] * 3
                return good

            assert asyncio.run(main()).text == "fine"
