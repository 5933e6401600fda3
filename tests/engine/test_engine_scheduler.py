"""The scheduler in rare states, one at a time, without a worker."""

from __future__ import annotations

import logging

import pytest
from bare import Bare

from corekit.api import Reason, RequestState
from corekit.builtin.fcfs import Fcfs
from corekit.builtin.free_list import FreeList
from corekit.engine.blocks import BrokenStackError
from corekit.testing.prefix_cache import PlainPrefixCache


class Scripted(Fcfs):
    """Runs the given functions, one a step, then plans as fcfs."""

    def __init__(self, *scripts) -> None:
        self.scripts = list(scripts)

    def plan(self, step) -> None:
        if self.scripts:
            return self.scripts.pop(0)(step)
        return super().plan(step)


# -- laws of work: what the law of tokens cannot see


@pytest.mark.parametrize("threshold", [0, 2])
def test_no_position_is_computed_twice(threshold: int) -> None:
    bare = Bare(long_prefill_token_threshold=threshold)
    bare.add(5, max_tokens=6)
    bare.add(1, max_tokens=1)
    bare.add(9, max_tokens=4, n=3)
    bare.run()
    assert bare.work == {"r0": 5 + 5, "r1": 1, "r2": 9 + 3 * 3}


def test_a_cached_prefix_is_not_computed_again_but_for_its_last_token() -> None:
    for length, computed in ((8, 4), (9, 1), (7, 3), (3, 3)):
        bare = Bare(stack=PlainPrefixCache(FreeList(32)))
        bare.add(length, max_tokens=1)
        bare.run()
        bare.add(length, max_tokens=1)
        bare.run()
        assert bare.work == {"r0": length, "r1": computed}


def test_a_half_shared_block_is_not_published_until_one_table_lists_it() -> None:
    """The leader fills the half block before its fork commits; a sibling left alone with it would write into a published block."""
    stack = PlainPrefixCache(FreeList(32))
    bare = Bare(stack=stack)
    bare.add(6, max_tokens=8, n=2)
    flights = [bare.schedule() for _ in range(3)]  # the prompt, position 6, position 7
    shared = flights[0][0].request.table[1]
    for rows in flights:
        bare.commit(rows)
    assert bare.scheduler.blocks.refs[shared] == 2
    assert shared not in stack._key_of
    bare.step()  # the sibling copies it at its first write
    bare.step()
    assert bare.scheduler.blocks.refs[shared] == 1
    assert shared in stack._key_of
    bare.run()


def test_a_block_that_an_undone_copy_had_holds_the_later_copy() -> None:
    """Copies run in program order: the target of an undone copy is handed out again within the step."""

    def undo_then_copy(step) -> None:
        first, second = step.running[0], step.running[1]
        assert step.schedule(first)
        step.preempt(first)
        assert step.schedule(second)

    bare = Bare(Scripted(Fcfs().plan, undo_then_copy))
    leaders = [bare.add([token] * 6, n=2) for token in (1, 2)]
    bare.step()
    shared = [leader.table[1] for leader in leaders]
    bare.schedule()
    undone, kept = bare.last.copies
    assert undone.target == kept.target
    assert [undone.source.block, kept.source.block] == shared


def test_nothing_is_computed_beyond_the_answer_while_it_is_in_flight() -> None:
    bare = Bare()
    bare.add(3, max_tokens=2)
    flights = [bare.schedule() for _ in range(4)]
    assert [len(rows) for rows in flights] == [1, 1, 0, 0]
    for rows in flights[:2]:
        bare.commit(rows)
    assert list(bare.scheduler.audit()) == []


def test_samples_share_the_blocks_of_their_prompt() -> None:
    bare = Bare(num_blocks=60, max_num_seqs=10, budget=512)
    bare.add(102, max_tokens=4, n=10)  # 26 blocks, the last half-filled
    most = 0
    while bare.scheduler.groups:
        bare.step()
        most = max(most, 60 - bare.scheduler.step.free_blocks)
    assert most == 25 + 10  # full blocks once, the half-filled one once per writer; ten private prompts would take 260


def test_the_half_filled_block_is_copied_once_per_writer() -> None:
    bare = Bare(num_blocks=60, max_num_seqs=4)
    bare.add(6, max_tokens=3, n=4)
    copies = []
    while bare.scheduler.groups:
        rows = bare.schedule()
        copies += bare.last.copies
        bare.commit(rows)
    assert len(copies) == 3  # the last owner writes in place


# -- limits


