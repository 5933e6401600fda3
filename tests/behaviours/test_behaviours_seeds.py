"""Seeds and temperatures: what a request draws is its own, whatever stands beside it. On the whole engine with both executors."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from behaviours_rig import EXECUTORS, Gated, Job, engine, greedy, run, run_gated

from corekit.api import InvalidRequest, SamplingParams
from corekit.compose.assembly import Assembly


def params(**more) -> SamplingParams:
    return SamplingParams(**{"temperature": 0.8, "max_tokens": 20, "ignore_eos": True, **more})


A = Job("prompt of A", params(seed=42))
UNSEEDED = Job("prompt of B", params())
SEEDED = Job("prompt of B", params(seed=43, top_k=3, temperature=1.3))


@pytest.fixture(scope="module", params=EXECUTORS)
def gated(request: pytest.FixtureRequest) -> Iterator[tuple[Assembly, Gated]]:
    policy = Gated()
    with engine(request.param, parts={"scheduler_policy": policy}) as assembly:
        yield assembly, policy
        policy.gate.set()


def answer(gated: tuple[Assembly, Gated], *jobs: Job, at: int = -1, how: str = "all") -> list[list[list[int]]]:
    """The ids of each sample of each job, all of which were queued before the first step; a preemption in plan `at`."""
    assembly, policy = gated
    policy.arm(at, how)
    result = [[sample.ids for sample in samples] for samples in run_gated(assembly, policy, jobs)]
    assert at < 0 or policy.num_preempted
    return result


def test_a_seed_draws_the_same_beside_anything(gated: tuple[Assembly, Gated]) -> None:
    alone = answer(gated, A)[0]
    assert alone[0] != greedy("prompt of A", 20)
    assert answer(gated, A)[0] == alone
    assert answer(gated, A, UNSEEDED)[0] == alone
    assert answer(gated, UNSEEDED, A)[1] == alone  # another row
    assert answer(gated, SEEDED, UNSEEDED, SEEDED, A)[3] == alone
    assert answer(gated, A, SEEDED)[0] == alone
    greedy_one = Job("prompt of B", params(temperature=0))
    assert answer(gated, greedy_one, A, greedy_one)[1] == alone
    assert answer(gated, A, Job("prompt of A", params(seed=44)))[1] != alone


def test_a_seed_draws_the_same_after_preemption(gated: tuple[Assembly, Gated]) -> None:
    alone = answer(gated, A)[0]
    for at in (1, 2, 7, 19):
        for how in ("all", "after"):
            assert answer(gated, UNSEEDED, A, SEEDED, at=at, how=how)[1] == alone


def test_two_equal_seeded_requests_agree_and_unseeded_ones_do_not(gated: tuple[Assembly, Gated]) -> None:
    one, between, two = answer(gated, A, UNSEEDED, A)
    assert one == two
    unseeded = answer(gated, UNSEEDED, UNSEEDED, UNSEEDED)
    assert len({tuple(samples[0]) for samples in [*unseeded, between]}) == 4


def test_samples_differ_and_repeat_as_a_set(gated: tuple[Assembly, Gated]) -> None:
    three = Job("prompt of A", params(seed=42, n=3))
    samples = answer(gated, three)[0]
    assert len({tuple(ids) for ids in samples}) == 3
    assert samples[0] == answer(gated, A)[0][0]
    assert answer(gated, UNSEEDED, three, SEEDED)[1] == samples
    assert answer(gated, three, three) == [samples, samples]
    assert answer(gated, SEEDED, three, at=5, how="some")[1] == samples


def test_a_seed_of_zero_is_a_seed(gated: tuple[Assembly, Gated]) -> None:
    zero = Job("prompt of A", params(seed=0))
    one, two = answer(gated, zero, zero)
    assert one == two
    extremes = [answer(gated, Job("prompt of A", params(seed=seed)))[0][0] for seed in (0, -1, 2**63 - 1, -(2**63))]
    assert len({tuple(ids) for ids in extremes}) == 4


TINY = (0, 1e-4, 1e-8, 1e-12, 1e-38, 1e-45, 5e-324)


@pytest.mark.parametrize("executor", EXECUTORS)
def test_tiny_temperatures_are_greedy_beside_neighbours_that_draw(executor: str) -> None:
    with engine(executor, seats=2 * len(TINY) + 1, budget=256) as assembly:
        ((alone,),) = run(assembly, [A])
        tiny = [Job(f"prompt {value}", params(temperature=value, top_p=top_p, seed=1, logprobs=1)) for value in TINY for top_p in (1.0, 1e-4)]
        *answers, (neighbour,) = run(assembly, [*tiny, A])
    assert neighbour.ids == alone.ids
    for job, (answer,) in zip(tiny, answers, strict=True):
        assert answer.ids == greedy(str(job.prompt), 20)
        assert all(-10 < one.logprob <= 0 and one.token_id == one.top[0][0] for one in answer.logprobs)


@pytest.mark.parametrize("executor", EXECUTORS)
def test_the_smallest_top_p_is_greedy_at_any_temperature(executor: str) -> None:
    with engine(executor) as assembly:
        jobs = [Job("p", params(temperature=temperature, top_p=5e-324)) for temperature in (2.0, 1.0, 1e-3)]
        assert [answer.ids for (answer,) in run(assembly, jobs)] == [greedy("p", 20)] * 3


@pytest.mark.parametrize("wrong", [-1, -1e-9, 2.1, 1e9, float("nan"), float("inf"), float("-inf"), True, "1"])
def test_temperatures_that_are_none_are_refused_by_name(wrong: object) -> None:
    with pytest.raises(InvalidRequest, match="temperature must be a number from 0 to 2") as refused:
        params(temperature=wrong)
    assert refused.value.field == "temperature"
