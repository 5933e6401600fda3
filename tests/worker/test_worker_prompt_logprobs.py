"""Logprobs of prompts: those of one forward pass over the whole, however it is cut; a bounded number of logits; faults stay in their row."""

from __future__ import annotations

import random

import numpy as np
import pytest
import torch
from worker_rig import Rig, fingerprint

from corekit.api import SamplingParams, StepResult, TokenLogprob
from corekit.builtin.fingerprint import Fingerprint, SoloCode, solo
from corekit.builtin.torch_sampler import TorchSampler
from corekit.worker import prompt_logprobs

ASKING = SamplingParams(temperature=0, prompt_logprobs=3)
PROMPT = tuple((7 * i * i + 3) % 320 for i in range(23))


def dense(prompt: tuple[int, ...], num_top: int) -> list[TokenLogprob]:
    """Positions 1 to the last, from all codes at once, in float64."""
    codes, code = [], SoloCode()
    for end in range(1, len(prompt)):
        codes.append([code.after(prompt[:end])])
    values = Fingerprint().logits(torch.tensor(codes, dtype=torch.float64)).log_softmax(-1).numpy()
    shown = []
    for at, row in enumerate(values):
        likeliest = np.lexsort((np.arange(len(row)), -row.astype(np.float32)))[:num_top]
        shown.append(TokenLogprob(prompt[at + 1], row[prompt[at + 1]], tuple((int(id), row[id]) for id in likeliest)))
    return shown


def check(shown: dict[int, TokenLogprob], prompt: tuple[int, ...], num_top: int = 3) -> None:
    assert sorted(shown) == list(range(1, len(prompt)))
    for position, right in enumerate(dense(prompt, num_top), start=1):
        got = shown[position]
        assert (got.token_id, [id for id, _ in got.top]) == (right.token_id, [id for id, _ in right.top])
        assert [got.logprob, *(value for _, value in got.top)] == pytest.approx([right.logprob, *(value for _, value in right.top)], abs=1e-4)


def keep(shown: dict[int, TokenLogprob], result: StepResult, row: int) -> None:
    if row in result.prompt_logprobs:
        position, ones = result.prompt_logprobs[row]
        assert ones
        shown.update(enumerate(ones, start=position))


@pytest.mark.parametrize("seed", range(6))
def test_they_are_those_of_the_whole_however_it_is_cut(seed: int) -> None:
    rng = random.Random(seed)
    rig, shown, start = Rig(seed=seed), dict[int, TokenLogprob](), 0
    rig.step(rig.admit(9, (1, 2), 2))
    for at in range(100):
        count = min(rng.choice((1, 1, 2, 5, 23)), len(PROMPT) - start)
        draws = int(start + count == len(PROMPT))
        if start == 0 or rng.random() < 0.2:  # put back before it had drawn anything: it shows again what it computes again
            start, count = 0, rng.randint(1, len(PROMPT))
            draws = int(count == len(PROMPT))
            row = rig.admit(0, PROMPT, count, num_samples=draws, params=ASKING)
        else:
            row = rig.go(0, start + count, count, num_samples=draws)
        others = [rig.go(9, 3 + at), rig.admit(8, PROMPT[:4], 4, params=SamplingParams(logprobs=1))]
        result = rig.step(*others, row, gone=(8,))
        assert set(result.prompt_logprobs) == ({2} if not draws or count > 1 else set())
        keep(shown, result, 2)
        start += count
        if draws:
            break
    check(shown, PROMPT)
    assert result.tokens[2] == (solo(PROMPT, max_tokens=1),)


def test_each_row_gets_as_many_as_it_asked_for() -> None:
    rig = Rig()
    rows = [rig.admit(i, PROMPT[i:], len(PROMPT) - i, params=SamplingParams(temperature=0, prompt_logprobs=i, logprobs=1)) for i in range(4)]
    result = rig.step(*rows)
    for i in range(4):
        shown: dict[int, TokenLogprob] = {}
        keep(shown, result, i)
        check(shown, PROMPT[i:], i)
        assert len(result.logprobs[i][0][0].top) == 1


