"""What is the torch sampler's own: its filters against a plain float64 reference, its order among equals, its chunks and its precision.

What holds for every sampler is said by the kit.
"""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from corekit.builtin import torch_sampler, torch_shaping
from corekit.builtin.torch_sampler import TorchSampler
from corekit.testing.draws import GREEDY, Draw, batch_of, probabilities

SAMPLER = TorchSampler()
EVEN, ODD, FIRST = tuple(range(0, 800, 2)), (*range(1, 800, 2), -1, 1 << 40), tuple(range(350))


def draw(logits: torch.Tensor, draws: list[Draw], rows: list[int] | None = None) -> list[int]:
    return SAMPLER.sample(logits, batch_of(draws, rows, "cpu")).token_ids.tolist()


def kept_ids(logits: torch.Tensor, asked: Draw) -> set[int]:
    """The ids that the sampler can draw: its weights after the filters."""
    batch = batch_of([asked], None, "cpu")
    weights = torch_sampler._weights(logits[None], batch.temperature)
    return set(torch_sampler._filter(weights, batch.top_k, batch.top_p, batch.min_p)[0].nonzero()[:, 0].tolist())


# -- chunks


ASKED = [
    Draw(position=at, temperature=at % 3 / 2, top_k=5 * (at % 2), biases=((at, 2.0), (at + 1, -2.0)), repetition=1.5, presence=0.5, history=((at, 2), (3, 0)))
    for at in range(9)
]
ASKED[4:6] = [Draw(banned=(1, 2)), Draw(allowed=(1, 2, 40))]


@pytest.mark.parametrize("knows", [True, False], ids=["knows its entries", "sorts them out on the device"])
@pytest.mark.parametrize("size", [1, 100, 149, 1 << 18])
def test_chunks_of_a_big_batch_change_nothing(monkeypatch: pytest.MonkeyPatch, size: int, knows: bool) -> None:
    logits = torch.randn(9, 50, generator=torch.Generator().manual_seed(2))
    whole, ids = draw(logits, ASKED), torch.arange(9)
    logprobs = SAMPLER.logprobs(logits, ids, ids, 4)
    monkeypatch.setattr(torch_sampler, "CPU_CHUNK", size)
    if not knows:
        monkeypatch.setattr(torch_shaping, "_mine", lambda sample, first, count: slice(None))
    assert draw(logits, ASKED) == whole
    again = SAMPLER.logprobs(logits, ids, ids, 4)
    for name in ("chosen", "top_ids", "top"):
        assert torch.equal(getattr(again, name), getattr(logprobs, name))


# -- long lists


def test_long_lists_are_remembered_and_mean_what_they_say(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch_shaping, "MAX_MASKS", 2)
    sampler = TorchSampler()
    for step in range(12):
        size = (700, 900)[step // 4 % 2]
        logits = torch.randn(4, size, generator=torch.Generator().manual_seed(step))
        draws = [Draw(temperature=0.0, banned=EVEN), Draw(temperature=0.0, allowed=EVEN), Draw(temperature=0.0, allowed=ODD, banned=(3, *FIRST)), GREEDY]
        got = sampler.sample(logits, batch_of(draws, None, "cpu")).token_ids.tolist()
        ids = torch.arange(size)
        even, odd = (ids % 2 == 0) & (ids < 800), (ids % 2 == 1) & (ids < 800)
        kept = [~even, even, odd & (ids >= 350) & (ids != 3), ids >= 0]
        assert got == [int(row.masked_fill(~may, float("-inf")).argmax()) for row, may in zip(logits, kept, strict=True)]


def test_lists_of_requests_that_are_gone_do_not_fill_the_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch_shaping, "MAX_KEPT_IDS", 1000)
    sampler, logits = TorchSampler(), torch.zeros(1, 700)
    for start in range(9):
        draw = Draw(temperature=0.0, allowed=tuple(range(start, start + (2000 if start == 7 else 400))))
        assert sampler.sample(logits, batch_of([draw], None, "cpu")).token_ids.tolist() == [start]
        kept = [len(ids) for ids, _ in sampler._shaper._masks.values()]
        assert kept == ([400] if start in (0, 8) else [2000] if start == 7 else [400, 400])


def test_a_list_is_not_taken_for_one_that_is_gone() -> None:
    sampler, logits = TorchSampler(), torch.zeros(1, 700)
    for start in range(40):
        allowed = tuple(range(start, start + 300))  # freed after this turn: the next may lie at its address
        assert sampler.sample(logits, batch_of([Draw(temperature=0.0, allowed=allowed)], None, "cpu")).token_ids.tolist() == [start]


# -- filters