def test_undo_gives_budget_seat_and_blocks_back() -> None:
    seen = []

    def undo(step) -> None:
        before = step.token_budget, step.seats, step.free_blocks
        first = step.running[0]
        assert step.schedule(first)
        assert step.schedule(first).reason is Reason.SCHEDULED
        step.preempt(first)
        assert step.schedule(first).reason is Reason.PREEMPTED
        seen.append((before, (step.token_budget, step.seats, step.free_blocks)))

    bare = Bare(Scripted(Fcfs().plan, undo))
    bare.add(3)
    bare.step()
    bare.step()
    (before, after) = seen[0]
    assert after == (before[0], before[1] + 1, before[2] + 1)
    bare.run()


def test_a_victim_scheduled_earlier_in_the_step_leaves_it_whole() -> None:
    """Three requests with priorities 5, 1, 9, no free block; each needs one: the least urgent gives way, already scheduled or not."""

    def by_priority(step) -> None:
        for request in step.running:
            while step.schedule(request).reason is Reason.BLOCKS:
                victim = max(step.resident, key=lambda r: r.priority)
                step.preempt(victim)
                if victim is request:
                    break

    bare = Bare(Scripted(Fcfs().plan, by_priority), num_blocks=4)
    requests = [bare.add(4, priority=p) for p in (5, 1, 9)]
    bare.step()
    rows = bare.schedule()
    assert [row.request for row in rows] == requests[:2]
    assert requests[2].state is RequestState.PREEMPTED
    assert sum(row.num_tokens for row in rows) + bare.scheduler.step.token_budget == 64
    bare.commit(rows)
    bare.run()


def test_the_watermark_spares_blocks_for_those_that_run() -> None:
    bare = Bare(num_blocks=6, watermark_blocks=2)
    bare.add(4)  # alone: the watermark does not matter
    second = bare.add(16)  # 4 of the 5 free blocks
    bare.schedule()
    assert second.state is RequestState.WAITING
    third = Bare(num_blocks=6, watermark_blocks=6)
    third.add(16, max_tokens=1)
    third.run()


def test_seats_are_reserved_for_all_samples() -> None:
    bare = Bare(max_num_seqs=4)
    bare.add(3, n=3)
    waits = bare.add(3, n=2)
    bare.step()
    assert waits.state is RequestState.WAITING
    assert bare.scheduler.step.seats == 1
    bare.run()


def test_chunks_respect_budget_and_threshold() -> None:
    bare = Bare(budget=10, long_prefill_token_threshold=4)
    bare.add(20, max_tokens=1)
    bare.add(20, max_tokens=1)
    sizes = []
    while bare.scheduler.groups:
        rows = bare.schedule()
        sizes.append([row.num_tokens for row in rows])
        bare.commit(rows)
    assert sizes == [[4, 4]] * 5


@pytest.mark.parametrize("max_tokens", [0, -1])
def test_asking_for_no_tokens_grants_none(max_tokens: int) -> None:
    def ask(step) -> None:
        grant = step.schedule(step.waiting[0], max_tokens)
        assert not grant
        assert grant.reason is Reason.BUDGET

    bare = Bare(Scripted(ask))
    bare.add(3)
    bare.run()


# -- what can never run, or outgrows the pool


def test_what_can_never_fit_is_refused_with_the_numbers() -> None:
    scheduler = Bare(num_blocks=8, block_size=16).scheduler
    assert scheduler.limits.refusal(127, 1) is None
    message = scheduler.limits.refusal(200, 1)
    assert "200" in message
    assert "13 KV blocks" in message
    assert "128 tokens" in message
    assert "max_num_seqs = 8" in scheduler.limits.refusal(3, 9)


@pytest.mark.parametrize("threshold", [0, 3])
def test_a_request_that_outgrows_the_pool_alone_ends_with_length(threshold: int, caplog: pytest.LogCaptureFixture) -> None:
    bare = Bare(num_blocks=4, long_prefill_token_threshold=threshold)
    request = bare.add(10, max_tokens=100)
    after = bare.add(3, max_tokens=2)
    with caplog.at_level(logging.WARNING):
        bare.run()
    assert request.num_output_tokens == 16 + 1 - 10
    assert request.group.finish_reason == "length"
    assert after.num_output_tokens == 2
    assert "outgrew the KV pool of 16 tokens" in caplog.text


# -- aborts


def test_abort_between_schedule_and_commit_frees_at_once_and_discards_the_token() -> None:
    bare = Bare()
    request = bare.add(5)
    other = bare.add(5, max_tokens=3)
    rows = bare.schedule()
    bare.scheduler.end("r0", sample=None, reason="abort")
    assert request.table == []
    bare.commit(rows)
    assert request.num_output_tokens == 0
    assert other.num_output_tokens == 1
    reasons = [d.finish_reason for d in bare.scheduler.deltas if d.request_id == "r0"]
    assert reasons == ["abort"]
    bare.run()


