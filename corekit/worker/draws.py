"""Which samples draw from which row of logits, and what of it is accepted. Plain numpy; knows no device and no sampler."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from .batch import Batch
from .rows import Ints, Rows


@dataclass(frozen=True, slots=True, kw_only=True)
class Draws:
    """All draws of a step. Those of one row follow each other: one for each sample, then one after each guess (sample 0's)."""

    batch: Batch
    """The rows that draw, in order."""
    first: Ints
    """[rows + 1]: the draws of row r are first[r] .. first[r+1] - 1."""
    owner: Ints
    """Which row of the batch a draw belongs to."""
    after: Ints
    """How many guesses stand before it."""
    place: Ints
    logits_row: Ints
    position: Ints
    """That the drawn token takes."""
    index: Ints
    """Which sample of its request."""

    def guesses(self, at: int) -> tuple[int, ...]:
        """Those before a draw."""
        after, guesses = int(self.after[at]), self.batch.guesses
        return guesses[int(self.owner[at])][:after] if after and guesses is not None else ()


def plan_draws(batch: Batch, rows: Rows) -> Draws:
    drawing = batch if batch.num_samples.all() else batch.select(np.flatnonzero(batch.num_samples))
    num_logits, num_samples = drawing.num_logits, drawing.num_samples
    num_draws = num_samples + drawing.num_guesses
    first = np.concatenate([[0], num_draws.cumsum()])
    owner = np.repeat(np.arange(len(drawing)), num_draws)
    nth = np.arange(int(first[-1])) - first[owner]
    after = np.maximum(nth - num_samples[owner] + 1, 0)
    place = drawing.place[owner]
    return Draws(
        batch=drawing,
        first=first,
        owner=owner,
        after=after,
        place=place,
        logits_row=(num_logits.cumsum() - num_logits)[owner] + after,
        position=(drawing.start + drawing.num_known)[owner] + after,
        index=rows.columns.sample[place] + np.where(after == 0, nth, 0),
    )


def accept(guesses: tuple[int, ...], drawn: list[int], num_samples: int) -> tuple[tuple[int, ...], ...]:
    """A row's draws -> one list per sample: a guess is kept exactly while the draw before it gave the same id."""
    kept, at = [drawn[0]], 0
    while at < len(guesses) and kept[-1] == guesses[at]:
        kept.append(drawn[num_samples + at])
        at += 1
    return (tuple(kept), *((token,) for token in drawn[1:num_samples]))
