"""Swap or recompute: the measured rates, what they decide, and who may overrule them."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from bare import Bare
from corekit_cpu_swap.layer import CpuSwap
from test_engine_engine import Answering, asked, build, run
from test_engine_scheduler import Scripted

from corekit.api import BlockRef, RequestState, StepResult
from corekit.builtin.fcfs import Fcfs
from corekit.builtin.free_list import FreeList
from corekit.engine.blocks import CopyJournal
from corekit.engine.rates import Rates

FOREVER = 10**9


def rates(*, tokens: tuple[int, float] | None = None, copied: tuple[int, float] | None = None) -> Rates:
    made = Rates()
    if tokens:
        made.computed(*tokens)
    if copied:
        made.copied(*copied)
    return made


@pytest.mark.parametrize(
    ("tokens", "copied", "num_bytes", "num_tokens", "swap"),
    [
        ((1000, 1.0), (10**6, 1.0), 9_999, 10, True),  # 9.999 ms against 10 ms
        ((1000, 1.0), (10**6, 1.0), 10_001, 10, False),
        ((2000, 1.0), (10**6, 1.0), 9_999, 10, False),  # it computes twice as fast
        ((1000, 1.0), (10**6, 0.5), 10_001, 10, True),  # it copies twice as fast
        ((500, 0.5), (5 * 10**5, 0.5), 9_999, 10, True),  # rates, not amounts
        ((1000, 1.0), None, 99_999_999, 10, True),  # ten gigabytes a second are supposed
        ((1000, 1.0), None, 100_000_001, 10, False),
        (None, (10**6, 1.0), FOREVER, 1, True),  # nobody knows how long computing takes: long
        (None, None, FOREVER, 1, True),
        ((1000, 1.0), (10**6, 1.0), 0, 10, True),
        ((1000, 1.0), (10**6, 1.0), 0, 0, False),  # nothing would be lost
    ],
)
def test_what_was_measured_decides(tokens: Any, copied: Any, num_bytes: int, num_tokens: int, swap: bool) -> None:
    assert rates(tokens=tokens, copied=copied).swap_is_quicker(num_bytes, num_tokens) == swap


def test_what_took_no_time_was_not_measured() -> None:
    made = rates(tokens=(1000, 1.0), copied=(10**6, 1.0))
    for _ in range(50):
        made.computed(5, 0.0)
        made.copied(5, 0.0)
        made.computed(5, -1.0)
    assert made.swap_is_quicker(9_999, 10)
    assert not made.swap_is_quicker(10_001, 10)


@pytest.mark.parametrize("what", ["computed", "copied"])
def test_old_steps_fade(what: str) -> None:
    """It became ten times as fast: after thirty steps the old pace counts for less than a twentieth."""
    made = rates(tokens=(1000, 1.0), copied=(1000, 1.0))
    for _ in range(40):
        getattr(made, what)(1000, 1.0)
    before = made.swap_is_quicker(500, 100), made.swap_is_quicker(100, 500)
    for _ in range(30):
        getattr(made, what)(1000, 0.1)
    assert before == (False, True)
    if what == "computed":
        assert [made.swap_is_quicker(n, 1000) for n in (95, 145)] == [True, False]
    else:
        assert [made.swap_is_quicker(1000, n) for n in (145, 95)] == [True, False]


def test_a_long_step_counts_as_long_as_it_took() -> None:
    made = Rates()
    for _ in range(20):
        made.computed(1, 1.0)
        made.computed(999, 1.0)
    made.copied(1000, 1.0)
    assert [made.swap_is_quicker(1000, n) for n in (400, 600)] == [False, True]


# -- what an engine learns


class Timed(Answering):
    """A token takes a millisecond, and a step ten more; a copied block takes two."""

    def collect(self) -> StepResult:
        step, result = self.steps[0], super().collect()
        copying = 0.002 * len(step.copies)
        computing = 0.01 + 0.001 * sum(row.num_tokens for row in step.rows)
        return StepResult(tokens=result.tokens, seconds=computing + copying, copy_seconds=copying)


def test_an_engine_learns_from_steps_that_read_prompts_and_from_copies() -> None:
    engine = build(Timed())
    engine.scheduler.limits = replace(engine.scheduler.limits, bytes_per_block=1000)
    engine.submit(asked("a", prompt=30, max_tokens=20, n=2))  # 30 tokens in 40 ms; then decodes, and the half block once
    run(engine)
    told = engine.scheduler.rates
    assert told._tokens / told._token_seconds == pytest.approx(30 / 0.040)
    assert not told._bytes, "a fork copies within the device"
    engine.scheduler._journal.copy(BlockRef(1), BlockRef(0, on_host=True))
    engine.submit(asked("b", prompt=8, max_tokens=2))
    run(engine)
    assert told._bytes / told._copy_seconds == pytest.approx(1000 / 0.002)


# -- who decides

QUICK, SLOW = (10**6, 1.0), (10**5, 1.0)
"""Three blocks of a thousand bytes away and back: 6 ms or 60; their 12 tokens take 12."""


def give_way(configured: Any, said: Any, copied: Any, **limits: Any) -> tuple[Bare, Any]:
    """One of 12 tokens gives way, in a step of its own."""
    journal = CopyJournal()
    stack = CpuSwap(FreeList(32), journal, num_slots=8, max_cached=0)
    bare = Bare(
        Scripted(Fcfs().plan, lambda step: step.preempt(step.resident[0], said)),
        journal=journal,
        stack=stack,
        preemption=configured,
        bytes_per_block=1000,
        **limits,
    )
    bare.scheduler.rates.computed(1000, 1.0)
    bare.scheduler.rates.copied(*copied)
    r = bare.add(12)
    bare.step()
    bare.scheduler.schedule()
    return bare, r


@pytest.mark.parametrize("copied", [QUICK, SLOW])
@pytest.mark.parametrize("configured", [None, "swap", "recompute"])
@pytest.mark.parametrize("said", [None, "swap", "recompute"])
def test_the_policy_decides_then_the_configuration_then_the_rates(said: Any, configured: Any, copied: Any) -> None:
    bare, r = give_way(configured, said, copied)
    swap = (said or configured or ("swap" if copied is QUICK else "recompute")) == "swap"
    assert (r.state, r.num_computed_tokens) == ((RequestState.PARKED, 12) if swap else (RequestState.PREEMPTED, 0))
    counts = bare.scheduler.counts
    assert (counts.num_preemptions, counts.num_swap_preemptions, counts.num_swap_refusals) == (1, int(swap), 0)


def test_what_others_hold_is_neither_copied_nor_lost() -> None:
    """Two samples of a prompt of 12 tokens: with a token of its own, the second would lose one block of four positions, not thirteen."""
    seen = []
    journal = CopyJournal()

    def ask(step: Any) -> None:
        bare.scheduler.rates.swap_is_quicker = lambda *asked: bool(seen.append(asked))  # type: ignore[method-assign, func-returns-value]
        step.preempt(step.resident[1])
        step.preempt(step.resident[0])

    bare = Bare(
        Scripted(Fcfs().plan, Fcfs().plan, ask),
        journal=journal,
        stack=CpuSwap(FreeList(32), journal, num_slots=8, max_cached=0),
        bytes_per_block=1000,
    )
    bare.add(12, n=2)
    for _ in range(2):
        bare.step()
    bare.scheduler.schedule()
    assert seen == [(2 * 1000, 4), (2 * 4 * 1000, 13)]
