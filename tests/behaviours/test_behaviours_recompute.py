"""Recompute, readmission and requests too big for the pool, on the whole engine with both executors."""

from __future__ import annotations

import asyncio
import logging
import random
from collections import defaultdict
from functools import lru_cache

import pytest
from behaviours_rig import EXECUTORS, Answer, Gated, Job, ask, build, engine, greedy, run, run_gated, until

from corekit.api import AllocatorStats, BlockKey, Blocks, InvalidRequest, PrefixMatch, PrefixQuery, Reason, SamplingParams
from corekit.builtin.fcfs import Fcfs
from corekit.builtin.free_list import FreeList
from corekit.engine.request import NewRequest

MAX_TOKENS = 14


def params(**more) -> SamplingParams:
    return SamplingParams(**{"temperature": 0, "max_tokens": MAX_TOKENS, "ignore_eos": True, "logprobs": 2, **more})


PLAIN = [
    Job("a", params()),
    Job("the second prompt", params(temperature=0.8, seed=42, top_k=6)),
    Job("third", params()),
    Job("n of them", params(temperature=1.0, seed=7, n=3)),
    Job("fifth, and by far the longest of them", params(temperature=0.9, seed=3, top_p=0.9)),
    Job("last.", params()),
    Job(
        "penalised, biased and banned",
        params(
            repetition_penalty=1.3,
            presence_penalty=-0.2,
            frequency_penalty=0.4,
            logit_bias={65: 22.0, 66: 23.5},
            banned_token_ids=tuple(range(32)),
            bad_words=("A", "BB"),
        ),
    ),
    Job("the same drawn, with its prompt's logprobs", params(temperature=1.0, seed=9, repetition_penalty=0.8, frequency_penalty=0.3, prompt_logprobs=3)),
]


@lru_cache(1)
def wanted() -> tuple[list[Job], list[list[Answer]]]:
    """The jobs, some of them with ends of every kind in the middle of their answers, and what a large pool answers."""
    with engine(blocks=128) as assembly:
        alone = [run(assembly, [job])[0] for job in PLAIN]
        jobs = list(PLAIN)
        jobs[2] = Job("third", params(stop=alone[2][0].text[7:10]))
        jobs[3] = Job("n of them", params(temperature=1.0, seed=7, n=3, stop=(alone[3][1].text[5:7], alone[3][2].text[9:11])))
        early = alone[5][0].ids[3]  # not drawn there, since 6 tokens are wanted
        path = run(assembly, [Job("last.", params(stop_token_ids=(early,), min_tokens=6))])[0][0].ids
        assert path[:3] == alone[5][0].ids[:3] and path[3] != early
        jobs[5] = Job("last.", params(stop_token_ids=(early, path[9]), min_tokens=6))
        answers = run(assembly, jobs)
    # The jobs are worth their name: three kinds of ends, and drawn answers that are not the greedy ones.
    assert {answer.reason for samples in answers for answer in samples} == {"stop", "length"}
    assert (answers[2][0].text, answers[2][0].stop_reason) == (alone[2][0].text[:7], jobs[2].params.stop[0])
    assert len({answer.text for answer in answers[3]}) == 3
    assert 6 <= len(answers[5][0].ids) < MAX_TOKENS and answers[5][0].reason == "stop"
    assert answers[0][0].ids == greedy("a", MAX_TOKENS)
    assert 66 in answers[6][0].ids and 65 not in answers[6][0].ids and min(answers[6][0].ids) >= 32
    assert len(answers[7][0].prompt_logprobs) == answers[7][0].num_prompt_tokens and None not in answers[7][0].prompt_logprobs[1:]
    assert alone[1][0].ids != greedy("the second prompt", MAX_TOKENS)
    for samples in answers:
        for answer in samples:
            assert [one.token_id for one in answer.logprobs] == answer.ids and answer.num_prompt_tokens
    return jobs, answers