def test_abort_of_a_leader_before_its_fork_ends_the_request_with_one_delta() -> None:
    bare = Bare()
    bare.add(5, n=3)
    rows = bare.schedule()
    bare.scheduler.end("r0", sample=None, reason="abort")
    bare.commit(rows)
    assert [(d.sample, d.finish_reason) for d in bare.scheduler.deltas] == [(0, "abort")]
    bare.run()


def test_abort_of_one_sample_leaves_the_others() -> None:
    bare = Bare()
    bare.add(5, n=3, max_tokens=4)
    bare.step()
    bare.scheduler.end("r0", sample=1, reason="stop")
    group = bare.scheduler.groups["r0"]
    bare.run()
    assert [r.num_output_tokens for r in group.samples] == [4, 1, 4]


@pytest.mark.parametrize("when", ["waiting", "mid-prefill", "decoding", "preempted", "preempted in flight"])
def test_abort_in_every_state_gives_everything_back(when: str) -> None:
    def preempt_all(step) -> None:
        for request in list(step.resident):
            step.preempt(request)

    bare = Bare(Scripted(*{"preempted": [Fcfs().plan, preempt_all], "preempted in flight": [Fcfs().plan, preempt_all]}.get(when, [])), budget=4)
    bare.add(6 if when == "mid-prefill" else 3)
    rows = []
    if when != "waiting":
        rows = bare.schedule()
        if when != "preempted in flight":
            bare.commit(rows)
            rows = []
    if when.startswith("preempted"):
        bare.schedule()
    bare.scheduler.end("r0", sample=None, reason="abort")
    if rows:
        bare.commit(rows)
    assert not bare.scheduler.groups
    assert list(bare.scheduler.audit()) == []


def test_an_unknown_id_is_ignored() -> None:
    Bare().scheduler.end("nobody", sample=None, reason="abort")


# -- bad policies


def test_a_policy_that_raises_keeps_its_grants_and_is_reported_once(caplog: pytest.LogCaptureFixture) -> None:
    def broken(step) -> None:
        step.schedule(step.waiting[1])
        raise ZeroDivisionError("oh")

    bare = Bare(Scripted(broken, broken))
    first, second, third = (bare.add(3) for _ in range(3))
    with caplog.at_level(logging.WARNING):
        rows = bare.schedule()
    assert [row.request for row in rows] == [second, first, third]
    assert caplog.text.count("Scripted raised ZeroDivisionError('oh') at ") == 1
    assert f"{__file__}:" in caplog.text
    bare.commit(rows)
    bare.scheduler.planner.policy.scripts.clear()
    bare.run()


def test_a_policy_that_does_nothing_is_replaced_and_named(caplog: pytest.LogCaptureFixture) -> None:
    class Lazy:
        def plan(self, step) -> None:
            pass

    bare = Bare(Lazy())
    bare.add(3)
    with caplog.at_level(logging.WARNING):
        bare.run()
    assert caplog.text.count("Lazy scheduled nothing") == 1


def test_a_plan_is_valid_during_plan_only() -> None:
    kept = []
    bare = Bare(Scripted(kept.append))
    request = bare.add(3)
    bare.step()
    for call in (lambda: kept[0].schedule(request), lambda: kept[0].schedule_many([request]), lambda: kept[0].preempt(request)):
        with pytest.raises(RuntimeError, match="during plan"):
            call()


@pytest.mark.parametrize(
    "spoil",
    [
        lambda step: step.waiting.sort(key=id),
        lambda step: step.resident.clear(),
        lambda step: step.preempted.append(step.waiting[0]),
        lambda step: setattr(step, "token_budget", 10**6),
        lambda step: setattr(step, "seats", 10**6),
        lambda step: step.schedule(step.waiting[0], 2.5),
    ],
    ids=["waiting", "resident", "preempted", "budget", "seats", "half a token"],
)
def test_a_policy_cannot_change_what_it_is_shown(spoil, caplog: pytest.LogCaptureFixture) -> None:
    bare = Bare(Scripted(spoil))
    for _ in range(3):
        bare.add(3)
    with caplog.at_level(logging.WARNING):
        bare.run()
    assert "Scripted raised" in caplog.text


