"""Penalties, biases, bans and bad words: a sample's answer is that of a naive recount, however its steps are cut and mixed."""

from __future__ import annotations

import random
from collections import Counter
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from worker_naive import VOCAB, answer
from worker_rig import GREEDY, Rig, fingerprint

from corekit.api import RowMasks, SamplingParams
from corekit.builtin.torch_sampler import TorchSampler
from corekit.worker.history import History

NUM_TOKENS = 16


class Guessing:
    """The fingerprint model, whose guesses are what its samples will answer, unless they are spoilt: about a quarter of them."""

    def __init__(self, *, spoils: bool = True) -> None:
        self.spoils = spoils
        self.inner = fingerprint(vocab_size=VOCAB, max_draft_tokens=4)
        self.whole: list[list[int]] = []

    def __getattr__(self, name):
        return getattr(self.inner, name)

    def draft(self, token_ids, count):
        found = next((whole for whole in self.whole if whole[: len(token_ids)] == list(token_ids)), ())
        guesses = found[len(token_ids) : len(token_ids) + count]
        return [(id + 1) % VOCAB if self.spoils and (id + len(token_ids) + at) % 4 == 0 else id for at, id in enumerate(guesses)]


def random_params(rng: random.Random) -> dict:
    """What a request may ask for, and its end ids and bad words."""
    ids = rng.sample(range(VOCAB), 12)
    params = SamplingParams(
        temperature=rng.choice((0.0, 0.0, 1.0)),
        top_p=rng.choice((1.0, 0.9)),
        repetition_penalty=rng.choice((1.0, 1.7, 0.6)),
        presence_penalty=rng.choice((0.0, 0.0, 1.5)),
        frequency_penalty=rng.choice((0.0, 0.75, -0.5)),
        logit_bias=rng.choice(((), ((ids[0], 3.0), (ids[1], -100.0)))),
        allowed_token_ids=rng.choice((None, None, tuple(sorted(ids)))),
        banned_token_ids=rng.choice(((), (ids[2], ids[3]))),
        min_tokens=rng.choice((0, 6)),
        max_tokens=None,
    )
    bad_words = rng.choice(((), ((ids[4],), (ids[5], ids[6]), *((a, b) for a in range(0, VOCAB, 2) for b in ids[:3]), (ids[7], ids[8], ids[9]))))
    return {"params": params, "end_ids": tuple(ids[10:12]), "bad_words": bad_words}


@pytest.mark.parametrize("seed", range(10))
def test_restricted_answers_do_not_depend_on_how_steps_are_cut(seed: int) -> None:
    """Random chunks, neighbours, right and wrong guesses, departures and readmissions."""
    rng = random.Random(seed)
    model = Guessing()
    drafts = rng.choice((0, 4))
    rig = Rig(model, num_blocks=900, seed=seed)
    prompts = [[rng.randrange(VOCAB) for _ in range(rng.randint(1, 12))] for _ in range(5)]
    asked = [random_params(rng) for _ in prompts]
    expected = [answer(p, NUM_TOKENS, seed=i, **a) for i, (p, a) in enumerate(zip(prompts, asked, strict=True))]
    model.whole = [p + e for p, e in zip(prompts, expected, strict=True)]
    tokens, computed, accepted = [list(p) for p in prompts], [-1] * 5, 0
    while any(len(t) < len(p) + NUM_TOKENS for t, p in zip(tokens, prompts, strict=True)):
        rows, gone = [], []
        for i in rng.sample(range(5), rng.randint(1, 5)):
            if computed[i] >= 0 and rng.random() < 0.1:
                gone.append(i)
                computed[i] = -1
            again, start = computed[i] < 0, max(computed[i], 0)
            count = rng.randint(1, len(tokens[i]) - start)
            draws = int(start + count == len(tokens[i]))
            if again:
                rows.append(rig.admit(i, tokens[i], count, num_samples=draws, seed=i, num_prompt=len(prompts[i]), **asked[i]))
            else:
                extra = drafts if draws and count == 1 else 0
                rows.append(rig.go(i, start + count + extra, count + extra, num_samples=draws, num_drafts=extra))
            computed[i] = start + count
        result = rig.step(*rows, gone=tuple(gone))
        assert not result.faults
        for row, drew in zip(rows, result.tokens, strict=True):
            tokens[row.id] += drew[0] if drew else ()
            computed[row.id] += len(drew[0]) - 1 if drew else 0
            accepted += len(drew[0]) - 1 if drew else 0
    assert accepted > 3 or not drafts
    for prompt, got, right in zip(prompts, tokens, expected, strict=True):
        assert got[len(prompt) :][:NUM_TOKENS] == right


