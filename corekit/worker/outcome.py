"""From what was drawn on the device to plain results, row by row. Knows rows and draws; launches nothing."""

from __future__ import annotations

import time
from dataclasses import dataclass, field

import numpy as np
from torch import Tensor

from corekit.api import StepInput, StepResult, TokenLogprob

from .batch import Batch
from .rows import Rows
from .sampling import Drawn, Draws, accept, read_logprobs


@dataclass(slots=True, kw_only=True)
class Step:
    """A step on its way: forward pass, then draws, then plain tokens."""

    input: StepInput
    batch: Batch
    logits: Tensor | None
    """Kept until the draws are made."""
    faults: dict[int, str]
    """Row of the input -> what went wrong with it."""
    seconds: float
    sampled: bool = False
    draws: Draws | None = None
    drawn: list[tuple[int, int, Drawn]] = field(default_factory=list)
    peak: Tensor | None = None
    """The highest logit of each row: not finite exactly where there is NaN, infinity, or nothing to draw."""
    masked: frozenset[int] = frozenset()
    result: StepResult | None = None


def finish(step: Step, rows: Rows, model: str, sampler: str, vocab_size: int, begun: float) -> StepResult:
    """Waits for the device, tells the rows what they drew and returns the result. `begun`: when this began, on `time.perf_counter`."""
    tokens: list[tuple[tuple[int, ...], ...]] = [()] * len(step.input.rows)
    logprobs: dict[int, tuple[tuple[TokenLogprob, ...], ...]] = {}
    if step.draws is not None:
        _find_broken(step, step.draws, model)
        for first, end, drawn in step.drawn:
            _read(step, step.draws, rows, first, end, drawn, tokens, logprobs, sampler, vocab_size)
    for row, why in step.faults.items():
        rows.fail(step.input.rows[row].id, why)
    return StepResult(tokens=tuple(tokens), logprobs=logprobs, faults=step.faults, seconds=step.seconds + time.perf_counter() - begun)


def _find_broken(step: Step, draws: Draws, model: str) -> None:
    assert step.peak is not None
    finite = np.isfinite(step.peak.float().cpu().numpy())
    if finite.all():
        return
    owner = np.repeat(draws.batch.row, draws.batch.num_logits)
    for row in owner[~finite].tolist():
        step.faults.setdefault(
            row, f"model {model}.logits gave values that are not finite; the weights overflow in this dtype, or the row read KV that nobody wrote"
        )


def _read(
    step: Step,
    draws: Draws,
    rows: Rows,
    first: int,
    end: int,
    drawn: Drawn,
    tokens: list[tuple[tuple[int, ...], ...]],
    logprobs: dict[int, tuple[tuple[TokenLogprob, ...], ...]],
    sampler: str,
    vocab_size: int,
) -> None:
    """Rows first .. end - 1 of the draws."""
    batch, ids = draws.batch, drawn.token_ids.tolist()
    offset = int(draws.first[first])
    starts = (draws.first[first : end + 1] - offset).tolist()
    shown = _logprobs_by_draw(draws, rows, offset, ids, drawn)
    for at, row, place, num_samples in zip(
        range(first, end), batch.row[first:end].tolist(), batch.place[first:end].tolist(), batch.num_samples[first:end].tolist(), strict=True
    ):
        if row in step.faults:
            continue
        begin, stop = starts[at - first], starts[at - first + 1]
        guesses = batch.guesses[at] if batch.guesses is not None and row not in step.masked else ()
        mine = accept(guesses, ids[begin:stop], num_samples)
        if not all(0 <= token < vocab_size for sample in mine for token in sample):
            step.faults[row] = f"sampler {sampler}.sample drew {mine}; ids are 0 to {vocab_size - 1}"
            continue
        rows.append(place, mine[0])
        tokens[row] = mine
        if begin in shown:
            later = range(begin + num_samples, begin + num_samples + len(mine[0]) - 1)
            logprobs[row] = ((shown[begin], *(shown[i] for i in later)), *((shown[i],) for i in range(begin + 1, begin + num_samples)))


def _logprobs_by_draw(draws: Draws, rows: Rows, offset: int, ids: list[int], drawn: Drawn) -> dict[int, TokenLogprob]:
    if drawn.logprobs is None:
        return {}
    num_top = rows.columns.num_logprobs[draws.place[offset : offset + len(ids)]]
    asking = np.flatnonzero(num_top >= 0).tolist()
    return dict(zip(asking, read_logprobs(drawn.logprobs, [ids[i] for i in asking], num_top[asking].tolist()), strict=True))
