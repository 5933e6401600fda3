"""The torch sampler: independence of rows, distributions, filters against a plain float64 reference, and edges of every number."""

from __future__ import annotations

import math
from collections import Counter

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from corekit.api import SamplingBatch, SupportsLogprobs
from corekit.builtin import torch_sampler
from corekit.builtin.torch_sampler import TorchSampler, uniform

SAMPLER = TorchSampler()
FIELDS = {
    "temperature": torch.float32,
    "top_k": torch.int64,
    "top_p": torch.float32,
    "min_p": torch.float32,
    "seed": torch.int64,
    "position": torch.int64,
    "index": torch.int64,
}
PLAIN = {"temperature": 1.0, "top_k": 0, "top_p": 1.0, "min_p": 0.0, "seed": 1, "position": 5, "index": 0}


def batch_of(samples: list[dict], rows: list[int] | None = None, banned=(), all_greedy: bool = False) -> SamplingBatch:
    columns = {name: torch.tensor([{**PLAIN, **sample}[name] for sample in samples], dtype=dtype) for name, dtype in FIELDS.items()}
    return SamplingBatch(logits_row=torch.tensor(rows if rows is not None else range(len(samples))), banned=banned, all_greedy=all_greedy, **columns)


def draw(logits: torch.Tensor, samples: list[dict], rows: list[int] | None = None, **more) -> list[int]:
    return SAMPLER.sample(logits, batch_of(samples, rows, **more)).token_ids.tolist()


def draw_many(logits: torch.Tensor, count: int, **params) -> Counter:
    """`count` draws from one row, at as many positions."""
    return Counter(draw(logits[None], [{**params, "position": i} for i in range(count)], [0] * count))


def reference(logits: np.ndarray, temperature: float, top_k: int, top_p: float, min_p: float) -> np.ndarray:
    """Probabilities after the filters, one id after the other, in float64."""
    order = sorted(range(len(logits)), key=lambda i: (-logits[i], i))
    scaled = (logits - logits.max()) / temperature
    weight = np.exp(scaled)
    kept = [i for rank, i in enumerate(order) if (top_k <= 0 or rank < top_k) and weight[i] >= min_p * weight[order[0]]]
    total, nucleus, reached = sum(weight[i] for i in kept), [], 0.0
    for i in kept:
        if nucleus and reached >= top_p * total:
            break
        nucleus.append(i)
        reached += weight[i]
    result = np.zeros(len(logits))
    result[nucleus] = weight[nucleus]
    return result / result.sum()


def kept_ids(logits: torch.Tensor, **params) -> set[int]:
    """The ids that the sampler can draw: its weights after the filters."""
    filters = {**PLAIN, **params}
    weights = torch_sampler._weights(logits[None], torch.tensor([filters["temperature"]]))
    kept = torch_sampler._filter(weights, torch.tensor([filters["top_k"]]), torch.tensor([filters["top_p"]]), torch.tensor([filters["min_p"]]))
    return set(kept[0].nonzero()[:, 0].tolist())


SAMPLES = st.fixed_dictionaries(
    {
        "temperature": st.sampled_from([0.0, 1e-30, 0.3, 1.0, 2.0]),
        "top_k": st.sampled_from([0, -1, 1, 3, 300, 10_000]),
        "top_p": st.sampled_from([1e-4, 0.5, 0.95, 1.0]),
        "min_p": st.sampled_from([0.0, 0.1, 1.0]),
        "seed": st.sampled_from([0, 1, -(2**63), 2**63 - 1]),
        "position": st.integers(0, 100_000),
        "index": st.integers(0, 127),
    }
)


# -- independence