def test_samples_of_one_prompt_share_its_history_and_go_on_with_their_own() -> None:
    params = SamplingParams(temperature=1.0, repetition_penalty=1.5, frequency_penalty=1.0, n=3)
    model = fingerprint(vocab_size=VOCAB)
    rig, prompt = Rig(model), (3, 4, 5, 6)
    drew = rig.step(rig.admit(0, prompt, 4, num_samples=3, params=params, seed=8)).tokens[0]
    rows, answers = [rig.go(0, 5)], [list(one) for one in drew]
    for sample in (1, 2):
        shared = tuple(rig.tables[0][:1])
        rows.append(rig.admit(sample, (*prompt, *drew[sample]), 1, start=4, shared=shared, sample=sample, params=params, seed=8, num_prompt=4))
    for end in range(5, 20):
        for one, tokens in zip(answers, rig.step(*rows).tokens, strict=True):
            one += tokens[0]
        rows = [rig.go(id, end + 1) for id in range(3)]
    assert answers == [answer(prompt, 16, params, seed=8, sample=i) for i in range(3)]
    assert len({tuple(one) for one in answers}) == 3


def test_a_bad_word_is_of_the_output_alone() -> None:
    free = answer((1, 2), 3, GREEDY)
    for bad_words in (((2, free[0]),), ((1, 2, free[0]),)):
        rig = Rig(fingerprint(vocab_size=VOCAB))
        assert rig.step(rig.admit(0, (1, 2), 2, bad_words=bad_words)).tokens == (((free[0],),),)
    rig = Rig(fingerprint(vocab_size=VOCAB))
    rig.step(rig.admit(0, (1, 2), 2, bad_words=((free[0], free[1]),)))
    ((second,),) = rig.step(rig.go(0, 3)).tokens[0]
    assert second != free[1]


@given(
    prompt=st.lists(st.integers(0, 9), max_size=12),
    output=st.lists(st.integers(0, 12), max_size=200),
    cut=st.integers(0, 200),
    guesses=st.lists(st.integers(0, 15), max_size=6),
)
def test_a_history_is_a_count(prompt: list[int], output: list[int], cut: int, guesses: list[int]) -> None:
    history = History(prompt, output[:cut])
    for id in output[cut:]:
        history.add((id,))
    for more in ((), tuple(guesses), ()):
        ids, num_output = history.counts(more)
        right = Counter([*output, *more])
        assert len(ids) == len({*ids.tolist()})
        assert dict(zip(ids.tolist(), num_output.tolist(), strict=True)) == {id: right[id] for id in {*prompt, *output, *more}}


def test_an_end_id_may_be_guessed_as_soon_as_there_are_enough() -> None:
    free = answer((1, 2), 6, GREEDY)
    assert free[3] not in free[:3]
    model, params = Guessing(spoils=False), SamplingParams(temperature=0, min_tokens=3)
    model.whole = [[1, 2, *free]]
    rig = Rig(model)
    unlikely = next(id for id in range(VOCAB) if id not in free)
    rig.step(rig.admit(0, (1, 2), 2, params=params, end_ids=(free[3],), bad_words=((unlikely,),)))
    assert rig.step(rig.go(0, 7, 5, num_drafts=4)).tokens == ((tuple(free[1:]),),)


def test_a_place_forgets_who_had_it() -> None:
    rig = Rig(fingerprint(vocab_size=VOCAB))
    (likeliest,) = answer((1, 2), 1, GREEDY)
    rig.step(rig.admit(0, (1, 2), 2, params=SamplingParams(temperature=0, banned_token_ids=(likeliest,), frequency_penalty=2.0)))
    result = rig.step(rig.admit(1, (1, 2), 2, params=SamplingParams(temperature=0, logprobs=0)), gone=(0,))
    assert result.tokens == (((likeliest,),),)


def test_what_nobody_asked_for_is_not_sent() -> None:
    seen = []

    class Watching(TorchSampler):
        def sample(self, logits, batch):
            seen.append(batch)
            return super().sample(logits, batch)

    rig = Rig(sampler=Watching())
    rig.step(rig.admit(0, (1, 2), 2, end_ids=(3,)), rig.admit(1, (5,), 1, params=SamplingParams(min_tokens=1), end_ids=(3,)))
    rig.step(rig.go(0, 3), rig.go(1, 2))
    assert seen[0].banned == ((0, (3,)),)  # rows of one token come first
    assert [(b.banned, b.allowed, b.biases, b.penalties) for b in seen[1:]] == [((), (), None, None)]
    rig.step(rig.admit(2, (5, 6), 2, params=SamplingParams(presence_penalty=1.0)), rig.go(0, 4))
    assert len(seen[-1].penalties.sample) == 0  # an empty output, and the prompt does not count


