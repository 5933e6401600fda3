"""Executors with one fault each, of the kind that an author would make, and the law that must catch it."""

from __future__ import annotations

import copy
import json
import threading
from collections import deque
from collections.abc import Callable
from dataclasses import replace
from typing import Any

from corekit.api import Executor, KvPlan, Provider, RowInput, RowMasks, StepInput, StepResult, Worker

SUMMARY = "runs a step when its result is due, from copies"


class Deferred:
    """Right: keeps up to three steps and runs each when it is collected."""

    max_in_flight = 3

    def __init__(self, make: Callable[[int, int], Worker]) -> None:
        self._worker = make(0, 1)
        self._steps: deque[list[Any]] = deque()

    @property
    def max_draft_tokens(self) -> int:
        return self._worker.max_draft_tokens

    def free_memory(self) -> int:
        return self._worker.free_memory()

    def bytes_per_block(self, kv_dtype: str) -> int:
        return self._worker.bytes_per_block(kv_dtype)

    def allocate_kv(self, plan: KvPlan) -> None:
        self._worker.allocate_kv(plan)

    def submit(self, step: StepInput) -> None:
        self._steps.append([step, None])

    def sample(self, masks: RowMasks | None) -> None:
        self._steps[-1][1] = copy.deepcopy(masks)

    def collect(self) -> StepResult:
        return self._run(*self._steps.popleft())

    def _run(self, step: StepInput, masks: RowMasks | None) -> StepResult:
        self._worker.submit(step)
        self._worker.sample(masks)
        return self._worker.collect()

    def check_health(self) -> None: ...

    def shutdown(self) -> None:
        self._steps.clear()


class KeepsTheMasks(Deferred):
    def sample(self, masks: RowMasks | None) -> None:
        self._steps[-1][1] = masks


class MasksTheOldest(Deferred):
    def sample(self, masks: RowMasks | None) -> None:
        self._steps[0][1] = copy.deepcopy(masks)


class NewestFirst(Deferred):
    def collect(self) -> StepResult:
        return self._run(*self._steps.pop())


class SwallowsFailures(Deferred):
    def collect(self) -> StepResult:
        step, masks = self._steps.popleft()
        try:
            return self._run(step, masks)
        except RuntimeError as error:
            return StepResult(tokens=((),) * len(step.rows), faults={0: str(error)})


class EndsOnce(Deferred):
    def shutdown(self) -> None:
        del self._steps


class AllocatesAgain(Deferred):
    def submit(self, step: StepInput) -> None:
        self._worker.allocate_kv(KvPlan(num_blocks=8, num_host_blocks=0, block_size=4, kv_dtype="float32", layers=()))
        super().submit(step)


class CrossesAsJson(Deferred):
    """A named tuple becomes a list on the way and a plain tuple behind it."""

    def submit(self, step: StepInput) -> None:
        rows = [json.loads(json.dumps(row._replace(admission=None))) for row in step.rows]
        super().submit(replace(step, rows=tuple(RowInput(*row[:-1], given.admission) for row, given in zip(rows, step.rows, strict=True))))


class ForgetsLogprobs(Deferred):
    def collect(self) -> StepResult:
        return replace(super().collect(), logprobs={}, prompt_logprobs={})


class WaitsForTheMasks(Deferred):
    """A result needs every submitted step to be sampled."""

    def __init__(self, make: Callable[[int, int], Worker]) -> None:
        super().__init__(make)
        self._waits = False

    def submit(self, step: StepInput) -> None:
        super().submit(step)
        self._waits = True

    def sample(self, masks: RowMasks | None) -> None:
        super().sample(masks)
        self._waits = False

    def collect(self) -> StepResult:
        if self._waits:
            raise RuntimeError("the newest step was not sampled")
        return super().collect()


class ShallowerThanItSays(Deferred):
    def submit(self, step: StepInput) -> None:
        if len(self._steps) == 2:
            raise RuntimeError("full")
        super().submit(step)


class RunsTwice(Deferred):
    """Tries a step again that reported faults."""

    def _run(self, step: StepInput, masks: RowMasks | None) -> StepResult:
        result = super()._run(step, masks)
        return super()._run(step, masks) if result.faults else result


class DraftsNothing(Deferred):
    max_draft_tokens = 0


class NeverJoins(Deferred):
    """A thread looks after the ranks, and after nothing in the end."""

    def __init__(self, make: Callable[[int, int], Worker]) -> None:
        super().__init__(make)
        threading.Thread(target=threading.Event().wait, args=(3.0,), daemon=True).start()


class SickWhileBusy(Deferred):
    def check_health(self) -> None:
        if self._steps:
            raise RuntimeError("a rank did not answer")


def _provider(made: type[Deferred]) -> Provider[Executor]:
    name = "".join("-" + letter.lower() if letter.isupper() else letter for letter in made.__name__).strip("-")
    return Provider(name=name, api=1, summary=SUMMARY, build=lambda context, options: made(context.worker))  # type: ignore[arg-type]


RIGHT = _provider(Deferred)
MUTANTS = [
    (_provider(made), law)
    for made, law in (
        (KeepsTheMasks, "test_masks_are_read_when_they_are_given"),
        (MasksTheOldest, "test_masks_reach_their_step"),
        (NewestFirst, "test_results_come_in_the_order_of_submission"),
        (SwallowsFailures, "test_a_failure_of_a_worker_is_not_hidden"),
        (EndsOnce, "test_shutdown_may_come_twice_and_at_any_time"),
        (AllocatesAgain, "test_the_pool_is_asked_for_and_allocated_once"),
        (CrossesAsJson, "test_a_step_arrives_as_it_was_given"),
        (ForgetsLogprobs, "test_a_result_comes_back_as_the_worker_gave_it"),
        (WaitsForTheMasks, "test_masks_may_wait_for_the_results_before_them"),
        (ShallowerThanItSays, "test_as_many_steps_as_it_says_can_be_in_flight"),
        (RunsTwice, "test_every_step_runs_once"),
        (DraftsNothing, "test_drafts_are_the_workers_number"),
        (NeverJoins, "test_shutdown_leaves_nothing_running"),
        (SickWhileBusy, "test_it_is_healthy_while_its_workers_answer"),
    )
]