@given(samples=st.lists(SAMPLES, min_size=1, max_size=7), shuffle=st.randoms(use_true_random=False), ties=st.booleans())
def test_a_draw_depends_on_its_own_row_only(samples: list[dict], shuffle, ties: bool) -> None:
    logits = torch.randn(len(samples), 700, generator=torch.Generator().manual_seed(len(samples))) * 4
    if ties:
        logits = logits.round()  # many equal values: no order among them may come from the batch
    alone = [draw(logits[i : i + 1], [sample])[0] for i, sample in enumerate(samples)]
    order = list(range(len(samples)))
    shuffle.shuffle(order)
    assert draw(logits, [samples[i] for i in order], order) == [alone[i] for i in order]
    padded = torch.cat([torch.full((3, 700), float("nan")), logits, torch.zeros(2, 700)])
    assert draw(padded, samples, [3 + i for i in range(len(samples))]) == alone


def test_chunks_of_a_big_batch_change_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    logits = torch.randn(9, 50, generator=torch.Generator().manual_seed(2))
    samples = [{"position": i, "temperature": i % 3 / 2, "top_k": 5 * (i % 2)} for i in range(9)]
    banned = ((4, (1, 2)), (7, (3,)))
    whole = draw(logits, samples, banned=banned)
    monkeypatch.setattr(torch_sampler, "CPU_CHUNK", 100)
    assert draw(logits, samples, banned=banned) == whole


def test_logits_are_not_changed() -> None:
    logits = torch.randn(2, 40)
    before = logits.clone()
    draw(logits, [{"top_k": 3}, {"temperature": 0.0}], banned=((0, (1,)), (1, (2,))))
    draw(logits, [{"temperature": 0.0}] * 2, banned=((0, (1,)),), all_greedy=True)
    assert torch.equal(logits, before)


def test_samples_of_one_row_differ_and_repeat() -> None:
    logits = torch.zeros(1, 1000)
    samples = [{"index": i} for i in range(64)]
    first = draw(logits, samples, [0] * 64)
    assert draw(logits, samples, [0] * 64) == first
    assert len(set(first)) > 55
    assert draw(logits, [{**sample, "seed": 2} for sample in samples], [0] * 64) != first
    assert draw(logits, [{**sample, "position": 6} for sample in samples], [0] * 64) != first


# -- distributions


def test_uniform_is_uniform_along_every_axis() -> None:
    n, zero = 40_000, torch.zeros(40_000, dtype=torch.int64)
    along = torch.arange(n)
    for values in (uniform(along, zero, zero), uniform(zero, along, zero), uniform(zero, zero, along), uniform(along - 2**63, along, along)):
        assert values.min() >= 0
        assert values.max() < 1
        counts = torch.histc(values, bins=100, min=0, max=1)
        assert ((counts - n / 100) ** 2 / (n / 100)).sum() < 150  # chi-square, 99 degrees: above 148.2 once in 1,000
        pairs = torch.corrcoef(torch.stack([values[:-1], values[1:]]))
        assert abs(pairs[0, 1]) < 0.02


@pytest.mark.parametrize(
    "params",
    [
        {},
        {"temperature": 0.5},
        {"temperature": 2.0},
        {"top_k": 4},
        {"top_p": 0.8},
        {"min_p": 0.2},
        {"temperature": 1.5, "top_k": 6, "top_p": 0.9, "min_p": 0.05},
    ],
    ids=str,
)
def test_draws_follow_the_distribution(params: dict) -> None:
    logits = torch.randn(12, generator=torch.Generator().manual_seed(3)) * 1.5
    count, filters = 20_000, {**PLAIN, **params}
    expected = reference(logits.double().numpy(), filters["temperature"], filters["top_k"], filters["top_p"], filters["min_p"]) * count
    seen = draw_many(logits, count, **params)
    assert set(seen) <= {i for i in range(12) if expected[i]}
    likely = [i for i in range(12) if expected[i] > 5]
    chi = sum((seen[i] - expected[i]) ** 2 / expected[i] for i in likely)
    assert chi < len(likely) + 4 * math.sqrt(2 * len(likely)) + 4


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
    f32 = {"temperature": float(np.float32(temperature)), "top_p": float(np.float32(top_p)), "min_p": float(np.float32(min_p))}
    expected = set(np.flatnonzero(reference(logits.double().numpy(), top_k=top_k, **f32)).tolist())
    got = kept_ids(logits, temperature=temperature, top_k=top_k, top_p=top_p, min_p=min_p)
    weight = torch.exp((logits.double() - logits.double().max()) / f32["temperature"])
    edge = {i for i in got ^ expected if weight[i] > 2.0**-39}  # what weighs less is not drawn
    assert len(edge) <= 1
    if edge:  # only where the nucleus is full up to rounding
        without_nucleus = sorted(kept_ids(logits, temperature=temperature, top_k=top_k, min_p=min_p))
        reached = weight[sorted(got & expected)].sum() / weight[without_nucleus].sum()
        assert abs(float(reached) - f32["top_p"]) < 1e-9


