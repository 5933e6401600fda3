"""The fingerprint model: equal to its solo run, and different as soon as anything that it reads is."""

from __future__ import annotations

from collections import Counter

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from corekit.api import Model, ModelInputs, SamplingParams, SupportsDrafts
from corekit.builtin.fingerprint import NUM_PEAKS, Fingerprint, solo
from corekit.builtin.options import FingerprintOptions
from corekit.builtin.torch_sampler import TorchSampler

PROMPTS = st.lists(st.integers(0, 319), min_size=1, max_size=24)


class Dense:
    """Causal attention over one row, without a cache; `spoil` changes keys and values before they are read."""

    def __init__(self, spoil=lambda layer, key, value: (key, value)) -> None:
        self._spoil = spoil

    def __call__(self, layer, query, key, value, *, sinks=None):
        key, value = self._spoil(layer, key.clone(), value.clone())
        scores = torch.einsum("qhd,khd->hqk", query, key)
        hidden = torch.ones(scores.shape[1:], dtype=torch.bool).triu(1)
        seen = value[None].expand(len(query), -1, -1, -1).masked_fill(hidden[:, :, None, None], 0.0)
        return torch.einsum("hqk,qkhd->qhd", scores.masked_fill(hidden, float("-inf")).softmax(-1), seen)


def logits_of(model: Fingerprint, tokens: list[int], attend=None, positions: list[int] | None = None) -> torch.Tensor:
    inputs = ModelInputs(token_ids=torch.tensor(tokens), positions=torch.tensor(positions or range(len(tokens))))
    return model.logits(model.forward(inputs, attend or Dense()))


@given(prompt=PROMPTS, seed=st.integers(0, 3))
def test_greedy_tokens_are_those_of_solo(prompt: list[int], seed: int) -> None:
    options = FingerprintOptions(seed=seed)
    answer = solo(prompt, max_tokens=5, options=options)
    drawn = logits_of(Fingerprint(options), [*prompt, *answer]).argmax(-1).tolist()
    assert tuple(drawn[len(prompt) - 1 : -1]) == answer


def test_a_long_context_is_still_exact() -> None:
    tokens = [(i * i + 3) % 320 for i in range(700)]
    assert logits_of(Fingerprint(), tokens)[-1].argmax() == solo(tokens, max_tokens=1)[0]


@given(prompt=st.lists(st.integers(0, 319), min_size=6, max_size=20, unique=True), data=st.data())
def test_every_token_and_its_place_matter(prompt: list[int], data) -> None:
    """Changing one token, or swapping two, changes all codes from there on (but for a chance of 1 in 10,000)."""
    model = Fingerprint()
    at = data.draw(st.integers(0, len(prompt) - 2))
    swapped = prompt.copy()
    swapped[at], swapped[at + 1] = swapped[at + 1], swapped[at]

    def codes(tokens: list[int]) -> list[float]:
        inputs = ModelInputs(token_ids=torch.tensor(tokens), positions=torch.arange(len(tokens)))
        return model.forward(inputs, Dense())[:, 0].tolist()

    right, wrong = codes(prompt), codes(swapped)
    assert right[:at] == wrong[:at]
    assert sum(a == b for a, b in zip(right[at:], wrong[at:], strict=True)) <= 1


@pytest.mark.parametrize("layer", [0, 1])
@pytest.mark.parametrize("what", ["keys", "values", "even", "sharp"])
def test_a_wrong_cache_shows(layer: int, what: str) -> None:
    """Two blocks of the cache exchanged, in keys or values, or values of one head: most answers change."""
    model, tokens = Fingerprint(), [(7 * i + 1) % 320 for i in range(32)]

    def spoil(at, key, value):
        moved = torch.tensor([*range(4, 8), *range(4), *range(8, 32)])
        if at == layer and what == "keys":
            key = key[moved]
        elif at == layer and what == "values":
            value = value[moved]
        elif at == layer:
            head = int(what == "sharp")
            value[3, head] += 1
        return key, value

    right, wrong = logits_of(model, tokens), logits_of(model, tokens, Dense(spoil))
    changed = (right != wrong).any(-1)
    if what in ("even", "sharp"):  # one value at position 3: a sum shows it from there on, the sharp head wherever it looks there
        assert not changed[:3].any()
        assert changed.sum() >= (29 if what == "even" else 1)
    else:
        assert changed[:8].sum() >= 5


