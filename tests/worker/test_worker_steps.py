"""What the worker computes: the tokens of each sample are those of its solo run, however the steps are cut and mixed."""

from __future__ import annotations

import random

import numpy as np
import pytest
import torch
from worker_rig import GREEDY, Rig, fingerprint

from corekit.api import BatchLayout, BlockRef, Copy, RowMasks, SamplingParams
from corekit.builtin.fingerprint import solo
from corekit.builtin.options import FingerprintOptions
from corekit.builtin.torch_attention import TorchAttention
from corekit.builtin.torch_sampler import TorchSampler

DRAWN = SamplingParams(temperature=1.0, top_p=0.95)


@pytest.mark.parametrize("seed", range(16))
def test_answers_do_not_depend_on_how_steps_are_cut(seed: int) -> None:
    """Random chunks, neighbours, guesses, departures and readmissions."""
    rng = random.Random(seed)
    drafts = rng.choice((0, 0, 3))
    rig = Rig(fingerprint(max_draft_tokens=drafts), block_size=rng.choice((1, 2, 4, 16)), num_blocks=900, seed=seed)
    prompts = [[rng.randrange(320) for _ in range(rng.randint(1, 20))] for _ in range(5)]
    params = [rng.choice((GREEDY, DRAWN)) for _ in prompts]
    tokens, computed = [list(p) for p in prompts], [-1] * 5  # as far as results are known
    while any(len(t) < len(p) + 12 for t, p in zip(tokens, prompts, strict=True)):
        rows, gone = [], []
        for i in rng.sample(range(5), rng.randint(1, 5)):
            if computed[i] >= 0 and rng.random() < 0.1:
                gone.append(i)
                computed[i] = -1
            again, start = computed[i] < 0, max(computed[i], 0)
            count = rng.randint(1, len(tokens[i]) - start)
            draws = int(start + count == len(tokens[i]))
            if again:
                rows.append(rig.admit(i, tokens[i], count, num_samples=draws, params=params[i], seed=i, num_prompt=len(prompts[i])))
            else:
                extra = drafts if draws and count == 1 else 0
                rows.append(rig.go(i, start + count + extra, count + extra, num_samples=draws, num_drafts=extra))
            computed[i] = start + count
        result = rig.step(*rows, gone=tuple(gone))
        assert not result.faults
        for row, drew in zip(rows, result.tokens, strict=True):
            assert len(drew) == row.num_samples
            tokens[row.id] += drew[0] if drew else ()
            computed[row.id] += len(drew[0]) - 1 if drew else 0
    for i, (prompt, answer) in enumerate(zip(prompts, tokens, strict=True)):
        expected = solo(prompt, max_tokens=12, params=params[i], seed=i, sampler=TorchSampler())
        assert tuple(answer[len(prompt) :][:12]) == expected


def test_a_step_knows_what_the_step_before_drew() -> None:
    """Submitted before anyone collected."""
    rig = Rig()
    rig.submit(rig.admit(0, (5, 6, 7), 3))
    rig.worker.sample(None)
    results = []
    for end in range(4, 12):
        rig.submit(rig.go(0, end))
        rig.worker.sample(None)
        results.append(rig.worker.collect())
    results.append(rig.worker.collect())
    assert tuple(r.tokens[0][0][0] for r in results) == solo((5, 6, 7), max_tokens=9)


def test_results_stand_in_the_order_of_the_rows() -> None:
    """Rows of one token are computed first; the result does not show it."""
    rig = Rig()
    first = rig.step(rig.admit(1, (9,), 1), rig.admit(2, (8, 8, 8), 3))
    result = rig.step(rig.admit(3, (1, 2, 3), 3), rig.go(1, 2), rig.admit(4, (1, 2, 3, 4), 2, num_samples=0), rig.go(2, 4))
    alone = {p: solo(p, max_tokens=2) for p in ((9,), (8, 8, 8), (1, 2, 3))}
    assert first.tokens == (((alone[9,][0],),), ((alone[8, 8, 8][0],),))
    assert result.tokens == (((alone[1, 2, 3][0],),), ((alone[9,][1],),), (), ((alone[8, 8, 8][1],),))


