"""Preemption by swap, and by what is quicker: first use, parity, readmission and counts, on the whole engine, assembled from TOML."""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from itertools import cycle
from typing import Any

import pytest
from behaviours_rig import EXECUTORS, Answer, Gated, Job, engine, greedy, run, run_gated
from memory_rig import ALL, LRU, SIZE, SWAP, check_whole, ids, memory, tell
from test_behaviours_recompute import MAX_TOKENS, params, wanted

from corekit.api import PreemptMode, Reason, RequestState, SamplingParams
from corekit.builtin.fcfs import Fcfs

# -- the first use of swap


def crowd() -> list[Job]:
    """Twelve, one of them with eight samples; greedy and drawn, short and long, some of one beginning."""
    jobs = [Job(f"{'the same beginning, ' * (at % 3)}{at}", params(max_tokens=10 + at, seed=at, temperature=(at % 2) * 0.9, logprobs=1)) for at in range(11)]
    return [*jobs[:5], Job("eight of them", params(n=8, seed=5, temperature=1.0, max_tokens=12)), *jobs[5:]]


@lru_cache(1)
def crowd_answers() -> list[list[Answer]]:
    with engine(blocks=256, seats=24) as assembly:
        answers = run(assembly, crowd())
        assert assembly.client.stats().num_preemptions == 0
    assert len({answer.text for answer in answers[5]}) == 8
    return answers


class ParkedFirst(Gated):
    """Sees that nobody new is admitted past one that is parked."""

    def __init__(self) -> None:
        super().__init__()
        self.num_waited = 0

    def plan(self, step: Any) -> None:
        super().plan(step)
        parked = [r for r in step.waiting if r.state is RequestState.PARKED]
        admitted = [r for r in step.waiting if r.state is RequestState.RUNNING and not r.num_preemptions]
        self.num_waited += len(parked)
        assert not (parked and admitted), f"{admitted} went before {parked}"


@pytest.fixture
def as_measured(monkeypatch: pytest.MonkeyPatch) -> None:
    """What `auto` follows differs from run to run; here every other victim is parked."""
    quicker = cycle((True, False))
    monkeypatch.setattr("corekit.engine.rates.Rates.swap_is_quicker", lambda self, num_bytes, num_tokens: next(quicker))


@pytest.mark.usefixtures("as_measured")
@pytest.mark.parametrize(
    ("executor", "stack", "preemption", "host"),
    [
        ("in-process", ALL, "swap", 64),
        ("delayed", ALL, "swap", 64),
        ("in-process", SWAP, "swap", 64),
        ("delayed", ALL, "auto", 64),
        ("delayed", SWAP, "swap", 6),
        ("in-process", ALL, "swap", 6),
    ],
)
def test_the_first_use_of_swap_changes_nothing(executor: str, stack: Sequence[str], preemption: str, host: int) -> None:
    """A pool for three of twelve. With room for six host blocks most cannot be parked: they compute again, and that is counted."""
    policy = ParkedFirst()
    with memory(executor, stack, preemption=preemption, blocks=24, host=host, seats=10, budget=32, policy=policy) as assembly:
        assert run_gated(assembly, policy, crowd()) == crowd_answers()
        check_whole(assembly)
        stats = assembly.client.stats()
        assert stats.num_swap_preemptions > 1
        assert stats.num_bytes_to_host and stats.num_bytes_to_device
        assert policy.num_waited > 1
        assert bool(stats.num_swap_refusals) == (host == 6)
        assert host == 6 or (stats.num_swap_preemptions == stats.num_preemptions) == (preemption == "swap")


# -- whatever step it hits