@pytest.mark.parametrize("layer", [0, 1])
def test_an_unwritten_slot_makes_the_logits_nan(layer: int) -> None:
    written = {}

    def spoil(at, key, value):
        written[at] = value.isnan().flatten(1).any(1).tolist()
        if at == layer:
            value[2] = float("nan")
        return key, value

    logits = logits_of(Fingerprint(), [5, 6, 7, 8, 9], Dense(spoil))
    assert logits[:2].isfinite().all()
    assert logits[2:].isnan().all()
    assert written == {
        0: [False] * 5,
        1: [False, False, *([True] * 3)] if layer == 0 else [False] * 5,
    }  # what follows from it is not cached as if it were right


def test_draws_at_temperature_1_spread_over_several_ids() -> None:
    params = SamplingParams(temperature=1.0)
    seen = Counter(solo([1, 2, 3], max_tokens=1, params=params, seed=s, sampler=TorchSampler())[0] for s in range(200))
    assert len(seen) >= NUM_PEAKS - 2
    assert seen.most_common(1)[0][0] == solo([1, 2, 3], max_tokens=1)[0]
    assert seen.most_common(1)[0][1] < 120


def test_greedy_ids_are_spread_over_the_vocabulary() -> None:
    seen = Counter(solo([5], max_tokens=3000))
    assert len(seen) > 300
    assert max(seen.values()) < 40


@pytest.mark.parametrize("params", [SamplingParams(temperature=0, min_tokens=6), SamplingParams(temperature=1.0, min_tokens=6)])
def test_solo_ends_at_an_end_id_but_not_too_early(params: SamplingParams) -> None:
    def ended_by(*end_ids: int) -> tuple[int, ...]:
        return solo([9, 9], max_tokens=12, params=params, end_ids=end_ids, sampler=TorchSampler())

    free = ended_by()
    late = next(token for token in free[6:] if token not in free[:6])
    assert ended_by(late) == free[: free.index(late) + 1]
    early = free[2]
    held = ended_by(early)
    assert early not in held[:6]
    assert held[: free.index(early)] == free[: free.index(early)]
    assert len(held) > 6


def test_solo_with_every_peak_banned_takes_the_lowest_id() -> None:
    params = SamplingParams(temperature=0, min_tokens=1)
    row = logits_of(Fingerprint(), [4])[0]
    peaks = tuple((row > -20).nonzero()[:, 0].tolist())
    assert solo([4], max_tokens=1, params=params, end_ids=peaks) == (next(i for i in range(320) if i not in peaks),)


def test_a_third_of_the_guesses_is_wrong() -> None:
    model = Fingerprint(FingerprintOptions(max_draft_tokens=4))
    assert isinstance(model, SupportsDrafts)
    assert model.max_draft_tokens == 4
    tokens = [3, 1, *solo([3, 1], max_tokens=300)]
    hits = [g == t for at in range(2, 290, 4) for g, t in zip(model.draft(tokens[:at], 4), tokens[at:], strict=False)]
    assert 0.5 < sum(hits) / len(hits) < 0.8
    assert all(0 <= g < 320 for at in range(2, 40) for g in model.draft(tokens[:at], 4))


def test_the_spec_says_what_it_needs() -> None:
    model: Model = Fingerprint(FingerprintOptions(vocab_size=64, context_length=128))
    spec = model.spec
    assert (spec.vocab_size, spec.context_length, spec.dtype, len(spec.layers)) == (64, 128, "float64", 2)
    assert all(layer.window is None for layer in spec.layers)
    assert logits_of(Fingerprint(FingerprintOptions(vocab_size=64)), [1, 2]).shape == (2, 64)


@pytest.mark.parametrize("wrong", [{"vocab_size": 7}, {"context_length": 0}, {"max_draft_tokens": 17}, {"seed": -1}, {"seed": True}])
def test_options_have_bounds(wrong: dict) -> None:
    with pytest.raises(ValueError, match=next(iter(wrong))):
        FingerprintOptions(**wrong)