def test_guesses_give_several_tokens_and_never_wrong_ones() -> None:
    rig = Rig(fingerprint(max_draft_tokens=3))
    answer = list(rig.step(rig.admit(0, (4, 2), 2)).tokens[0][0])
    lengths = []
    while len(answer) < 60:
        end = 2 + len(answer) + 3
        answer += rig.step(rig.go(0, end, 4, num_drafts=3)).tokens[0][0]
        lengths.append(end - 2 - 3)
    assert tuple(answer[:60]) == solo((4, 2), max_tokens=60)
    assert len(lengths) < 45
    assert len(lengths) > 16  # some guesses were wrong


def test_fewer_guesses_than_asked_for() -> None:
    class Shy:
        def __init__(self) -> None:
            self.inner = fingerprint(max_draft_tokens=3)

        def __getattr__(self, name):
            return getattr(self.inner, name)

        def draft(self, token_ids, count):
            return self.inner.draft(token_ids, count)[: len(token_ids) % 3]

    rig = Rig(Shy())
    answer = list(rig.step(rig.admit(0, (4, 2), 2)).tokens[0][0])
    while len(answer) < 30:
        answer += rig.step(rig.go(0, 5 + len(answer), 4, num_drafts=3)).tokens[0][0]
    assert tuple(answer[:30]) == solo((4, 2), max_tokens=30)


@pytest.mark.parametrize("prompt_length", [7, 8])
def test_samples_of_one_prompt_share_its_blocks(prompt_length: int) -> None:
    """The leader draws for all; siblings come with their own token, the leader's full blocks and a copy of its half-filled one."""
    rig, prompt = Rig(), tuple(range(3, 3 + prompt_length))
    drew = rig.step(rig.admit(0, prompt, prompt_length, num_samples=3, params=DRAWN, seed=77)).tokens[0]
    full = prompt_length // 4
    copies, rows = [], [rig.go(0, prompt_length + 1)]
    for sample in (1, 2):
        shared = tuple(rig.tables[0][:full])
        row = rig.admit(sample, (*prompt, *drew[sample]), 1, start=prompt_length, shared=shared, sample=sample, params=DRAWN, seed=77, num_prompt=prompt_length)
        rows.append(row)
        if prompt_length % 4:
            copies.append(Copy(BlockRef(rig.tables[0][full]), BlockRef(row.blocks[full])))
    answers = [list(d) for d in drew]
    for end in range(prompt_length + 1, prompt_length + 8):
        result = rig.step(*rows, copies=tuple(copies))
        for answer, tokens in zip(answers, result.tokens, strict=True):
            answer += tokens[0]
        rows, copies = [rig.go(id, end + 1) for id in range(3)], []
    expected = [solo(prompt, max_tokens=8, params=DRAWN, seed=77, sample=i, sampler=TorchSampler()) for i in range(3)]
    assert [tuple(answer) for answer in answers] == expected
    assert len({*expected}) > 1


@pytest.mark.parametrize("params", [SamplingParams(temperature=0, min_tokens=5), SamplingParams(temperature=1.0, min_tokens=5)])
def test_end_ids_are_not_drawn_too_early(params: SamplingParams) -> None:
    end = solo((1, 2), max_tokens=1, params=SamplingParams(temperature=params.temperature), sampler=TorchSampler())
    rig = Rig()
    neighbour = rig.admit(1, (1, 2), 2, params=SamplingParams(temperature=params.temperature))
    result = rig.step(neighbour, rig.admit(0, (1, 2), 2, params=params, end_ids=end))
    assert result.tokens[0] == (end,)  # who asked for nothing may draw it
    answer = list(result.tokens[1][0])
    while len(answer) < 9:
        answer += rig.step(rig.go(0, 2 + len(answer))).tokens[0][0]
    expected = solo((1, 2), max_tokens=9, params=params, end_ids=end, sampler=TorchSampler())
    assert tuple(answer)[: len(expected)] == expected
    assert end[0] not in answer[:5]