# -- edges


@pytest.mark.parametrize("temperature", [1e-4, 1e-8, 1e-12, 1e-30, 1e-38, 1e-45])
@pytest.mark.parametrize("scale", [1.0, 100.0, 1e4])
def test_tiny_temperatures_are_greedy(temperature: float, scale: float) -> None:
    logits = torch.randn(4, 300, generator=torch.Generator().manual_seed(5)) * scale
    logits[0] -= 3 * scale
    logits[1, 7] = float("-inf")
    assert draw(logits, [{"temperature": temperature, "position": i} for i in range(4)]) == logits.argmax(-1).tolist()


def test_temperature_zero_is_argmax_whatever_else_is_set() -> None:
    logits = torch.randn(3, 300)
    samples = [{"temperature": 0.0, "top_k": 5}, {"temperature": 0.0, "top_p": 0.1}, {"temperature": 0.0, "min_p": 1.0}]
    assert draw(logits, samples) == draw(logits, samples, all_greedy=True) == logits.argmax(-1).tolist()


@pytest.mark.parametrize("params", [{"top_p": 1e-4}, {"top_k": 1}, {"min_p": 1.0}])
def test_the_strictest_filters_keep_the_likeliest(params: dict) -> None:
    logits = torch.randn(300, generator=torch.Generator().manual_seed(6))
    assert set(draw_many(logits, 200, **params)) == {int(logits.argmax())}


def test_equal_logits_fall_to_the_lowest_ids() -> None:
    assert kept_ids(torch.zeros(700), top_k=3) == {0, 1, 2}
    assert kept_ids(torch.zeros(700), top_k=400) == set(range(400))
    assert kept_ids(torch.zeros(10), top_p=0.5) == set(range(5))
    assert kept_ids(torch.zeros(700), min_p=1.0) == set(range(700))


def test_ids_stay_inside_and_minus_infinity_is_never_drawn() -> None:
    logits = torch.full((50,), float("-inf"))
    logits[[0, 17, 49]] = torch.tensor([0.0, 1.0, 0.5])
    for params in ({}, {"temperature": 2.0}, {"top_k": 10}, {"top_p": 0.99}, {"min_p": 0.01}):
        assert set(draw_many(logits, 500, **params)) == {0, 17, 49}


@pytest.mark.parametrize(("number", "id"), [(0.0, 2), (1 - 2.0**-53, 4)])
def test_the_first_and_last_point_fall_on_ids_with_weight(monkeypatch: pytest.MonkeyPatch, number: float, id: int) -> None:
    monkeypatch.setattr(torch_sampler, "uniform", lambda seed, position, index: torch.full(seed.shape, number, dtype=torch.float64))
    never = float("-inf")
    logits = torch.tensor([[never, never, 0.0, never, 0.0, never]])
    assert draw(logits, [{}, {"top_k": 4}, {"top_p": 0.999}], [0, 0, 0]) == [id] * 3


