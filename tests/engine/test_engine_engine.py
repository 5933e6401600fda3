"""The loop: inbox, flights, observers, stats, and its end."""

from __future__ import annotations

import itertools
import logging
import threading

import pytest

from corekit.api import RequestStats, SamplingParams, StepResult, StepStats
from corekit.builtin.fcfs import Fcfs
from corekit.builtin.free_list import FreeList
from corekit.engine.blocks import CopyJournal
from corekit.engine.engine import Engine
from corekit.engine.limits import Limits
from corekit.engine.request import NewRequest
from corekit.engine.scheduler import Scheduler


class Answering:
    """An executor without a worker: answers each step with token 1 per draw, `depth` steps late; can be told to fault."""

    max_draft_tokens = 0

    def __init__(self, depth: int = 1) -> None:
        self.max_in_flight = depth
        self.steps = []
        self.faulty: set[int] = set()
        self.most = 0

    def submit(self, step) -> None:
        self.steps.append(step)
        self.most = max(self.most, len(self.steps))

    def sample(self, masks) -> None:
        assert masks is None

    def collect(self) -> StepResult:
        step = self.steps.pop(0)
        faults = {at: "oh" for at, row in enumerate(step.rows) if row.id in self.faulty}
        tokens = tuple(((1,),) * row.num_samples if row.num_samples and at not in faults else ((),) for at, row in enumerate(step.rows))
        return StepResult(tokens=tokens, faults=faults)


def build(executor, observers=(), num_blocks=32) -> Engine:
    clock = itertools.count().__next__
    limits = Limits(num_blocks=num_blocks, block_size=4, max_num_seqs=8, max_num_batched_tokens=64, max_model_len=4096)
    scheduler = Scheduler(stack=FreeList(num_blocks), journal=CopyJournal(), policy=Fcfs(), fallback=Fcfs(), limits=limits, clock=lambda: float(clock()))
    return Engine(scheduler, executor, observers=observers, clock=lambda: float(clock()))


def asked(name: str, prompt: int = 3, max_tokens: int = 4, n: int = 1) -> NewRequest:
    params = SamplingParams(n=n, max_tokens=max_tokens)
    return NewRequest(request_id=name, token_ids=tuple(range(prompt)), params=params, max_tokens=max_tokens, seed=0, end_ids=(), arrival_time=0.0)


def run(engine: Engine) -> list:
    deltas = []
    while not engine.idle:
        deltas += engine.step()
    return deltas


@pytest.mark.parametrize("depth", [1, 2, 3])
def test_steps_fly_as_far_as_the_executor_allows(depth: int) -> None:
    executor = Answering(depth)
    engine = build(executor)
    engine.submit(asked("a", max_tokens=10))
    deltas = run(engine)
    assert executor.most == depth
    assert sum(len(d.token_ids) for d in deltas) == 10
    assert [d.finish_reason for d in deltas][-1] == "length"
    assert engine.audit() == []


def test_a_row_fault_ends_its_request_alone() -> None:
    executor = Answering()
    executor.faulty = {1}
    engine = build(executor)
    engine.submit(asked("a"))
    engine.submit(asked("b"))
    deltas = run(engine)
    assert [(d.finish_reason, d.error) for d in deltas if d.request_id == "a"] == [("error", "oh")]
    assert sum(len(d.token_ids) for d in deltas if d.request_id == "b") == 4
    assert engine.audit() == []


def test_an_abort_that_follows_its_request_finds_it() -> None:
    engine = build(Answering())
    engine.submit(asked("a"))
    engine.abort("a")
    deltas = engine.step()
    assert [(d.request_id, d.finish_reason) for d in deltas] == [("a", "abort")]
    assert engine.idle
    assert engine.audit() == []


def test_counts_are_exact_under_concurrent_submissions() -> None:
    engine = build(Answering())
    threads = [threading.Thread(target=lambda t=t: [engine.submit(asked(f"{t}-{i}")) for i in range(200)]) for t in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert (engine.num_queued, engine.num_queued_tokens) == (800, 2400)
    run(engine)
    assert (engine.num_queued, engine.num_queued_tokens, engine.num_running) == (0, 0, 0)


def test_stats_count_each_request_once() -> None:
    engine = build(Answering())
    engine.submit(asked("a", n=3))
    engine.submit(asked("b"))
    engine.abort("b")
    run(engine)
    stats = engine.stats()
    assert stats.num_finished == {"length": 1, "abort": 1}
    assert (stats.num_prompt_tokens, stats.num_output_tokens) == (3, 12)  # b never ran
    assert (stats.num_free_blocks, stats.num_blocks) == (32, 32)


def test_observers_hear_of_steps_and_requests() -> None:
    class Book:
        def __init__(self) -> None:
            self.steps: list[StepStats] = []
            self.requests: list[RequestStats] = []

        def on_step(self, stats: StepStats) -> None:
            self.steps.append(stats)

        def on_request(self, stats: RequestStats) -> None:
            self.requests.append(stats)

    book = Book()
    engine = build(Answering(), [book])
    engine.submit(asked("a", n=2, max_tokens=1))
    engine.submit(asked("b", max_tokens=3))
    run(engine)
    assert sum(s.num_output_tokens for s in book.steps) == 5
    assert sum(s.num_tokens for s in book.steps) == 3 + 3 + 2
    assert {s.num_blocks for s in book.steps} == {32}
    for earlier, later in itertools.pairwise(book.steps):
        assert earlier.plan_time + earlier.plan_seconds + earlier.submit_seconds <= later.plan_time, "one thread plans"
    first, second = book.requests
    assert (first.request_id, first.num_samples, first.num_output_tokens, first.finish_reason) == ("a", 2, 2, "length")
    for stats in book.requests:
        assert 0 <= stats.queue_seconds < stats.first_token_seconds <= stats.total_seconds
    assert second.num_prompt_tokens == 3


def test_an_observer_that_raises_is_named_once_and_dropped(caplog: pytest.LogCaptureFixture) -> None:
    class Broken:
        def on_step(self, stats: StepStats) -> None:
            raise KeyError("x")

        def on_request(self, stats: RequestStats) -> None:
            raise AssertionError("it was dropped")

    engine = build(Answering(), [Broken()])
    engine.submit(asked("a"))
    with caplog.at_level(logging.WARNING):
        run(engine)
    assert caplog.text.count("observer Broken raised KeyError('x') in on_step") == 1


def test_fail_all_answers_everyone() -> None:
    engine = build(Answering())
    engine.submit(asked("a", n=2))
    engine.step()
    engine.submit(asked("b"))
    deltas = engine.fail_all("the device is gone")
    assert {(d.request_id, d.sample, d.finish_reason, d.error) for d in deltas} == {
        ("a", 0, "error", "the device is gone"),
        ("a", 1, "error", "the device is gone"),
        ("b", 0, "error", "the device is gone"),
    }