@pytest.mark.parametrize(
    ("executor", "how"),
    [
        ("in-process", "after"),
        ("in-process", "some"),
        ("delayed", "all"),
        ("delayed", "after"),
        pytest.param("in-process", "all", marks=pytest.mark.slow),
        pytest.param("delayed", "some", marks=pytest.mark.slow),
    ],
)
def test_preemption_at_every_step_changes_nothing(executor: str, how: str) -> None:
    """Ids, text, logprobs, reasons and counts of prompts equal those of the large pool, whatever step is hit."""
    jobs, answers = wanted()
    policy = Gated()
    with engine(executor, parts={"scheduler_policy": policy}) as assembly:
        policy.arm()
        assert run_gated(assembly, policy, jobs) == answers
        for at in range(1, policy.num_plans):
            policy.arm(at, how)
            before = assembly.client.stats()
            assert run_gated(assembly, policy, jobs) == answers, f"preempted in plan {at}"
            after = assembly.client.stats()
            assert after.num_preemptions - before.num_preemptions == policy.num_preempted
            assert after.num_prompt_tokens - before.num_prompt_tokens == sum(len(job.prompt) for job in jobs)
            if at < MAX_TOKENS:
                assert policy.num_preempted


class Flaky:
    """A layer whose `take` refuses at random although `available` said yes."""

    prefix_cache = False

    def __init__(self, inner: FreeList, rng: random.Random) -> None:
        self.inner = inner
        self.rng = rng
        self.chance = 0.0
        self.num_refused = 0

    @property
    def available(self) -> int:
        return self.inner.available

    def take(self, count: int) -> Blocks | None:
        if self.rng.random() < self.chance:
            self.num_refused += 1
            return None
        return self.inner.take(count)

    def give(self, blocks: Blocks) -> None:
        self.inner.give(blocks)

    def find(self, query: PrefixQuery) -> PrefixMatch:
        return self.inner.find(query)

    def hold(self, match: PrefixMatch) -> Blocks | None:
        return self.inner.hold(match)

    def publish(self, block: int, key: BlockKey, retain_until: float | None = None) -> bool:
        return self.inner.publish(block, key, retain_until)

    def stats(self) -> AllocatorStats:
        return self.inner.stats()


@pytest.mark.parametrize("executor", EXECUTORS)
def test_a_tiny_pool_changes_nothing(executor: str) -> None:
    jobs, answers = wanted()
    policy = Gated()
    with engine(executor, blocks=14, parts={"scheduler_policy": policy}) as assembly:
        assert run_gated(assembly, policy, jobs) == answers
        assert assembly.client.stats().num_preemptions >= 2


@pytest.mark.parametrize("executor", EXECUTORS)
def test_an_allocator_that_refuses_at_random_changes_nothing(executor: str) -> None:
    jobs, answers = wanted()
    for seed in range(3):
        layer = Flaky(FreeList(16), random.Random(seed))
        with engine(executor, blocks=16, seats=4, parts={"block_allocator": layer}) as assembly:
            layer.chance = 0.5
            assert run(assembly, jobs) == answers
            assert layer.num_refused > 5


class Squeeze:
    """Preempts the first request once it has 100 tokens, then lets the second in before it: three blocks are left for its return."""

    def __init__(self) -> None:
        self.preempted = False
        self.refused = 0

    def plan(self, step) -> None:
        first = next((r for r in step.running if r.arrival == 0), None)
        if first is not None and not self.preempted and first.num_output_tokens >= 100:
            step.preempt(first)
            self.preempted = True
            return
        step.schedule_many(step.running)
        for request in sorted(step.waiting, key=lambda r: -r.arrival):
            if self.preempted or request.arrival == 0:
                grant = step.schedule(request)
                self.refused += request.arrival == 0 and grant.reason is Reason.BLOCKS and step.free_blocks == 3


@pytest.mark.parametrize("executor", EXECUTORS)
def test_readmission_with_three_free_blocks_waits_for_room(executor: str) -> None:
    """Prompt 16, preempted after 100 tokens: what comes back is 116 tokens long, not 16."""
    policy, prompt = Squeeze(), "sixteen letters."
    with engine(executor, blocks=33, budget=256, parts={"scheduler_policy": policy}) as assembly:

        async def body() -> list[list[Answer]]:
            first = asyncio.create_task(ask(assembly, Job(prompt, params(max_tokens=112))))
            await until(lambda: assembly.client.stats().num_running)
            second = asyncio.create_task(ask(assembly, Job("y" * 113, params(max_tokens=7))))
            return [await first, await second]

        first, second = asyncio.run(body())
    assert policy.preempted and policy.refused
    assert (first[0].ids, second[0].ids) == (greedy(prompt, 112), greedy("y" * 113, 7))


