"""Draws: which samples draw from which row of logits, what the sampler needs for it, and what was accepted. Knows no blocks."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from corekit.api import Logprobs, RowMasks, Sampler, SamplingBatch, SupportsLogprobs, TokenLogprob

from .batch import Batch
from .faults import isolate
from .rows import Floats, Ints, Rows


@dataclass(frozen=True, slots=True, kw_only=True)
class Draws:
    """All draws of a step. Those of one row follow each other: one for each sample, then one after each guess (sample 0's)."""

    batch: Batch
    """The rows that draw, in order."""
    first: Ints
    """[rows + 1]: the draws of row r are first[r] .. first[r+1] - 1."""
    place: Ints
    logits_row: Ints
    position: Ints
    """That the drawn token takes."""
    index: Ints
    """Which sample of its request."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Drawn:
    """What a stretch of rows drew; still on the device."""

    token_ids: Tensor
    logprobs: Logprobs | None
    """One entry for each draw that asked for any."""


def plan_draws(batch: Batch, rows: Rows) -> Draws:
    drawing = batch if batch.num_samples.all() else batch.select(np.flatnonzero(batch.num_samples))
    num_logits, num_samples = drawing.num_logits, drawing.num_samples
    num_draws = num_samples + drawing.num_guesses
    first = np.concatenate([[0], num_draws.cumsum()])
    owner = np.repeat(np.arange(len(drawing)), num_draws)
    nth = np.arange(int(first[-1])) - first[owner]
    after = np.maximum(nth - num_samples[owner] + 1, 0)  # how many guesses stand before the draw
    place = drawing.place[owner]
    return Draws(
        batch=drawing,
        first=first,
        place=place,
        logits_row=(num_logits.cumsum() - num_logits)[owner] + after,
        position=(drawing.start + drawing.num_known)[owner] + after,
        index=rows.columns.sample[place] + np.where(after == 0, nth, 0),
    )


class Drawer:
    """Each row's draws are independent of its neighbours', however the sampler is called."""

    def __init__(self, sampler: Sampler, device: str) -> None:
        self._sampler = sampler
        self._supports = sampler if isinstance(sampler, SupportsLogprobs) else None
        self._device = torch.device(device)
        self._part = ""

    def draw(self, draws: Draws, logits: Tensor, rows: Rows, masks: RowMasks | None) -> tuple[list[tuple[int, int, Drawn]], dict[int, str]]:
        """([(first row, end row, what they drew)], row of draws.batch -> fault)."""
        allowed = logits if masks is None or not masks.words else _mask(logits, draws, masks)

        def run(first: int, end: int) -> tuple[int, int, Drawn]:
            return first, end, self._draw(draws, slice(int(draws.first[first]), int(draws.first[end])), logits, allowed, rows)

        return isolate(len(draws.batch), run, lambda: f"sampler {type(self._sampler).__name__}.{self._part}")

    def _draw(self, draws: Draws, which: slice, logits: Tensor, allowed: Tensor, rows: Rows) -> Drawn:
        self._part = "sample"
        place, logits_row = draws.place[which], self._send(draws.logits_row[which])
        token_ids = self._sampler.sample(allowed, self._sampling_batch(draws, which, logits_row, rows)).token_ids
        if token_ids.shape != (len(place),):
            raise ValueError(f"token_ids has the shape {tuple(token_ids.shape)} for {len(place)} samples")
        num_top = rows.columns.num_logprobs[place]
        asking = np.flatnonzero(num_top >= 0)
        if self._supports is None or not len(asking):
            return Drawn(token_ids=token_ids, logprobs=None)
        self._part = "logprobs"
        wanted = self._send(asking)
        return Drawn(token_ids=token_ids, logprobs=self._supports.logprobs(logits, logits_row[wanted], token_ids[wanted], int(num_top.max())))

    def _sampling_batch(self, draws: Draws, which: slice, logits_row: Tensor, rows: Rows) -> SamplingBatch:
        columns, place, position = rows.columns, draws.place[which], draws.position[which]
        temperature = columns.temperature[place]
        young = np.flatnonzero(position - columns.num_prompt[place] < columns.min_tokens[place]).tolist()
        ends = ((at, rows.end_ids[int(place[at])]) for at in young)
        return SamplingBatch(
            logits_row=logits_row,
            temperature=self._send(temperature),
            top_k=self._send(columns.top_k[place]),
            top_p=self._send(columns.top_p[place]),
            min_p=self._send(columns.min_p[place]),
            seed=self._send(columns.seed[place]),
            position=self._send(position),
            index=self._send(draws.index[which]),
            banned=tuple((at, ids) for at, ids in ends if ids),
            all_greedy=not temperature.any(),
        )

    def _send(self, array: Ints | Floats) -> Tensor:
        return torch.from_numpy(array).to(self._device, non_blocking=True)


def _mask(logits: Tensor, draws: Draws, masks: RowMasks) -> Tensor:
    """A copy in which masked rows can draw allowed ids only. A mask holds for a row's first draw; guesses after it are dropped."""
    logits, size = logits.clone(), logits.shape[1]
    for at, row in enumerate(draws.batch.row.tolist()):
        words = masks.words.get(row)
        if words is not None:
            bits = np.unpackbits(np.frombuffer(words, np.uint8), bitorder="little", count=size).astype(bool)
            logits[int(draws.logits_row[draws.first[at]])].masked_fill_(torch.from_numpy(~bits).to(logits.device), float("-inf"))
    return logits


def accept(guesses: tuple[int, ...], drawn: list[int], num_samples: int) -> tuple[tuple[int, ...], ...]:
    """A row's draws -> one list per sample: a guess is kept exactly while the draw before it gave the same id."""
    kept, at = [drawn[0]], 0
    while at < len(guesses) and kept[-1] == guesses[at]:
        kept.append(drawn[num_samples + at])
        at += 1
    return (tuple(kept), *((token,) for token in drawn[1:num_samples]))


def read_logprobs(logprobs: Logprobs, token_ids: list[int], num_top: list[int]) -> list[TokenLogprob]:
    """Plain values of the draws that asked, in their order."""
    chosen, ids, values = logprobs.chosen.tolist(), logprobs.top_ids.tolist(), logprobs.top.tolist()
    return [
        TokenLogprob(token, chosen[i], tuple(zip(ids[i][:k], values[i][:k], strict=True))) for i, (token, k) in enumerate(zip(token_ids, num_top, strict=True))
    ]
