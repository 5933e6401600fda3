"""The rows of one step as parallel arrays, in the order in which they are computed. Plain numpy; knows no device and no model."""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from dataclasses import dataclass, fields

import numpy as np

from corekit.api import StepInput

from .rows import Ints, Rows

log = logging.getLogger(__name__)

Draft = Callable[[Sequence[int], int], Sequence[int]]


@dataclass(frozen=True, slots=True, kw_only=True)
class Batch:
    """One entry per row; rows of one token come first. A row computes positions start .. start + num_known + num_guesses - 1."""

    row: Ints
    """Its index in the step input."""
    place: Ints
    start: Ints
    num_known: Ints
    """Tokens that are known: of the prompt, or drawn before."""
    num_guesses: Ints
    num_samples: Ints
    guesses: tuple[tuple[int, ...], ...] | None
    """None: no row has any."""

    def __len__(self) -> int:
        return len(self.row)

    @property
    def num_tokens(self) -> Ints:
        return self.num_known + self.num_guesses

    @property
    def num_logits(self) -> Ints:
        """Rows of logits that a row draws from: its last known token, and each guess."""
        return np.where(self.num_samples > 0, 1 + self.num_guesses, 0)

    def part(self, first: int, end: int) -> Batch:
        if (first, end) == (0, len(self)):
            return self
        return self._map(lambda column: column[first:end])

    def select(self, index: Ints) -> Batch:
        return self._map(lambda column: column[index])

    def _map(self, take: Callable[[Ints], Ints]) -> Batch:
        columns = {f.name: take(getattr(self, f.name)) for f in fields(self) if f.name != "guesses"}
        index = take(np.arange(len(self)))
        guesses = self.guesses
        return Batch(**columns, guesses=None if guesses is None else tuple(guesses[i] for i in index.tolist()))


def plan_batch(step: StepInput, rows: Rows, draft: Draft | None, vocab_size: int) -> tuple[Batch, dict[int, str]]:
    """The batch of a step, and row -> message for rows that cannot be computed."""
    place = rows.apply(step)
    counts = np.array([row[2:5] for row in step.rows], np.int64).reshape(-1, 3)
    num_tokens, num_samples, num_drafts = counts[:, 0], counts[:, 1], counts[:, 2]
    start, num_known = rows.columns.computed[place], num_tokens - num_drafts
    faults = {at: rows.faults[p] for at, p in enumerate(place.tolist()) if p in rows.faults} if rows.faults else {}
    _check(step, rows, place, start + num_known, num_known, num_samples, faults)
    guesses = None
    if num_drafts.any():
        guesses = _guess(rows, place, num_drafts, draft, vocab_size, faults)
        num_guesses = np.array([len(g) for g in guesses], np.int64)
    else:
        num_guesses = num_drafts
    batch = Batch(row=np.arange(len(place)), place=place, start=start, num_known=num_known, num_guesses=num_guesses, num_samples=num_samples, guesses=guesses)
    several = batch.num_tokens != 1
    if faults or several.any():
        order = np.argsort(several, kind="stable")
        batch = batch.select(order[[at not in faults for at in order.tolist()]] if faults else order)
    rows.columns.computed[batch.place] += batch.num_known
    return batch, faults


def _check(step: StepInput, rows: Rows, place: Ints, end: Ints, num_known: Ints, num_samples: Ints, faults: dict[int, str]) -> None:
    known = rows.columns.num_tokens[place]
    wrong = (end > known) | ((num_samples > 0) & (end != known)) | (num_known < 1)
    for at in np.flatnonzero(wrong).tolist():
        if at not in faults:
            raise RuntimeError(
                f"step {step.number}: row {at} (sample {step.rows[at].id}) computes {num_known[at]} tokens up to {end[at]} and draws {num_samples[at]} times,"
                f" but {known[at]} tokens are known; a row computes known tokens and draws from the last of them"
            )


def _guess(rows: Rows, place: Ints, num_drafts: Ints, draft: Draft | None, vocab_size: int, faults: dict[int, str]) -> tuple[tuple[int, ...], ...]:
    guesses: list[tuple[int, ...]] = []
    for at, (p, count) in enumerate(zip(place.tolist(), num_drafts.tolist(), strict=True)):
        mine: tuple[int, ...] = ()
        if count and at not in faults and draft is not None:
            try:
                mine = tuple(draft(rows.tokens[p], count))[:count]
                if mine and not (min(mine) >= 0 and max(mine) < vocab_size):
                    raise ValueError(f"guesses {mine} are not all ids below {vocab_size}")
            except Exception as error:
                log.debug("model.draft raised", exc_info=error)
                faults[at] = rows.faults[p] = f"model.draft raised {type(error).__name__}: {error}"
        guesses.append(mine)
    return tuple(guesses)
