"""The laws of slot `executor`. The kit drives it with workers that answer with what they were told; knows no model."""

from __future__ import annotations

import random
from collections import deque
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import ClassVar

from corekit.api import BuildContext, Executor, RowMasks, StepResult

from . import echo_worker as echo
from .kit import Kit, left_running, running

NUM_WALKS = 20
WALK_STEPS = 12


def _masks(number: int) -> RowMasks:
    return RowMasks(words={0: bytes([number, 1, 2, 255]), 3: b"\0\0\0\x80"})


class ExecutorKit(Kit):
    """Subclass it, set `provider`, inherit every law. Nothing but the contract is asked: where the ranks run is the executor's own affair.

    The kit's factory of workers can be pickled, and its workers tell what they got in their results, so ranks may live anywhere.
    """

    slot: ClassVar[str] = "executor"

    def context(self) -> BuildContext:
        return BuildContext(worker=echo.EchoFactory())

    @contextmanager
    def running(self, factory: echo.EchoFactory | None = None) -> Iterator[Executor]:
        """An executor over echo workers with their pools; shut down at the end."""
        context = self.context()
        executor: Executor = self.build(context if factory is None else replace(context, worker=factory))
        try:
            executor.allocate_kv(echo.PLAN)
            yield executor
        finally:
            executor.shutdown()

    def test_the_pool_is_asked_for_and_allocated_once(self) -> None:
        """`free_memory`, `bytes_per_block` and `allocate_kv` reach the worker: what it answers comes back, and its pools are allocated once, as planned."""
        with self.running() as executor:
            assert executor.free_memory() == echo.FREE_MEMORY, f"free_memory() must be what the worker has, {echo.FREE_MEMORY}, got {executor.free_memory()}"
            for dtype in ("float32", "bfloat16"):
                assert executor.bytes_per_block(dtype) == echo.bytes_per_block(dtype), f"bytes_per_block({dtype!r}) must be the worker's answer for that dtype"
            result = _run(executor, 0)
            assert result.faults[3] == f"pools {[echo.PLAN]!r}", f"the worker must allocate once, with the plan as it was given; it saw {result.faults[3]}"

    def test_drafts_are_the_workers_number(self) -> None:
        """`max_draft_tokens` is what the worker can do: another number makes the engine send drafts that nobody computes, or none."""
        with self.running() as executor:
            assert executor.max_draft_tokens == echo.MAX_DRAFT_TOKENS, f"max_draft_tokens must be the worker's {echo.MAX_DRAFT_TOKENS}"

    def test_a_step_arrives_as_it_was_given(self) -> None:
        """Every field of a step reaches the worker with its value and its type, at the bounds of the types too."""
        with self.running() as executor:
            for number in range(2):
                arrived, given = _run(executor, number).faults[0], f"step {echo.step(number)!r}"
                assert arrived == given, f"what the worker got differs from what was submitted:\n{arrived}\nsubmitted was\n{given}"

    def test_a_result_comes_back_as_the_worker_gave_it(self) -> None:
        """Tokens, logprobs, prompt logprobs, faults and seconds of a result are the worker's, values and types alike."""
        with self.running() as executor:
            result, wanted = _run(executor, 0), echo.answer(echo.step(0), None, 0, [echo.PLAN])
            for name in ("tokens", "logprobs", "prompt_logprobs", "seconds"):
                assert repr(getattr(result, name)) == repr(getattr(wanted, name)), (
                    f"{name} of the result is {getattr(result, name)!r}, the worker gave {getattr(wanted, name)!r}"
                )
            assert set(result.faults) == set(wanted.faults), f"the result has faults for rows {sorted(result.faults)}, the worker gave {sorted(wanted.faults)}"

    def test_as_many_steps_as_it_says_can_be_in_flight(self) -> None:
        """`max_in_flight` is 1 or more, does not change, and so many steps can be submitted and sampled before one is collected."""
        with self.running() as executor:
            most = executor.max_in_flight
            assert type(most) is int, f"max_in_flight must be an integer of 1 or more, got {most!r}"
            assert most >= 1, f"max_in_flight must be an integer of 1 or more, got {most!r}"
            for start in (0, most):
                for number in range(start, start + most):
                    executor.submit(echo.step(number))
                    executor.sample(None)
                collected = [executor.collect() for _ in range(most)]
                assert len(collected) == most == executor.max_in_flight, "max_in_flight changed"

    def test_results_come_in_the_order_of_submission(self) -> None:
        """`collect` gives the oldest step that was not collected yet."""
        with self.running() as executor:
            most = executor.max_in_flight
            for number in range(most):
                executor.submit(echo.step(number))
                executor.sample(None)
            came = [executor.collect().tokens[1] for _ in range(most)]
            wanted = [echo.answer(echo.step(number), None, 0, ()).tokens[1] for number in range(most)]
            assert came == wanted, f"results must come oldest first: row 1 drew {came}, wanted was {wanted}"

    def test_every_step_runs_once(self) -> None:
        """The worker submits, samples and collects each step once, in order, whatever the result looks like."""
        with self.running() as executor:
            for number in range(4):
                ran = _run(executor, number).faults[2]
                assert ran == f"step {number} in turn", f"step {number} must be the worker's {number + 1}. step; it says it was {ran}"

    def test_masks_reach_their_step(self) -> None:
        """Masks, or none, go to the step that was submitted last, whatever is in flight before it."""
        with self.running() as executor:
            most = executor.max_in_flight
            given = [_masks(number) if number % 2 else None for number in range(2 * most + 2)]
            flying: deque[int] = deque()
            for number, masks in enumerate(given):
                if len(flying) == most:
                    _expect_masks(executor.collect(), given[flying.popleft()])
                executor.submit(echo.step(number))
                executor.sample(masks)
                flying.append(number)
            while flying:
                _expect_masks(executor.collect(), given[flying.popleft()])

    def test_masks_are_read_when_they_are_given(self) -> None:
        """After `sample` returned, the caller may fill the same masks for the next step."""
        with self.running() as executor:
            words = {0: b"\1\0\0\0"}
            executor.submit(echo.step(0))
            executor.sample(RowMasks(words=words))
            words[0], words[2] = b"\2\0\0\0", b"\3\0\0\0"
            _expect_masks(executor.collect(), RowMasks(words={0: b"\1\0\0\0"}))

    def test_masks_may_wait_for_the_results_before_them(self) -> None:
        """submit(k), collect() of every earlier step, sample(k): what earlier steps drew decides the masks of the newest, so `sample` may come after."""
        with self.running() as executor:
            most, number = executor.max_in_flight, 0
            for flying in range(most):
                for _ in range(flying):
                    executor.submit(echo.step(number))
                    executor.sample(None)
                    number += 1
                executor.submit(echo.step(number))
                for earlier in range(number - flying, number):
                    came, wanted = executor.collect().tokens, echo.answer(echo.step(earlier), None, 0, ()).tokens
                    assert came == wanted, f"with step {number} submitted and not sampled, collect() must give step {earlier}; it gave {came}"
                executor.sample(_masks(number))
                _expect_masks(executor.collect(), _masks(number))
                number += 1

    def test_any_order_that_the_contract_allows_gives_the_same(self) -> None:
        """Random walks over submit, sample and collect: every result is that of its step, with its masks, in order."""
        for seed in range(NUM_WALKS):
            draw, flying, number = random.Random(seed), deque[tuple[int, RowMasks | None]](), 0
            with self.running() as executor:
                most, waits = executor.max_in_flight, False
                while number < WALK_STEPS or flying:
                    if flying and len(flying) > waits and (len(flying) == most or number == WALK_STEPS or draw.random() < 0.4):
                        oldest, masks = flying.popleft()
                        came, wanted = executor.collect(), echo.answer(echo.step(oldest), masks, oldest, [echo.PLAN])
                        assert (came.tokens, dict(came.faults)) == (wanted.tokens, wanted.faults), f"walk {seed}: the result of step {oldest} is {came}"
                    elif waits:
                        masks = _masks(draw.randrange(99)) if draw.random() < 0.5 else None
                        flying[-1] = (flying[-1][0], masks)
                        executor.sample(masks)
                        waits = False
                    elif number < WALK_STEPS and len(flying) < most:
                        executor.submit(echo.step(number))
                        flying.append((number, None))
                        number, waits = number + 1, True

    def test_a_failure_of_a_worker_is_not_hidden(self) -> None:
        """An exception in a worker is raised by the verb that met it or by a later one, at the latest when the step is collected, with its own words."""
        for verb in ("submit", "sample", "collect"):
            with self.running(echo.EchoFactory(fails_in=verb, fails_at=1)) as executor:
                _run(executor, 0)
                raised: Exception | None = None
                try:
                    _run(executor, 1)
                except Exception as error:
                    raised = error
                assert raised is not None, f"the worker raised in {verb}, and the step came back as if nothing had happened"
                assert echo.FAILED in str(raised), f"the worker raised {echo.FAILED!r} in {verb}; the executor raised {raised!r}, which does not say so"

    def test_it_is_healthy_while_its_workers_answer(self) -> None:
        """`check_health` is silent before, between and after steps."""
        with self.running() as executor:
            executor.check_health()
            executor.submit(echo.step(0))
            executor.check_health()
            executor.sample(None)
            executor.collect()
            executor.check_health()

    def test_shutdown_may_come_twice_and_at_any_time(self) -> None:
        """`shutdown` ends an executor without pools, with a step in flight, and one that was shut down already."""
        fresh: Executor = self.build()
        for _ in range(2):
            fresh.shutdown()
        with self.running() as executor:
            executor.submit(echo.step(0))
            for _ in range(2):
                executor.shutdown()

    def test_shutdown_leaves_nothing_running(self) -> None:
        """Threads and processes of the ranks end with `shutdown`: an engine that is assembled again gets the whole device."""
        before = running()
        with self.running() as executor:
            _run(executor, 0)
        left = left_running(before)
        assert not left, f"after shutdown these threads or processes go on: {left}. Tell them to end, and join them"


def _run(executor: Executor, number: int) -> StepResult:
    executor.submit(echo.step(number))
    executor.sample(None)
    return executor.collect()


def _expect_masks(result: StepResult, masks: RowMasks | None) -> None:
    wanted = f"masks {echo.spelled(masks)}"
    assert result.faults[1] == wanted, f"the step got {result.faults[1]}, and {wanted} was given to it"