@pytest.mark.parametrize("executor", EXECUTORS)
def test_what_can_never_fit_is_refused_with_the_numbers_while_a_small_one_answers(executor: str) -> None:
    with engine(executor, blocks=8, block_size=16, max_model_len=1024, budget=64) as assembly:

        async def body() -> Answer:
            small = asyncio.create_task(ask(assembly, Job("small", params(max_tokens=60))))
            await until(lambda: assembly.client.stats().num_running)
            with pytest.raises(InvalidRequest, match=r"is 128 tokens, but 214 were requested: 200 in the prompt") as refused:
                await ask(assembly, Job("x" * 200, params()))
            assert refused.value.field == "prompt"
            assert not small.done()
            return (await small)[0]

        assert asyncio.run(body()).ids == greedy("small", 60)


@pytest.mark.parametrize("executor", EXECUTORS)
@pytest.mark.parametrize("n", [1, 3])
def test_what_would_outgrow_the_pool_is_refused_and_what_fills_it_is_answered(executor: str, n: int) -> None:
    """128 positions. Two requests that need them all do not chase each other."""
    with engine(executor, blocks=8, block_size=16, max_model_len=1024, budget=64) as assembly:
        assert assembly.client.model.max_model_len == 128
        with pytest.raises(InvalidRequest, match=r"is 128 tokens, but 200 were requested: 100 in the prompt and 100") as refused:
            run(assembly, [Job("x" * 100, params(max_tokens=100, n=n))])
        assert refused.value.field == "max_tokens"
        jobs = [Job("x" * 100, params(max_tokens=28, n=n)), Job("small", params(max_tokens=20)), Job("y" * 100, params(max_tokens=None))]
        big, small, other = run(assembly, jobs)
        assert small[0].ids == greedy("small", 20)
        for answer, prompt in ((big[0], "x" * 100), (big[-1], "x" * 100), (other[0], "y" * 100)):
            assert (answer.reason, answer.ids) == ("length", greedy(prompt, 28))
        assert assembly.client.stats().num_preemptions < 50


@pytest.mark.parametrize("executor", EXECUTORS)
@pytest.mark.parametrize("n", [1, 3])
def test_who_asks_the_engine_itself_for_more_than_the_pool_gets_what_it_holds(executor: str, n: int, caplog: pytest.LogCaptureFixture) -> None:
    """100 + 100 tokens: the prompt and 29, of which the last is never computed."""
    caplog.set_level(logging.WARNING)
    assembly = build(executor, blocks=8, block_size=16, max_model_len=1024, budget=64)  # its client is not started: this thread steps
    got: dict[tuple[str, int], list[int]] = defaultdict(list)
    reasons = []
    for name in "xy":
        ids = (ord(name),) * 100
        asked = SamplingParams(temperature=0, max_tokens=100, n=n)
        assembly.engine.submit(NewRequest(request_id=name, token_ids=ids, params=asked, max_tokens=100, seed=0, end_ids=(), arrival_time=0.0))
    while not assembly.engine.idle:
        for delta in assembly.engine.step():
            got[delta.request_id, delta.sample] += delta.token_ids
            reasons += [delta.finish_reason] * (delta.finish_reason is not None)
    assert reasons == ["length"] * 2 * n
    assert got == {(name, sample): greedy(name * 100, 29) for name in "xy" for sample in range(n)}
    assert assembly.client.stats().num_preemptions < 50
    assert assembly.engine.audit() == []
    assert "alone it outgrew the KV pool of 128 tokens" in caplog.text
    assembly.close()


@pytest.mark.parametrize("executor", EXECUTORS)
def test_many_samples_of_a_long_prompt_share_it(executor: str) -> None:
    """101 blocks of prompt, the last half filled: ten samples copy that one and add two each."""
    seen: list[int] = []

    class Watching(Fcfs):
        def plan(self, step) -> None:
            super().plan(step)
            seen.append(step.free_blocks)

    with engine(executor, blocks=140, seats=10, parts={"scheduler_policy": Watching()}) as assembly:
        (samples,) = run(assembly, [Job("p" * 402, params(n=10, max_tokens=8))])
        assert [answer.ids for answer in samples] == [greedy("p" * 402, 8)] * 10
        assert assembly.client.stats().num_preemptions == 0
    assert 101 + 10 < 140 - min(seen) <= 101 + 10 * 3