@pytest.mark.parametrize(
    ("executor", "how", "stack"),
    [
        ("delayed", "all", ALL),
        pytest.param("delayed", "some", ALL, marks=pytest.mark.slow),
        pytest.param("delayed", "after", SWAP, marks=pytest.mark.slow),
        pytest.param("in-process", "after", SWAP, marks=pytest.mark.slow),
    ],
)
def test_swap_at_every_step_changes_nothing(executor: str, how: str, stack: Sequence[str]) -> None:
    """Ids, text, logprobs, ends, counts: those of a large pool without preemption. With `lru-prefix` what is parked is mostly on the device still."""
    jobs, answers = (each[1::2] for each in wanted())  # drawn, three samples, ends by a stop id, logprobs of a prompt
    policy = Gated()
    with memory(executor, stack, preemption="swap", budget=32, policy=policy) as assembly:
        for at in range(1, MAX_TOKENS + 4):
            policy.arm(at, how)
            before = assembly.client.stats()
            assert run_gated(assembly, policy, jobs) == answers, f"parked in plan {at}"
            after = assembly.client.stats()
            assert after.num_preemptions - before.num_preemptions == policy.num_preempted
            assert after.num_prompt_tokens - before.num_prompt_tokens == sum(len(job.prompt) for job in jobs)
            assert after.num_swap_refusals == 0
            if at < MAX_TOKENS:
                assert after.num_swap_preemptions > before.num_swap_preemptions
        assert after.num_bytes_to_device > 0


@pytest.mark.usefixtures("as_measured")
@pytest.mark.parametrize(
    ("executor", "stack", "preemption"),
    [("delayed", ALL, "swap"), ("in-process", ALL, "auto"), ("delayed", ALL, "auto"), ("delayed", ALL, "recompute"), ("delayed", SWAP, "auto")],
)
def test_a_tiny_pool_changes_nothing_whatever_becomes_of_victims(executor: str, stack: Sequence[str], preemption: str) -> None:
    jobs, answers = wanted()
    policy = Gated()
    with memory(executor, stack, preemption=preemption, blocks=14, budget=32, policy=policy) as assembly:
        for _ in range(2):  # the second time much of it is cached
            policy.arm()
            assert run_gated(assembly, policy, jobs) == answers
        stats = assembly.client.stats()
        assert stats.num_preemptions >= 2
        assert (stats.num_swap_preemptions == 0) == (preemption == "recompute")
        assert (stats.num_swap_preemptions == stats.num_preemptions) == (preemption == "swap")


# -- coming back


class Squeeze(Fcfs):
    """Takes the first request's blocks once it has so many tokens, then lets the others run before it, and tries it in every step after them."""

    def __init__(self, num_output_tokens: int, mode: PreemptMode = "swap") -> None:
        self.least = num_output_tokens
        self.mode = mode
        self.gave_way = False
        self.needs = lambda step, r: 0
        self.tries: list[tuple[int, int, bool]] = []

    def plan(self, step: Any) -> None:
        first = next((r for r in step.running if r.arrival == 0), None)
        if first is not None and not self.gave_way and first.num_output_tokens >= self.least:
            step.preempt(first, self.mode)
            self.gave_way = True
        at = 0
        while (refusal := step.schedule_many(step.running, at)) and refusal.reason is Reason.BLOCKS:
            step.preempt(step.resident[-1], self.mode)
            at = refusal.index
        for request in sorted(step.waiting, key=lambda r: -r.arrival):
            free = step.free_blocks
            if request.arrival == 0 and request.num_preemptions:
                needed, parked = self.needs(step, request), request.state is RequestState.PARKED
                grant = step.schedule(request)
                if grant.reason in (None, Reason.BLOCKS):
                    self.tries.append((needed, free, bool(grant)))
                    assert not (grant and parked) or free - step.free_blocks == needed
            elif self.gave_way or request.arrival == 0:
                step.schedule(request)


