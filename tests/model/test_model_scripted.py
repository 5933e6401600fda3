"""The scripted model: answers what was written down, whatever is computed beside it and in whatever pieces."""

from __future__ import annotations

import random
import time

import pytest
import torch

from corekit.api import Admission, KvPlan, RowInput, SamplingParams, StepInput, StepResult
from corekit.builtin.options import ScriptedOptions
from corekit.builtin.scripted import Scripted
from corekit.builtin.torch_attention import TorchAttention
from corekit.builtin.torch_sampler import TorchSampler
from corekit.worker import RankWorker

BLOCK_SIZE, BLOCKS_EACH = 4, 40
GREEDY = SamplingParams(temperature=0)


class Rows:
    """Drives a worker by hand: each row has blocks of its own."""

    def __init__(self, **options) -> None:
        self.model = Scripted(ScriptedOptions(**options))
        layers = self.model.spec.layers
        self.worker = RankWorker(model=self.model, attention=TorchAttention(layers, device="cpu", poison=True), sampler=TorchSampler(), device="cpu", threads=0)
        self.worker.allocate_kv(KvPlan(num_blocks=400, num_host_blocks=0, block_size=BLOCK_SIZE, kv_dtype="float64", layers=layers))

    def step(self, *rows: RowInput) -> StepResult:
        self.worker.submit(StepInput(number=0, rows=rows))
        self.worker.sample(None)
        return self.worker.collect()

    def admit(self, id: int, tokens, count: int, samples: int, params: SamplingParams = GREEDY) -> RowInput:
        blocks = tuple(range(1 + id * BLOCKS_EACH, 1 + (id + 1) * BLOCKS_EACH))
        return RowInput(id, 0, count, samples, 0, 0, blocks, Admission(tuple(tokens), len(tokens), params, id, 0, ()))

    def answer(self, prompt, count: int, id: int = 0, params: SamplingParams = GREEDY) -> list[int]:
        result = self.step(self.admit(id, prompt, len(prompt), 1, params))
        drawn = list(result.tokens[0][0])
        while len(drawn) < count:
            drawn += self.step(RowInput(id, 0, 1, 1, 0, BLOCKS_EACH, (), None)).tokens[0][0]
        return drawn


def test_a_text_is_answered_as_bytes_and_ends_with_eos() -> None:
    text = "Grüße, aabaab!"
    assert Rows(texts=(text,)).answer(b"Hello", len(text.encode()) + 1) == [*text.encode(), 256]


def test_after_eos_the_text_begins_again() -> None:
    assert Rows(texts=("abab",)).answer(b"?", 12) == [*b"abab", 256, *b"abab", 256, *b"ab"]


def test_the_first_id_of_the_prompt_chooses() -> None:
    rows = Rows(texts=("zero", "one", "two"))
    for id, first in enumerate((33, 34, 35)):
        text = ("zero", "one", "two")[first % 3]
        assert rows.answer([first, 63], len(text) + 1, id) == [*text.encode(), 256]


def test_scripts_of_ids() -> None:
    rows = Rows(scripts=((5, 300, 5), (7,)), vocab_size=301, eos_token_id=0)
    assert rows.answer([2, 9], 4) == [5, 300, 5, 0]
    assert rows.answer([3, 9], 2, 1) == [7, 0]


def test_a_prompt_that_ends_like_the_script_begins_has_begun_it() -> None:
    assert Rows(texts=("okay",)).answer(b"so, ok", 3) == [*b"ay", 256]


@pytest.mark.parametrize("temperature", [0.0, 1.0, 2.0])
def test_the_script_is_certain_at_any_temperature(temperature: float) -> None:
    assert Rows(texts=("sure",)).answer(b"?", 5, params=SamplingParams(temperature=temperature)) == [*b"sure", 256]


def test_while_eos_is_banned_the_script_begins_again() -> None:
    rows = Rows(texts=("abc",))
    first = rows.admit(0, b"?", 1, 1, SamplingParams(temperature=0, min_tokens=5))
    result = rows.step(first._replace(admission=first.admission._replace(end_ids=(256,))))
    drawn = list(result.tokens[0][0])
    while len(drawn) < 7:
        drawn += rows.step(RowInput(0, 0, 1, 1, 0, BLOCKS_EACH, (), None)).tokens[0][0]
    assert drawn == [*b"abcabc", 256]