def test_only_a_sample_without_output_shows_its_prompt() -> None:
    rig = Rig()
    rig.step(rig.admit(0, (*PROMPT, 5), 10, num_samples=0, params=ASKING, num_prompt=len(PROMPT)))  # a sibling, or one that comes back
    result = rig.step(rig.go(0, len(PROMPT) + 1, len(PROMPT) - 9), rig.admit(1, (5,), 1, params=ASKING))
    assert not result.prompt_logprobs
    assert not rig.step(rig.go(1, 2)).prompt_logprobs


@pytest.mark.parametrize("rows_at_once", [1, 3])
def test_few_logits_exist_at_once(monkeypatch: pytest.MonkeyPatch, rows_at_once: int) -> None:
    sizes = []

    class Watching:
        def __init__(self) -> None:
            self.inner = fingerprint()

        def __getattr__(self, name):
            return getattr(self.inner, name)

        def logits(self, hidden):
            sizes.append(len(hidden))
            return self.inner.logits(hidden)

    monkeypatch.setattr(prompt_logprobs, "MAX_ELEMENTS", 320 * rows_at_once + 319)
    rig = Rig(Watching())
    shown: dict[int, TokenLogprob] = {}
    result = rig.step(rig.admit(0, PROMPT, len(PROMPT), params=ASKING), rig.admit(1, (4,) * 9, 9), rig.admit(2, PROMPT, len(PROMPT), params=ASKING))
    keep(shown, result, 2)
    check(shown, PROMPT)
    *slices, drawing = sizes
    assert max(slices) == rows_at_once
    assert sum(slices) == 2 * (len(PROMPT) - 1)
    assert drawing == 3


def test_the_bound_holds_for_long_prompts_and_large_vocabularies() -> None:
    """8,192 positions of 150,000 ids would be five gigabytes in float32."""
    assert 4 * prompt_logprobs.MAX_ELEMENTS <= 1 << 27


class Failing(TorchSampler):
    def logprobs(self, logits, logits_row, token_ids, num_top):
        if 319 in token_ids.tolist():
            raise KeyError("no such id")
        return super().logprobs(logits, logits_row, token_ids, num_top)


def test_a_row_whose_prompt_cannot_be_scored_fails_alone() -> None:
    rig = Rig(sampler=Failing())
    wrong = (3, 4, 319, 5)
    result = rig.step(
        rig.admit(0, PROMPT, len(PROMPT), params=ASKING), rig.admit(1, wrong, 4, params=ASKING), rig.admit(2, PROMPT, len(PROMPT)), rig.admit(3, wrong, 4)
    )
    assert list(result.faults) == [1]
    assert "sampler Failing.logprobs raised KeyError" in result.faults[1]
    assert set(result.prompt_logprobs) == {0}
    assert result.tokens[3] == (solo(wrong, max_tokens=1),)
    shown: dict[int, TokenLogprob] = {}
    keep(shown, result, 0)
    check(shown, PROMPT)


@pytest.mark.parametrize("draws", [0, 1])
def test_values_that_are_not_finite_are_a_fault_of_their_row(draws: int) -> None:
    rig = Rig()
    first = rig.admit(0, (1, 2, 3, 4), 4 - 1 - (1 - draws), num_samples=draws, start=1, params=ASKING)  # position 0 was never computed
    result = rig.step(first, rig.admit(1, PROMPT, len(PROMPT), params=ASKING))
    assert list(result.faults) == [0]
    assert "Fingerprint.logits gave values that are not finite" in result.faults[0]
    assert set(result.prompt_logprobs) == {1}


def test_a_row_that_fails_in_its_draw_shows_nothing() -> None:
    rig = Rig()
    nothing = SamplingParams(temperature=0, prompt_logprobs=1, allowed_token_ids=(5,), banned_token_ids=(5,))
    result = rig.step(rig.admit(0, PROMPT, len(PROMPT), params=nothing), rig.admit(1, PROMPT, len(PROMPT), params=ASKING))
    assert list(result.faults) == [0]
    assert set(result.prompt_logprobs) == {1}


def test_a_sampler_without_logprobs_shows_none() -> None:
    class Plain:
        def sample(self, logits, batch):
            return TorchSampler().sample(logits, batch)

    rig = Rig(sampler=Plain())
    result = rig.step(rig.admit(0, PROMPT, len(PROMPT), params=ASKING))
    assert not result.prompt_logprobs
    assert result.tokens[0] == (solo(PROMPT, max_tokens=1),)