@pytest.mark.parametrize(
    ("executor", "stack", "mode", "budget"),
    [("in-process", SWAP, "swap", 128), ("delayed", ALL, "swap", 16), ("in-process", ALL, "recompute", 16), ("delayed", LRU, "recompute", 16)],
)
def test_what_gave_way_waits_for_room_for_all_of_it(executor: str, stack: Sequence[str], mode: PreemptMode, budget: int) -> None:
    """Prompt 16, taken away after 100 tokens: what comes back takes 29 blocks or more, not 4; another leaves it three for a while.

    That its first chunk would fit lets it in no sooner, nor that what it finds in the cache lies idle.
    """
    policy, prompt = Squeeze(100, mode), "sixteen letters."
    policy.needs = lambda step, r: -(-(r.num_prompt_tokens + r.num_output_tokens) // SIZE)
    with memory(executor, stack, blocks=33, budget=budget, policy=policy) as assembly:
        jobs = [Job(prompt, params(max_tokens=112)), Job("y" * 113, params(max_tokens=7))]
        first, second = run(assembly, jobs)
        assert (first[0].ids, second[0].ids) == (greedy(prompt, 112), greedy("y" * 113, 7))
        stats = assembly.client.stats()
        assert (stats.num_preemptions, stats.num_swap_preemptions) == (1, int(mode == "swap"))
    assert [granted for _, _, granted in policy.tries] == [False] * (len(policy.tries) - 1) + [True]
    assert any(free <= 4 for _, free, _ in policy.tries)
    assert all(needed >= 29 and granted == (free >= needed) for needed, free, granted in policy.tries)


@pytest.mark.parametrize(("executor", "stack", "mode", "budget"), [("delayed", ALL, "swap", 128), ("in-process", LRU, "recompute", 6)])
def test_what_comes_back_is_counted_once_however_much_of_it_was_evicted(executor: str, stack: Sequence[str], mode: PreemptMode, budget: int) -> None:
    """It needs its blocks less those that others use at the moment: no matter which of them lie idle on the device, on the host, or nowhere.

    Fillers of every size evict another part of it; one that begins alike holds two of its blocks.
    """
    begin = [11, 12, 13, 14, 15, 16, 17, 18]
    asked = [*begin, *range(20, 30)]
    parts, seen = set(), set()
    for size in range(1, 11, 2):
        policy = Squeeze(9, mode)

        def needs(step: Any, r: Any) -> int:
            shared = 2 * any(other.arrival == 1 for other in step.resident)
            return -(-(r.num_prompt_tokens + r.num_output_tokens) // SIZE) - shared

        policy.needs = needs
        with memory(executor, stack, blocks=13, budget=budget, policy=policy) as assembly:
            filler = [90 + size, *range(40, 40 + size * SIZE - 2)]
            jobs = [Job(one, SamplingParams(temperature=0, max_tokens=most, ignore_eos=True)) for one, most in ((asked, 20), ([*begin, 99], 5), (filler, 9))]
            assert [ids(samples) for samples in run(assembly, jobs)] == [[greedy(job.prompt, job.params.max_tokens)] for job in jobs]
            check_whole(assembly)
            stats = assembly.client.stats()
            assert 1 <= stats.num_preemptions <= 4
            assert stats.num_swap_preemptions == (stats.num_preemptions if mode == "swap" else 0)
            parts.add(stats.num_bytes_to_device or stats.memory.num_evicted)
        assert all(granted == (free >= needed) for needed, free, granted in policy.tries), policy.tries
        seen |= {(needed < 6, granted) for needed, _, granted in policy.tries}
    assert len(parts) >= 4, f"parts of it that were evicted: {parts}"
    assert {granted for _, granted in seen} == {True, False} and {shared for shared, _ in seen} == {True, False}


@pytest.mark.parametrize("executor", EXECUTORS)
def test_what_others_parked_does_not_push_out_what_is_promised(executor: str) -> None:
    """The host's cache gives way to who parks, and comes back to nobody wrongly: conversations and parking on a host of nine blocks."""
    with memory(executor, ALL, preemption="swap", blocks=14, host=9, seats=4) as assembly:
        for turn in range(6):
            prompts = [[who, *range(30, 30 + 2 * turn), *range(60, 66)] for who in range(5)]
            tell(assembly, prompts, 9)
        stats = assembly.client.stats()
        assert stats.num_swap_preemptions and stats.num_prefix_hits
        assert stats.memory.num_host_cached