def test_an_end_id_may_be_drawn_as_soon_as_there_are_enough() -> None:
    params = SamplingParams(temperature=0, min_tokens=3)
    free = solo((1, 2), max_tokens=4)
    assert free[3] not in free[:3]
    rig = Rig()
    answer = list(rig.step(rig.admit(0, (1, 2), 2, params=params, end_ids=(free[3],))).tokens[0][0])
    while len(answer) < 4:
        answer += rig.step(rig.go(0, 2 + len(answer))).tokens[0][0]
    assert tuple(answer) == free


def test_logprobs_for_those_who_asked() -> None:
    rig = Rig(fingerprint(max_draft_tokens=2))
    asking = SamplingParams(temperature=1.0, logprobs=2)
    rows = (
        rig.admit(0, (1, 2, 3), 3),
        rig.admit(1, (1, 2, 3), 3, params=asking, num_samples=2),
        rig.admit(2, (5,), 1, params=SamplingParams(temperature=0, logprobs=0)),
    )
    result = rig.step(*rows)
    assert set(result.logprobs) == {1, 2}
    for row, k in ((1, 2), (2, 0)):
        for sample, tokens in enumerate(result.tokens[row]):
            shown = result.logprobs[row][sample]
            assert [one.token_id for one in shown] == list(tokens)
            assert all(len(one.top) == k for one in shown)
            assert all(one.logprob < 0 for one in shown)
    heights = np.array([4 - i / 2 for i in range(8)])  # eight peaks of the fingerprint over a floor at -20
    total = np.log(np.exp(heights).sum() + 312 * np.exp(-20.0))
    best = result.logprobs[1][0][0].top
    assert [value for _, value in best] == pytest.approx(list(heights[:2] - total), abs=1e-4)
    assert best[0][0] == solo((1, 2, 3), max_tokens=1)[0]
    later = rig.step(rig.go(1, 6, 3, num_drafts=2))
    assert [one.token_id for one in later.logprobs[0][0]] == list(later.tokens[0][0])


def test_masks_hold_a_row_to_its_ids() -> None:
    rig = Rig(fingerprint(max_draft_tokens=3))
    bits = np.zeros(320, bool)
    bits[[3, 7, 301]] = True
    mask = np.packbits(bits, bitorder="little").tobytes()
    hot = SamplingParams(temperature=1.0, logprobs=0)
    result = rig.step(rig.admit(0, (1, 2), 2), rig.admit(1, (1, 2), 2, params=hot, num_samples=40), masks=RowMasks(words={1: mask}))
    assert result.tokens[0] == (solo((1, 2), max_tokens=1),)
    assert {tokens[0] for tokens in result.tokens[1]} == {3, 7, 301}
    assert all(one.logprob < -20 for (one,) in result.logprobs[1])  # of the model, not of the mask


def test_a_masked_row_keeps_no_guess() -> None:
    """The mask says nothing about what follows a guess, not even a right one."""
    model = fingerprint(max_draft_tokens=3)
    prompt = next((i, 2) for i in range(50) if model.draft((i, 2, *solo((i, 2), max_tokens=1)), 1)[0] == solo((i, 2), max_tokens=2)[1])
    right = solo(prompt, max_tokens=2)
    bits = np.zeros(320, bool)
    bits[right[1]] = True
    masks = RowMasks(words={0: np.packbits(bits, bitorder="little").tobytes()})
    for given, fewest, most in ((None, 2, 4), (masks, 1, 1)):
        rig = Rig(model)
        rig.step(rig.admit(0, prompt, 2))
        (tokens,) = rig.step(rig.go(0, 6, 4, num_drafts=3), masks=given).tokens[0]
        assert tokens[0] == right[1]
        assert fewest <= len(tokens) <= most


