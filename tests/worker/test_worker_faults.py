"""What goes wrong in one row stays in it; what goes wrong with the device or the plan is raised."""

from __future__ import annotations

import logging

import pytest
import torch
from worker_rig import Rig, fingerprint

from corekit.api import SamplingParams
from corekit.builtin.fingerprint import solo
from corekit.builtin.torch_attention import TorchAttention
from corekit.builtin.torch_sampler import TorchSampler
from corekit.worker.faults import isolate

BAD = 319
"""The rows that must fail hold this id."""


class Faulty:
    """The fingerprint model, wrong in one way for rows that hold BAD."""

    def __init__(self, way: str, error: Exception | None = None) -> None:
        self.inner, self.way, self.error = fingerprint(max_draft_tokens=2), way, error or ValueError("no such thing")
        self.bad_codes: set[float] = set()

    def __getattr__(self, name):
        return getattr(self.inner, name)

    def forward(self, inputs, attend):
        bad = inputs.token_ids == BAD
        if self.way == "forward" and bad.any():
            raise self.error
        hidden = self.inner.forward(inputs, attend)
        if self.way == "nan":
            hidden[bad] = float("nan")
        self.bad_codes |= set(hidden[bad, 0].tolist())
        return hidden

    def logits(self, hidden):
        bad = torch.tensor([code in self.bad_codes for code in hidden[:, 0].tolist()])
        if self.way == "logits" and bad.any():
            raise self.error
        logits = self.inner.logits(hidden)
        if self.way in ("inf", "-inf"):
            logits[bad] = float(self.way)
        return logits

    def draft(self, token_ids, count):
        if self.way == "draft":
            raise self.error
        return [-1] if self.way == "bad guess" else self.inner.draft(token_ids, count)


class FaultyAttention(TorchAttention):
    def run(self, layer, query, key, value, plan, *, sinks=None):
        if layer == 1 and (value[:, 0, 0] == self.trigger).any():
            raise ValueError("this value cannot be cached")
        return super().run(layer, query, key, value, plan, sinks=sinks)


class FaultySampler(TorchSampler):
    """Wrong for samples of seed 13."""

    def __init__(self, way: str) -> None:
        self.way = way

    def sample(self, logits, batch):
        bad = batch.seed == 13
        if self.way == "sample" and bad.any():
            raise KeyError("thirteen")
        sampled = super().sample(logits, batch)
        if self.way in ("-1", "320"):
            sampled.token_ids[bad] = int(self.way)
        return sampled

    def logprobs(self, logits, logits_row, token_ids, num_top):
        if self.way == "logprobs":
            raise KeyError("logprobs")
        return super().logprobs(logits, logits_row, token_ids, num_top)


PROMPTS = [(1, 2), (7,), (3, BAD), (4, 4, 4), (9,), (BAD,), (8, 1)]
WRONG = {2, 5}


def answers(rig: Rig, **more):
    return rig.step(*(rig.admit(i, prompt, len(prompt), **more) for i, prompt in enumerate(PROMPTS)))


def check(result, part: str) -> None:
    assert set(result.faults) == WRONG
    assert all(part in why for why in result.faults.values())
    for i, prompt in enumerate(PROMPTS):
        assert result.tokens[i] == (() if i in WRONG else (solo(prompt, max_tokens=1),))


@pytest.mark.parametrize(
    ("way", "part"),
    [
        ("forward", "model Faulty.forward raised ValueError: no such thing"),
        ("logits", "model Faulty.logits raised ValueError: no such thing"),
        ("nan", "Faulty.logits gave values that are not finite"),
        ("inf", "not finite"),
        ("-inf", "not finite"),
    ],
)
def test_a_row_that_fails_in_the_model_fails_alone(way: str, part: str) -> None:
    check(answers(Rig(Faulty(way))), part)


def test_a_row_that_fails_in_attention_fails_alone() -> None:
    attention = FaultyAttention(fingerprint().spec.layers, device="cpu", poison=True)
    attention.trigger = float("inf")
    values: list[float] = []
    original = TorchAttention.run

    def spy(self, layer, query, key, value, plan, *, sinks=None):
        if layer == 1:
            values.append(float(value[-1, 0, 0]))
        return original(self, layer, query, key, value, plan, sinks=sinks)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(TorchAttention, "run", spy)
        Rig().step(Rig().admit(0, (3, BAD), 2))
    attention.trigger = values[0]
    rig = Rig(attention=attention)
    result = rig.step(rig.admit(0, (1, 2), 2), rig.admit(1, (3, BAD), 2), rig.admit(2, (7,), 1))
    assert list(result.faults) == [1]
    assert "attention_backend FaultyAttention.run raised ValueError: this value cannot be cached" in result.faults[1]
    assert (result.tokens[0][0], result.tokens[2][0]) == (solo((1, 2), max_tokens=1), solo((7,), max_tokens=1))