def test_a_policy_that_only_preempts_is_replaced(caplog: pytest.LogCaptureFixture) -> None:
    class Spiteful:
        def plan(self, step) -> None:
            for request in step.resident:
                step.preempt(request)

    bare = Bare(Spiteful(), budget=4)
    bare.add(20, max_tokens=3)
    with caplog.at_level(logging.WARNING):
        bare.run()
    assert "first come first served replaces it" in caplog.text


def test_a_victim_with_tokens_in_flight_comes_before_who_never_ran() -> None:
    """Its blocks are free at once, but fcfs does not give them to a younger request while its last tokens are on their way."""

    def preempt(step) -> None:
        step.preempt(step.resident[0])

    bare = Bare(Scripted(Fcfs().plan, Fcfs().plan, preempt))
    victim = bare.add(5)
    flights = [bare.schedule(), bare.schedule()]
    younger = bare.add(5)
    assert bare.schedule() == []  # preempted, two rows in flight
    assert bare.schedule() == []
    bare.commit(flights[0])
    assert bare.schedule() == []
    bare.commit(flights[1])
    assert [row.request for row in bare.step()] == [victim, younger]
    bare.run()


def test_a_prompt_is_admitted_whole_or_not_at_all() -> None:
    """By its first chunk alone it would be computed, run out of blocks, give way to itself, and begin again."""
    bare = Bare(num_blocks=16, budget=8)
    bare.add(20, max_tokens=20)
    bare.step()
    bare.add(30, max_tokens=1)
    bare.run()
    assert bare.work == {"r0": 20 + 19, "r1": 30}
    assert bare.scheduler.counts.num_preemptions == 0


def test_an_unknown_preempt_mode_is_an_error() -> None:
    def wrong(step) -> None:
        with pytest.raises(ValueError, match="'swop': it is one of"):
            step.preempt(step.running[0], "swop")
        step.schedule_many(step.running)

    bare = Bare(Scripted(Fcfs().plan, wrong))
    bare.add(3)
    bare.run()


def test_siblings_arrive_in_the_state_they_live_in() -> None:
    class Books(Fcfs):
        seen: tuple = ()

        def on_arrive(self, request) -> None:
            self.seen += ((request.state, request.num_computed_tokens),)

        def on_progress(self, request, prompt_tokens, output_tokens) -> None: ...

        def on_leave(self, request) -> None: ...

    books = Books()
    bare = Bare(books)
    bare.add(5, n=2)
    bare.run()
    assert books.seen == ((RequestState.WAITING, 0), (RequestState.RUNNING, 5))


def test_preempting_who_holds_nothing_is_an_error() -> None:
    def wrong(step) -> None:
        with pytest.raises(ValueError, match="holds no blocks"):
            step.preempt(step.waiting[0])

    bare = Bare(Scripted(wrong))
    bare.add(3)
    bare.run()


def test_accounting_hears_of_arrivals_progress_and_leaving() -> None:
    class Books(Fcfs):
        def __init__(self) -> None:
            self.heard = []

        def on_arrive(self, request) -> None:
            self.heard.append(("arrive", request.id))

        def on_progress(self, request, prompt_tokens, output_tokens) -> None:
            self.heard.append(("progress", request.id, prompt_tokens, output_tokens))

        def on_leave(self, request) -> None:
            self.heard.append(("leave", request.id))
            raise RuntimeError("a policy may raise here too")

    books = Books()
    bare = Bare(books, budget=4)
    bare.add(6, max_tokens=2)
    bare.run()
    assert books.heard == [("arrive", 1), ("progress", 1, 4, 0), ("progress", 1, 2, 1), ("progress", 1, 0, 1), ("leave", 1)]


# -- a stack that breaks its word


def test_a_refused_allocation_leaves_the_request_waiting() -> None:
    class Lying(FreeList):
        refuse = True

        def take(self, count):
            return None if self.refuse else super().take(count)

    stack = Lying(32)
    bare = Bare(stack=stack)
    request = bare.add(5)
    assert bare.step() == []
    assert request.state is RequestState.WAITING
    stack.refuse = False
    bare.step()
    stack.refuse = True
    for _ in range(3):
        bare.step()
    stack.refuse = False
    bare.run()


def test_a_stack_that_raises_is_named_and_not_the_policy(caplog: pytest.LogCaptureFixture) -> None:
    class Broken(FreeList):
        def take(self, count):
            raise OSError("no memory")

    bare = Bare(stack=Broken(32))
    bare.add(3)
    with caplog.at_level(logging.WARNING), pytest.raises(BrokenStackError, match=r"block_allocator Broken.take raised OSError\('no memory'\)"):
        bare.step()
    assert "policy" not in caplog.text