@pytest.mark.parametrize("seed", range(8))
@pytest.mark.parametrize("mode", [{"texts": ("abcab, abcabd!", "xyxyz")}, {"random": True, "seed": 3}])
def test_pieces_neighbours_and_recomputation_change_nothing(seed: int, mode: dict) -> None:
    rng = random.Random(seed)
    prompts = [[rng.randrange(32, 127) for _ in range(rng.randint(1, 12))] for _ in range(4)]
    alone = [Rows(**mode).answer(prompt, 10) for prompt in prompts]
    rows, tokens, done = Rows(**mode), [list(p) for p in prompts], [-1] * 4
    while any(len(t) < len(p) + 10 for t, p in zip(tokens, prompts, strict=True)):
        batch = []
        for i in rng.sample(range(4), rng.randint(1, 4)):
            if len(tokens[i]) >= len(prompts[i]) + 10:
                continue
            again = done[i] < 0 or rng.random() < 0.15  # admitted, or preempted and computed anew
            start = 0 if again else done[i]
            count = rng.randint(1, len(tokens[i]) - start)
            draws = int(start + count == len(tokens[i]))
            row = rows.admit(i, tokens[i], count, draws) if again else RowInput(i, start, count, draws, 0, BLOCKS_EACH, (), None)
            batch.append(row)
            done[i] = start + count
        if batch:
            for row, drawn in zip(batch, rows.step(*batch).tokens, strict=True):
                tokens[row.id] += drawn[0] if drawn else ()
    assert [t[len(p) :][:10] for t, p in zip(tokens, prompts, strict=True)] == alone


def test_random_answers_differ_by_seed_and_prompt() -> None:
    one = Rows(random=True, seed=1)
    first, second = one.answer(b"ab", 8), one.answer(b"ac", 8, 1)
    assert first != second
    assert first == Rows(random=True, seed=1).answer(b"ab", 8)
    assert first != Rows(random=True, seed=2).answer(b"ab", 8)
    assert len(set(first + second)) > 8


def test_guesses_are_right() -> None:
    rows = Rows(texts=("several at once",), max_draft_tokens=4)
    drawn = list(rows.step(rows.admit(0, b"?", 1, 1)).tokens[0][0])
    lengths = []
    while len(drawn) < 16:
        result = rows.step(RowInput(0, 0, 5, 1, 4, BLOCKS_EACH, (), None))
        lengths.append(len(result.tokens[0][0]))
        drawn += result.tokens[0][0]
    assert drawn == [*b"several at once", 256]
    assert lengths == [5, 5, 5]


@pytest.mark.parametrize("options", [{"raise_at": 5}, {"raise_on": ord("!")}])
def test_a_scripted_failure_is_one_rows_alone(options: dict) -> None:
    rows = Rows(texts=("fine",), **options)
    result = rows.step(rows.admit(0, b"?", 1, 1), rows.admit(1, b"a! cd?", 6, 1), rows.admit(2, b"short", 5, 1))
    assert list(result.faults) == [1]
    assert "Scripted.forward" in result.faults[1]
    assert "scripted to fail" in result.faults[1]
    assert result.tokens == (((ord("f"),),), (), ((ord("f"),),))


def test_a_step_takes_the_time_it_is_told() -> None:
    rows = Rows(texts=("slow",), step_seconds=0.05)
    begun = time.perf_counter()
    rows.answer(b"?", 3)
    assert time.perf_counter() - begun >= 0.15


def test_an_unwritten_slot_makes_the_logits_nan() -> None:
    model = Scripted()
    hidden = torch.tensor([[float("nan")]], dtype=torch.float64)
    model._states.append(0)
    assert model.logits(hidden).isnan().all()


@pytest.mark.parametrize(
    "wrong",
    [
        {"texts": ()},
        {"scripts": ((300,),)},
        {"vocab_size": 1},
        {"eos_token_id": 257},
        {"step_seconds": -1.0},
        {"step_seconds": float("nan")},
        {"raise_at": -2},
        {"raise_on": 257},
        {"max_draft_tokens": 17},
    ],
    ids=str,
)
def test_options_have_bounds(wrong: dict) -> None:
    with pytest.raises(ValueError, match=next(iter(wrong))):
        ScriptedOptions(**wrong)