@pytest.mark.parametrize(("way", "part"), [("sample", "sampler FaultySampler.sample raised KeyError"), ("-1", "drew [-1]"), ("320", "ids are 0 to 319")])
def test_a_sample_that_fails_in_the_sampler_fails_alone(way: str, part: str) -> None:
    rig = Rig(sampler=FaultySampler(way))
    check(rig.step(*(rig.admit(i, prompt, len(prompt), seed=13 if i in WRONG else i) for i, prompt in enumerate(PROMPTS))), part)


def test_a_sample_whose_logprobs_fail_fails_alone() -> None:
    rig = Rig(sampler=FaultySampler("logprobs"))
    asking = SamplingParams(temperature=0, logprobs=1)
    rows = [rig.admit(i, prompt, len(prompt), **({"params": asking} if i in WRONG else {})) for i, prompt in enumerate(PROMPTS)]
    check(rig.step(*rows), "sampler FaultySampler.logprobs raised KeyError")


@pytest.mark.parametrize(("way", "part"), [("draft", "model.draft raised ValueError"), ("bad guess", "guesses (-1,) are not all ids below 320")])
def test_a_row_whose_guesses_fail_fails_alone(way: str, part: str) -> None:
    rig = Rig(Faulty(way))
    rig.step(rig.admit(0, (1, 2), 2), rig.admit(1, (5,), 1))
    result = rig.step(rig.go(0, 5, 3, num_drafts=2), rig.go(1, 2))
    assert list(result.faults) == [0]
    assert part in result.faults[0]
    assert result.tokens == ((), ((solo((5,), max_tokens=2)[1],),))


def test_a_fault_stays_until_the_sample_is_gone() -> None:
    """The next step was planned before anyone knew: its row fails for the same reason, its neighbour does not."""
    rig = Rig(Faulty("forward"))
    rig.submit(rig.admit(0, (3, BAD), 2), rig.admit(1, (5,), 1))
    rig.worker.sample(None)
    rig.submit(rig.go(0, 3), rig.go(1, 2))
    rig.worker.sample(None)
    first, second = rig.worker.collect(), rig.worker.collect()
    assert first.faults == second.faults
    assert list(first.faults) == [0]
    assert second.tokens == ((), ((solo((5,), max_tokens=2)[1],),))
    again = rig.step(rig.admit(0, (3, 3), 2), gone=(0,))
    assert again.tokens == ((solo((3, 3), max_tokens=1),),)


def test_every_row_may_fail() -> None:
    rig = Rig(Faulty("forward"))
    result = rig.step(*(rig.admit(i, (BAD, i), 2) for i in range(5)))
    assert set(result.faults) == set(range(5))
    assert result.tokens == ((),) * 5


NO_MEMORY = [
    torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 GiB"),
    RuntimeError("[enforce fail at alloc_cpu.cpp:127] err == 0. DefaultCPUAllocator: can't allocate memory"),
    MemoryError("Unable to allocate 2.00 GiB"),
]


@pytest.mark.parametrize("error", NO_MEMORY, ids=repr)
@pytest.mark.parametrize("way", ["forward", "logits"])
def test_a_row_that_gets_no_memory_alone_fails_alone(error: Exception, way: str) -> None:
    check(answers(Rig(Faulty(way, error))), f"model Faulty.{way} raised {type(error).__name__}: {error}")


@pytest.mark.parametrize("error", NO_MEMORY, ids=repr)
def test_rows_for_which_there_is_too_little_memory_together_run_in_parts(error: Exception) -> None:
    class Large(Faulty):
        def forward(self, inputs, attend):
            if len(inputs.token_ids) > 4:
                raise error
            return self.inner.forward(inputs, attend)

    result = answers(Rig(Large("none")))
    assert not result.faults
    assert result.tokens == tuple((solo(prompt, max_tokens=1),) for prompt in PROMPTS)