@pytest.mark.parametrize("value", ["nan", "inf", "-inf"])
def test_broken_rows_neither_raise_nor_touch_their_neighbours(value: str) -> None:
    logits = torch.randn(3, 300)
    samples = [{"top_p": 0.9}, {"top_k": 4}, {}]
    sound = draw(logits, samples)
    logits[1] = float(value)
    for variant in (samples, [{**s, "temperature": 0.0} for s in samples], [samples[0], {}, samples[2]]):
        got = draw(logits, variant)
        assert all(0 <= id < 300 for id in got)
        if variant[0] is samples[0]:
            assert (got[0], got[2]) == (sound[0], sound[2])
    logits[1, 5] = float("nan")
    assert all(0 <= id < 300 for id in draw(logits, samples))
    SAMPLER.logprobs(logits, torch.arange(3), torch.tensor([1, 2, 3]), 4)


def test_banned_ids_are_not_drawn() -> None:
    logits = torch.zeros(2, 6)
    logits[:, 3] = 50.0
    assert draw(logits, [{"temperature": 0.0}, {}], banned=((0, (3, 0, 999, -1)),)) == [1, 3]
    assert draw(logits, [{"temperature": 0.0}] * 2, [0, 0], banned=((1, (3,)),), all_greedy=True) == [3, 0]
    assert set(draw(logits, [{"position": i} for i in range(200)], [0] * 200, banned=tuple((i, (3, 4)) for i in range(200)))) == {0, 1, 2, 5}


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32, torch.float64])
def test_every_dtype_of_logits(dtype: torch.dtype) -> None:
    logits = (torch.randn(2, 300, generator=torch.Generator().manual_seed(8)) * 30).to(dtype)
    ids = draw(logits, [{"top_p": 0.9}, {"temperature": 0.0}])
    assert ids[1] == int(logits[1].argmax())
    assert SAMPLER.logprobs(logits, torch.arange(2), torch.tensor(ids), 2).chosen.dtype is torch.float32


def test_a_vocabulary_of_one_id() -> None:
    assert draw(torch.zeros(1, 1), [{"top_k": 5, "top_p": 0.5}]) == [0]


# -- logprobs


def test_logprobs_are_those_of_the_unmodified_logits() -> None:
    assert isinstance(SAMPLER, SupportsLogprobs)
    logits = torch.randn(3, 400, generator=torch.Generator().manual_seed(9)) * 5
    rows, ids = torch.tensor([2, 0, 2]), torch.tensor([7, 8, 9])
    got = SAMPLER.logprobs(logits, rows, ids, 5)
    expected = torch.log_softmax(logits.double(), -1)[rows]
    torch.testing.assert_close(got.chosen.double(), expected.gather(1, ids[:, None])[:, 0], atol=1e-5, rtol=1e-5)
    values, order = expected.topk(5)
    assert torch.equal(got.top_ids, order)
    torch.testing.assert_close(got.top.double(), values, atol=1e-5, rtol=1e-5)


def test_equal_logprobs_come_by_rising_id_however_many_are_asked() -> None:
    logits = torch.tensor([[1.0, 2.0, 1.0, 2.0, 1.0, 0.0]])
    for count in range(7):
        got = SAMPLER.logprobs(logits, torch.tensor([0]), torch.tensor([5]), count)
        assert got.top_ids.tolist() == [[1, 3, 0, 2, 4, 5][:count]]
    assert SAMPLER.logprobs(logits, torch.tensor([0]), torch.tensor([0]), 20).top_ids.shape == (1, 6)


def test_logprobs_with_impossible_ids() -> None:
    logits = torch.tensor([[0.0, float("-inf"), float("-inf"), 0.0]])
    got = SAMPLER.logprobs(logits, torch.tensor([0]), torch.tensor([3]), 4)
    assert got.top_ids.tolist() == [[0, 3, 1, 2]]
    assert got.chosen.tolist() == pytest.approx([math.log(0.5)])