def test_the_layout_is_as_promised() -> None:
    seen: list[BatchLayout] = []

    class Watching(TorchAttention):
        def plan(self, layout):
            seen.append(layout)
            return super().plan(layout)

    rig = Rig(attention=Watching(fingerprint().spec.layers, device="cpu", poison=True))
    rig.step(rig.admit(0, (1,) * 9, 9))
    rig.step(rig.admit(1, (1,) * 6, 6), rig.go(0, 10), rig.admit(2, (1, 2, 3), 1, num_samples=0))
    layout = seen[-1]
    assert (layout.num_rows, layout.num_tokens, layout.num_decodes) == (3, 8, 2)
    assert layout.query_start_loc.tolist() == layout.host_query_start_loc.tolist() == [0, 1, 2, 8]
    assert layout.seq_lens.tolist() == layout.host_seq_lens.tolist() == [10, 1, 6]
    tables, slots = layout.groups[0].block_tables, layout.groups[0].slot_mapping
    assert tables.tolist() == [rig.tables[0], [*rig.tables[2], 0, 0], [*rig.tables[1], 0]]
    assert slots.tolist() == [rig.tables[0][2] * 4 + 1, rig.tables[2][0] * 4, *(rig.tables[1][p // 4] * 4 + p % 4 for p in range(6))]
    assert all(t.dtype == torch.int64 for t in (tables, slots, layout.seq_lens, layout.query_start_loc))


def test_a_table_is_replaced_from_an_index_on() -> None:
    """What the core does when it copies a shared block: the last block changes, with a copy."""
    rig = Rig()
    drew = list(rig.step(rig.admit(0, (1, 2, 3, 4, 5), 5)).tokens[0][0])
    old, new = rig.tables[0][1], rig.block()
    row = rig.go(0, 6)._replace(table_start=1, blocks=(new,))
    drew += rig.step(row, copies=(Copy(BlockRef(old), BlockRef(new)),)).tokens[0][0]
    assert tuple(drew) == solo((1, 2, 3, 4, 5), max_tokens=2)


def test_what_is_left_of_a_table_that_shrank_is_padding() -> None:
    seen: list[BatchLayout] = []

    class Watching(TorchAttention):
        def plan(self, layout):
            seen.append(layout)
            return super().plan(layout)

    rig = Rig(attention=Watching(fingerprint().spec.layers, device="cpu", poison=True))
    rig.step(rig.admit(0, (1, 2, 3, 4, 5), 5)._replace(blocks=(1, 2, 3, 4)), rig.admit(1, (7,) * 16, 16))
    row = rig.go(0, 6)._replace(table_start=1, blocks=(2,))
    rig.step(row, rig.go(1, 17))
    assert seen[-1].groups[0].block_tables[0].tolist() == [1, 2, 0, 0, 0]


def test_many_rows_come_and_go() -> None:
    rig = Rig(num_blocks=2000)
    for start in range(0, 300, 100):
        rows = [rig.admit(id, (id % 320, 1), 2) for id in range(start, start + 100)]
        result = rig.step(*rows, gone=tuple(range(start - 100, start)) if start else ())
        assert [tokens[0] for tokens in result.tokens] == [solo((id % 320, 1), max_tokens=1) for id in range(start, start + 100)]


def test_an_empty_step_still_copies() -> None:
    rig = Rig()
    rig.step(rig.admit(0, (1, 2, 3, 4), 4))
    new = rig.block()
    assert rig.step(copies=(Copy(BlockRef(rig.tables[0][0]), BlockRef(new)),)).tokens == ()
    row = rig.admit(1, (1, 2, 3, 4, 9), 1, start=4, shared=(new,))
    assert rig.step(row).tokens[0][0] == solo((1, 2, 3, 4, 9), max_tokens=1)


def test_memory_is_a_plausible_number() -> None:
    free = Rig().worker.free_memory()
    assert 1 << 26 < free < 1 << 46


def test_another_model_seed_is_another_answer() -> None:
    options = FingerprintOptions(seed=5)
    assert Rig(fingerprint(seed=5)).step(Rig().admit(0, (1, 2), 2)).tokens[0][0] == solo((1, 2), max_tokens=1, options=options)