@pytest.mark.parametrize(
    "error",
    [
        RuntimeError("CUDA error: an illegal memory access was encountered"),
        torch.AcceleratorError("CUDA error: out of memory"),
        RuntimeError("CUDA error: CUBLAS_STATUS_ALLOC_FAILED when calling `cublasCreate(handle)`"),
        RuntimeError("NCCL error in: ProcessGroupNCCL.cpp"),
    ],
    ids=repr,
)
@pytest.mark.parametrize("way", ["forward", "logits"])
def test_device_faults_are_raised(error: Exception, way: str) -> None:
    with pytest.raises(type(error)):
        answers(Rig(Faulty(way, error)))


def test_a_read_of_an_unwritten_slot_is_a_fault_of_its_row() -> None:
    rig = Rig()
    result = rig.step(rig.admit(0, (1, 2, 3), 1, start=2), rig.admit(1, (7,), 1))  # positions 0 and 1 were never computed
    assert list(result.faults) == [0]
    assert "KV that nobody wrote" in result.faults[0]
    assert result.tokens[1] == (solo((7,), max_tokens=1),)


# -- isolate


@pytest.mark.parametrize("guilty", [set(), {0}, {6}, {2, 3}, set(range(7))])
def test_isolate_finds_the_guilty_in_few_runs(guilty: set[int]) -> None:
    runs = []

    def run(first: int, end: int) -> range:
        runs.append((first, end))
        if guilty & set(range(first, end)):
            raise ValueError("guilty")
        return range(first, end)

    results, faults = isolate(7, run, lambda: "part")
    assert [i for part in results for i in part] == [i for i in range(7) if i not in guilty]
    assert faults == dict.fromkeys(guilty, "part raised ValueError: guilty")
    assert len(runs) <= 1 + 6 * max(len(guilty), 0) + 1


def test_isolate_leaves_the_traceback_at_debug(caplog: pytest.LogCaptureFixture) -> None:
    """The message goes to the client; where it was raised is for the author of the part."""

    def run(first: int, end: int) -> None:
        raise ValueError("guilty")

    with caplog.at_level(logging.DEBUG, "corekit.worker"):
        isolate(1, run, lambda: "part")
    (record,) = caplog.records
    assert (record.levelname, record.getMessage()) == ("DEBUG", "part raised")
    assert record.exc_info is not None
    assert "ValueError" in str(record.exc_info)


def test_isolate_of_nothing_runs_nothing() -> None:
    assert isolate(0, lambda first, end: pytest.fail("called"), lambda: "part") == ([], {})


# -- plans that are wrong are bugs of the core, and raised


def test_a_row_of_an_unknown_sample() -> None:
    rig = Rig()
    rig.tables[9] = []
    with pytest.raises(RuntimeError, match="sample 9"):
        rig.step(rig.go(9, 1))
    rig.step(rig.admit(0, (1,), 1))
    with pytest.raises(RuntimeError, match="sample 0"):
        rig.step(rig.go(0, 2), gone=(0,))


def test_a_table_that_is_too_short() -> None:
    rig = Rig()
    with pytest.raises(RuntimeError, match=r"up to position 5.* 1 blocks of 4"):
        rig.step(rig.admit(0, (1,) * 6, 6)._replace(blocks=(1,)))


def test_a_table_with_a_hole() -> None:
    rig = Rig()
    with pytest.raises(RuntimeError, match="blocks between are missing"):
        rig.step(rig.admit(0, (1,) * 6, 6)._replace(table_start=1))


@pytest.mark.parametrize("count", [0, 4])
def test_a_row_that_computes_what_is_not_known(count: int) -> None:
    rig = Rig()
    with pytest.raises(RuntimeError, match="3 tokens are known"):
        rig.step(rig.admit(0, (1, 2, 3), count))


def test_a_row_that_draws_before_its_last_token() -> None:
    rig = Rig()
    with pytest.raises(RuntimeError, match="draws"):
        rig.step(rig.admit(0, (1, 2, 3), 2))


def test_the_verbs_have_an_order() -> None:
    rig = Rig()
    with pytest.raises(RuntimeError, match="order"):
        rig.worker.sample(None)
    rig.submit(rig.admit(0, (1,), 1))
    with pytest.raises(RuntimeError, match="not sampled"):
        rig.worker.collect()
    rig.worker.sample(None)
    with pytest.raises(RuntimeError, match="order"):
        rig.worker.sample(None)