# -- nothing left


def mask_of(*ids: int) -> bytes:
    bits = np.zeros(320, bool)
    bits[list(ids)] = True
    return np.packbits(bits, bitorder="little").tobytes()


NOTHING = [
    (
        {"params": SamplingParams(allowed_token_ids=(5, 6), banned_token_ids=(6, 5))},
        None,
        ["allowed_token_ids leaves 2 of 320", "banned_token_ids leaves 0 of 2"],
    ),
    ({"params": SamplingParams(allowed_token_ids=(5,)), "bad_words": ((5,), (7, 7))}, None, ["allowed_token_ids leaves 1 of 320", "bad_words leaves 0 of 1"]),
    ({"params": SamplingParams(allowed_token_ids=(5, 6), min_tokens=2), "end_ids": (6, 5)}, None, ["min_tokens = 2 leaves 0 of 2"]),
    ({"params": SamplingParams(banned_token_ids=tuple(range(320)))}, None, ["banned_token_ids leaves 0 of 320"]),
    (
        {"params": SamplingParams(banned_token_ids=(3, 4))},
        mask_of(4, 3),
        ["processors leaves 2 of 320", "banned_token_ids leaves 0 of 2"],
    ),
    ({"params": SamplingParams(temperature=0)}, mask_of(), ["the mask of the logits processors leaves 0 of 320"]),
    ({"params": SamplingParams(allowed_token_ids=(5,), logprobs=1), "num_samples": 3}, mask_of(6), ["leaves 1 of 320", "allowed_token_ids leaves 0 of 1"]),
]


@pytest.mark.parametrize(("asked", "mask", "words"), NOTHING, ids=lambda value: str(value)[:60] if isinstance(value, list) else "")
def test_a_sample_with_nothing_left_ends_and_says_why(asked: dict, mask: bytes | None, words: list[str]) -> None:
    rig = Rig()
    neighbour = rig.admit(0, (1, 2), 2)
    result = rig.step(neighbour, rig.admit(1, (1, 2), 2, **asked), masks=None if mask is None else RowMasks(words={1: mask}))
    assert list(result.faults) == [1]
    assert result.tokens[1] == ()
    assert result.tokens[0] != ()
    assert not result.logprobs
    assert result.faults[1].startswith("there is no id left to draw: ")
    assert result.faults[1].endswith("; ask for less of these together")
    for word in words:
        assert word in result.faults[1]
    assert ("min_tokens" in result.faults[1]) == ("min_tokens" in str(words))  # what takes nothing away is not named


@pytest.mark.parametrize("way", ["allowed_token_ids", "banned_token_ids", "bad_words", "min_tokens = 1"])
def test_a_sampler_that_draws_what_is_forbidden_is_named(way: str) -> None:
    class Wilful(TorchSampler):
        def sample(self, logits, batch):
            return super().sample(logits, replace(batch, banned=(), allowed=()))

    rig = Rig(sampler=Wilful())
    likeliest = rig.step(rig.admit(0, (1, 2), 2)).tokens[0][0][0]
    asked = {
        "allowed_token_ids": {"params": SamplingParams(temperature=0, allowed_token_ids=((likeliest + 1) % 320,))},
        "banned_token_ids": {"params": SamplingParams(temperature=0, banned_token_ids=(likeliest,))},
        "bad_words": {"bad_words": ((likeliest,),)},
        "min_tokens = 1": {"params": SamplingParams(temperature=0, min_tokens=1), "end_ids": (likeliest,)},
    }[way]
    result = rig.step(rig.admit(1, (1, 2), 2, **asked))
    assert f"sampler Wilful.sample drew {likeliest}, which {way} forbids, though " in result.faults[0]
    assert "passes over what its batch forbids" in result.faults[0]


@pytest.mark.parametrize("spoils", [False, True])
def test_nothing_left_after_a_guess_ends_the_sample_in_the_next_step_as_without_guesses(spoils: bool) -> None:
    model = Guessing(spoils=spoils)
    free = answer((1, 2), 4, GREEDY)
    bad_words = tuple((*free[:3], id) for id in range(VOCAB))  # nothing may follow the third
    model.whole = [[1, 2, *free]]
    rig = Rig(model)
    got = list(rig.step(rig.admit(0, (1, 2), 2, bad_words=bad_words)).tokens[0][0])
    faults = {}
    while not faults:
        end = 2 + len(got) + 4
        result = rig.step(rig.go(0, end, 5, num_drafts=4))
        faults = result.faults
        got += result.tokens[0][0] if result.tokens[0] else ()
    assert got == free[:3]
    assert "bad_words leaves 0 of 24" in faults[0]