@given(
    seed=st.integers(0, 10_000),
    size=st.sampled_from([1, 2, 40, 256, 257, 900]),
    width=st.sampled_from([0.1, 1.0, 5.0]),
    ties=st.booleans(),
    temperature=st.sampled_from([0.2, 1.0, 2.0]),
    top_k=st.sampled_from([0, -1, 1, 2, 39, 255, 256, 257, 500]),
    top_p=st.sampled_from([1e-4, 0.3, 0.9, 0.999, 1.0]),
    min_p=st.sampled_from([0.0, 0.001, 0.4, 1.0]),
)
def test_filters_keep_what_the_reference_keeps(
    seed: int, size: int, width: float, ties: bool, temperature: float, top_k: int, top_p: float, min_p: float
) -> None:
    logits = torch.randn(size, generator=torch.Generator().manual_seed(seed)) * width
    if ties:
        logits = (logits * 2).round() / 2
    asked = Draw(temperature=temperature, top_k=top_k, top_p=top_p, min_p=min_p)
    expected, got = set(np.flatnonzero(probabilities(logits.tolist(), asked)).tolist()), kept_ids(logits, asked)
    weight = torch.exp((logits.double() - logits.double().max()) / float(np.float32(temperature)))
    edge = {i for i in got ^ expected if weight[i] > 2.0**-39}  # what weighs less is not drawn
    assert len(edge) <= 1
    if edge:  # only where the nucleus is full up to rounding
        without_nucleus = sorted(kept_ids(logits, Draw(temperature=temperature, top_k=top_k, min_p=min_p)))
        reached = weight[sorted(got & expected)].sum() / weight[without_nucleus].sum()
        assert abs(float(reached) - float(np.float32(top_p))) < 1e-9


def test_equal_logits_fall_to_the_lowest_ids() -> None:
    assert kept_ids(torch.zeros(700), Draw(top_k=3)) == {0, 1, 2}
    assert kept_ids(torch.zeros(700), Draw(top_k=400)) == set(range(400))
    assert kept_ids(torch.zeros(10), Draw(top_p=0.5)) == set(range(5))
    assert kept_ids(torch.zeros(700), Draw(min_p=1.0)) == set(range(700))
    assert draw(torch.zeros(1, 700), [GREEDY]) == [0]


@pytest.mark.parametrize(("number", "id"), [(0.0, 2), (1 - 2.0**-53, 4)])
def test_the_first_and_last_point_fall_on_ids_with_weight(monkeypatch: pytest.MonkeyPatch, number: float, id: int) -> None:
    monkeypatch.setattr(torch_sampler, "uniform", lambda seed, position, index: torch.full(seed.shape, number, dtype=torch.float64))
    never = float("-inf")
    logits = torch.tensor([[never, never, 0.0, never, 0.0, never]])
    assert draw(logits, [Draw(), Draw(top_k=4), Draw(top_p=0.999)], [0, 0, 0]) == [id] * 3


def test_a_vocabulary_of_one_id() -> None:
    assert draw(torch.zeros(1, 1), [Draw(top_k=5, top_p=0.5, repetition=2.0, history=((0, 1),))]) == [0]


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_penalties_are_not_rounded_to_half_precision(dtype: torch.dtype) -> None:
    logits = torch.tensor([[30.0, 30.0, 1.0]], dtype=dtype)
    small = [Draw(temperature=0.0, biases=((0, -0.001),)), Draw(temperature=0.0, frequency=0.001, history=((0, 1),))]
    assert draw(logits, small, [0, 0]) == [1, 1]


# -- logprobs


def test_equal_logprobs_come_by_rising_id_however_many_are_asked() -> None:
    logits = torch.tensor([[1.0, 2.0, 1.0, 2.0, 1.0, 0.0]])
    for count in range(7):
        got = SAMPLER.logprobs(logits, torch.tensor([0]), torch.tensor([5]), count)
        assert got.top_ids.tolist() == [[1, 3, 0, 2, 4, 5][:count]]
    assert SAMPLER.logprobs(logits, torch.tensor([0]), torch.tensor([0]), 20).top_ids.shape == (1, 6)


def test_zeros_of_both_signs_are_equal() -> None:
    assert torch_sampler._likeliest(torch.tensor([[-1.0, 0.0, -0.0, 0.0, 2.0, -3.0]]), 5).tolist() == [[4, 1, 2, 3, 0]]


def test_logprobs_with_impossible_ids_and_broken_rows() -> None:
    logits = torch.tensor([[0.0, float("-inf"), float("-inf"), 0.0], [0.0, float("nan"), 1.0, 2.0], [float("inf"), 0.0, 0.0, 1.0]])
    got = SAMPLER.logprobs(logits, torch.arange(3), torch.tensor([3, 0, 1]), 4)
    assert got.top_ids[0].tolist() == [0, 3, 1, 2]
    assert got.chosen[0].item() == pytest.approx(math.log(0.5))
    assert all(sorted(ids) == [0, 1, 2, 3] for ids in got.top_ids.tolist())
