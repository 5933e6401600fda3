"""From what was drawn on the device to plain results, row by row. Knows rows and draws; launches nothing."""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import NamedTuple

import numpy as np
from torch import Tensor

from corekit.api import StepInput, StepResult, TokenLogprob

from .batch import Batch
from .draws import Draws, accept
from .forbidden import Judge
from .prompt_logprobs import Scores, read_scores
from .restrictions import FORBIDDING
from .rows import Rows
from .sampling import Drawn, read_logprobs
from .stopwatch import Stopwatch


@dataclass(slots=True, kw_only=True)
class Step:
    """A step on its way: forward pass, then draws, then plain tokens."""

    input: StepInput
    batch: Batch
    logits: Tensor | None
    """Kept until the draws are made."""
    faults: dict[int, str]
    """Row of the input -> what went wrong with it."""
    scores: list[Scores]
    """Of prompts."""
    seconds: float
    copying: Stopwatch | None
    """What the copies before it took."""
    sampled: bool = False
    draws: Draws | None = None
    drawn: list[tuple[int, int, Drawn]] = field(default_factory=list)
    peak: Tensor | None = None
    """The highest logit of each row: not finite exactly where there is NaN, infinity, or nothing to draw."""
    masks: Mapping[int, bytes] = field(default_factory=dict)
    """Row of the input -> the bits of what it may draw."""
    result: StepResult | None = None


def finish(step: Step, rows: Rows, model: str, sampler: str, vocab_size: int, begun: float) -> StepResult:
    """Waits for the device, tells the rows what they drew and returns the result. `begun`: when this began, on `time.perf_counter`."""
    read = _Reading(step, rows, sampler, vocab_size, [()] * len(step.input.rows), {})
    broken = f"model {model}.logits gave values that are not finite; the weights overflow in this dtype, or the row read KV that nobody wrote"
    prompt_logprobs = _read_prompts(step, broken)
    if step.draws is not None:
        _find_broken(step, step.draws, broken)
        for first, end, drawn in step.drawn:
            _read(read, step.draws, first, end, drawn)
    for row, why in step.faults.items():
        rows.fail(step.input.rows[row].id, why)
    return StepResult(
        tokens=tuple(read.tokens),
        logprobs=read.logprobs,
        prompt_logprobs={row: shown for row, shown in prompt_logprobs.items() if row not in step.faults},
        faults=step.faults,
        seconds=step.seconds + time.perf_counter() - begun,
        copy_seconds=step.copying.seconds() if step.copying is not None else 0.0,
    )


class _Reading(NamedTuple):
    """A result in the making."""

    step: Step
    rows: Rows
    sampler: str
    vocab_size: int
    tokens: list[tuple[tuple[int, ...], ...]]
    logprobs: dict[int, tuple[tuple[TokenLogprob, ...], ...]]


def _read_prompts(step: Step, broken: str) -> dict[int, tuple[int, tuple[TokenLogprob, ...]]]:
    read: dict[int, tuple[int, tuple[TokenLogprob, ...]]] = {}
    for scores in step.scores:
        for row, position, shown in read_scores(scores):
            if shown is None:
                step.faults.setdefault(row, broken)
            else:
                read[row] = (position, shown)
    return read


def _find_broken(step: Step, draws: Draws, broken: str) -> None:
    assert step.peak is not None
    finite = np.isfinite(step.peak.float().cpu().numpy())
    if finite.all():
        return
    owner = np.repeat(draws.batch.row, draws.batch.num_logits)
    for row in owner[~finite].tolist():
        step.faults.setdefault(row, broken)


def _read(read: _Reading, draws: Draws, first: int, end: int, drawn: Drawn) -> None:
    """Rows first .. end - 1 of the draws: sound rows with a single draw all at once, the others one by one."""
    ids = drawn.token_ids.cpu().numpy().astype(np.int64, copy=False)
    batch, offset, step = draws.batch.part(first, end), int(draws.first[first]), read.step
    begin = draws.first[first:end] - offset
    num_draws = draws.first[first + 1 : end + 1] - draws.first[first:end]
    inside = (ids >= 0) & (ids < read.vocab_size)
    if not inside.all():
        for at in np.flatnonzero(np.logical_and.reduceat(inside, begin) == 0).tolist():
            mine = ids[begin[at] : begin[at] + num_draws[at]].tolist()
            step.faults.setdefault(int(batch.row[at]), f"sampler {read.sampler}.sample drew {mine}; ids are 0 to {read.vocab_size - 1}")
    sound = np.isin(batch.row, list(step.faults), invert=True) if step.faults else np.ones(len(batch), bool)
    judged = read.rows.level(batch.place, batch.start + batch.num_known) == FORBIDDING
    if step.masks:
        judged |= np.isin(batch.row, list(step.masks))
    plain = sound & (num_draws == 1) & ~judged
    if drawn.logprobs is not None:
        plain &= read.rows.columns.num_logprobs[batch.place] < 0
    drew = ids[begin[plain]]
    read.rows.append_one(batch.place[plain], drew)
    for row, token in zip(batch.row[plain].tolist(), drew.tolist(), strict=True):
        read.tokens[row] = ((token,),)
    shown = _logprobs_by_draw(draws, read.rows, offset, ids.tolist(), drawn)
    for at in np.flatnonzero(sound & ~plain).tolist():
        _read_row(read, batch, at, ids[begin[at] : begin[at] + num_draws[at]].tolist(), int(begin[at]), shown)


def _read_row(read: _Reading, batch: Batch, at: int, drew: list[int], begin: int, shown: dict[int, TokenLogprob]) -> None:
    """A row with guesses, several samples, logprobs, or ids that it may not draw; `begin`: where its draws begin in `shown`."""
    row, place, num_samples = int(batch.row[at]), int(batch.place[at]), int(batch.num_samples[at])
    guesses = batch.guesses[at] if batch.guesses is not None and row not in read.step.masks else ()
    judge = Judge(read.rows.restrictions.get(place), read.rows.tokens[place], read.step.masks.get(row))
    wrong = next((id for id in drew[:num_samples] if not judge.permits(id)), None)
    if wrong is not None:
        read.step.faults[row] = judge.why(wrong, read.sampler, read.vocab_size)
        return
    mine = accept(guesses, drew, num_samples)
    # What may not follow a guess ends the row when it is drawn as a first token: in the next step, as it would without guesses.
    num_sound = next((n for n in range(1, len(mine[0])) if not judge.permits(mine[0][n], guesses[:n])), len(mine[0]))
    mine = read.tokens[row] = (mine[0][:num_sound], *mine[1:])
    read.rows.append(place, mine[0])
    if begin in shown:
        later = range(begin + num_samples, begin + num_samples + len(mine[0]) - 1)
        read.logprobs[row] = ((shown[begin], *(shown[i] for i in later)), *((shown[i],) for i in range(begin + 1, begin + num_samples)))


def _logprobs_by_draw(draws: Draws, rows: Rows, offset: int, ids: list[int], drawn: Drawn) -> dict[int, TokenLogprob]:
    if drawn.logprobs is None:
        return {}
    num_top = rows.columns.num_logprobs[draws.place[offset : offset + len(ids)]]
    asking = np.flatnonzero(num_top >= 0)
    return dict(zip(asking.tolist(), read_logprobs(drawn.logprobs, [ids[i] for i in asking.tolist()], num_top[asking].tolist()), strict=True))
