"""What is special about the built-in executors, beside the laws of the kit; and the same answers in flight as one by one."""

from __future__ import annotations

from dataclasses import replace

import pytest

from corekit.api import Admission, BlockRef, Copy, KvPlan, RowInput, RowMasks, SamplingParams, StepInput, StepResult, TokenLogprob
from corekit.builtin.delayed import Delayed
from corekit.builtin.fingerprint import Fingerprint, solo
from corekit.builtin.in_process import InProcess
from corekit.builtin.options import DelayedOptions
from corekit.builtin.torch_attention import TorchAttention
from corekit.builtin.torch_sampler import TorchSampler
from corekit.worker import RankWorker

ROW = RowInput(7, 0, 3, 1, 0, 0, (1, 2), Admission((1, 2, 3), 3, SamplingParams(stop=("end",), logprobs=2, seed=-5), -(2**63), 0, (256,)))
STEP = StepInput(number=1, rows=(ROW,), copies=(Copy(BlockRef(1), BlockRef(2, True)),), gone=(4, 9))
RESULT = StepResult(tokens=(((5, 6), (7,)), ()), logprobs={0: ((TokenLogprob(5, -0.5, ((5, -0.5),)),),)}, faults={1: "a fault"}, seconds=0.25)


class RecordingWorker:
    max_draft_tokens = 3

    def __init__(self) -> None:
        self.calls: list[object] = []

    def free_memory(self) -> int:
        return 1000

    def bytes_per_block(self, kv_dtype: str) -> int:
        return len(kv_dtype)

    def allocate_kv(self, plan: KvPlan) -> None:
        self.calls.append(plan)

    def submit(self, step: StepInput) -> None:
        self.calls.append(step)

    def sample(self, masks: RowMasks | None) -> None:
        self.calls.append(masks)

    def collect(self) -> StepResult:
        self.calls.append("collect")
        return RESULT


def in_flight(executor: Delayed, count: int) -> None:
    for number in range(count):
        executor.submit(replace(STEP, number=number))
        executor.sample(None)


def test_delayed_runs_a_step_when_its_result_is_due() -> None:
    worker = RecordingWorker()
    executor = Delayed(worker, 2)
    in_flight(executor, 2)
    assert worker.calls == []
    assert executor.collect() == RESULT
    assert worker.calls == [replace(STEP, number=0), None, "collect"]
    executor.submit(replace(STEP, number=2))
    executor.sample(RowMasks(words={0: b"\2\0\0\0"}))
    executor.collect()
    executor.collect()
    assert [call.number for call in worker.calls if isinstance(call, StepInput)] == [0, 1, 2]
    assert worker.calls[-2] == RowMasks(words={0: b"\2\0\0\0"})


def test_delayed_hands_over_copies_of_everything() -> None:
    worker = RecordingWorker()
    executor = Delayed(worker, 1)
    executor.submit(STEP)
    executor.sample(None)
    result = executor.collect()
    step = worker.calls[0]
    assert isinstance(step, StepInput)
    assert step == STEP
    assert step is not STEP
    assert step.rows[0] is not ROW
    assert type(step.rows[0]) is RowInput
    assert type(step.rows[0].admission) is Admission
    assert type(step.copies[0].source) is BlockRef
    assert result == RESULT
    assert result is not RESULT
    assert type(result.tokens[0]) is tuple


def test_delayed_refuses_what_another_process_could_not_receive() -> None:
    with pytest.raises(TypeError):
        Delayed(RecordingWorker(), 1).submit(replace(STEP, rows=(ROW._replace(admission=object()),)))


def test_delayed_keeps_the_order_of_the_verbs() -> None:
    executor = Delayed(RecordingWorker(), 2)
    in_flight(executor, 2)
    with pytest.raises(RuntimeError, match="in flight"):
        executor.submit(STEP)
    with pytest.raises(RuntimeError, match="sampled already"):
        executor.sample(None)
    fresh = Delayed(RecordingWorker(), 2)
    fresh.submit(STEP)
    with pytest.raises(RuntimeError, match="not sampled"):
        fresh.collect()


@pytest.mark.parametrize("depth", [0, -1, 17, True])
def test_the_depth_has_bounds(depth: int) -> None:
    with pytest.raises(ValueError, match="from 1 to 16"):
        DelayedOptions(depth=depth)


@pytest.mark.parametrize("depth", [1, 2, 5])
def test_answers_are_the_same_with_steps_in_flight(depth: int) -> None:
    """No result is looked at before the executor is full: the worker must carry its own tokens from step to step."""
    model = Fingerprint()
    worker = RankWorker(model=model, attention=TorchAttention(model.spec.layers, device="cpu", poison=True), sampler=TorchSampler(), device="cpu", threads=0)
    executor = Delayed(worker, depth) if depth > 1 else InProcess(worker)
    executor.allocate_kv(KvPlan(num_blocks=40, num_host_blocks=0, block_size=4, kv_dtype="float64", layers=model.spec.layers))
    prompts, params = ((3, 1, 4, 1, 5), (9, 2)), SamplingParams(temperature=1.0)
    answers: list[list[int]] = [[], []]
    flying = 0
    for number in range(16):
        rows = tuple(
            RowInput(i, 0, len(prompt), 1, 0, 0, tuple(range(1 + 20 * i, 21 + 20 * i)), Admission(prompt, len(prompt), params, 11, 0, ()))
            if number == 0
            else RowInput(i, 0, 1, 1, 0, 20, (), None)
            for i, prompt in enumerate(prompts)
        )
        executor.submit(StepInput(number=number, rows=rows))
        executor.sample(None)
        flying += 1
        while flying == executor.max_in_flight or (number == 15 and flying):
            flying -= 1
            for answer, row in zip(answers, executor.collect().tokens, strict=True):
                answer.extend(row[0])
    for prompt, answer in zip(prompts, answers, strict=True):
        assert tuple(answer) == solo(prompt, max_tokens=16, params=params, seed=11, sampler=TorchSampler())


def test_a_worker_gives_a_result_while_the_newest_step_waits_for_its_masks() -> None:
    """An executor of several steps may pass its verbs on as they come: submit, collect the step before, sample."""
    model = Fingerprint()
    worker = RankWorker(model=model, attention=TorchAttention(model.spec.layers, device="cpu", poison=True), sampler=TorchSampler(), device="cpu", threads=0)
    worker.allocate_kv(KvPlan(num_blocks=8, num_host_blocks=0, block_size=4, kv_dtype="float64", layers=model.spec.layers))
    admission = Admission((3, 1, 4), 3, SamplingParams(temperature=0.0), 0, 0, ())
    answer: list[int] = []
    for number in range(5):
        worker.submit(StepInput(number=number, rows=(RowInput(0, 0, 1, 1, 0, 4, (), None) if number else RowInput(0, 0, 3, 1, 0, 0, (1, 2, 3, 4), admission),)))
        if number:
            answer += worker.collect().tokens[0][0]
        worker.sample(None)
    assert tuple(answer) == solo((3, 1, 4), max_tokens=4)
