"""Calls the sampler for the draws of a step, row by row where it raises. Knows logits and draws; no blocks and no results."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from corekit.api import Logprobs, RowMasks, Sampler, SupportsLogprobs, TokenLogprob

from .draws import Draws
from .faults import isolate
from .rows import Floats, Ints, Rows
from .sampling_batch import sampling_batch


@dataclass(frozen=True, slots=True, kw_only=True)
class Drawn:
    """What a stretch of rows drew; still on the device."""

    token_ids: Tensor
    logprobs: Logprobs | None
    """One entry for each draw that asked for any."""


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
        token_ids = self._sampler.sample(allowed, sampling_batch(draws, which, logits_row, rows, self._send)).token_ids
        if token_ids.shape != (len(place),):
            raise ValueError(f"token_ids has the shape {tuple(token_ids.shape)} for {len(place)} samples")
        num_top = rows.columns.num_logprobs[place]
        asking = np.flatnonzero(num_top >= 0)
        if self._supports is None or not len(asking):
            return Drawn(token_ids=token_ids, logprobs=None)
        self._part = "logprobs"
        wanted = self._send(asking)
        return Drawn(token_ids=token_ids, logprobs=self._supports.logprobs(logits, logits_row[wanted], token_ids[wanted], int(num_top.max())))

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


def read_logprobs(logprobs: Logprobs, token_ids: list[int], num_top: list[int]) -> list[TokenLogprob]:
    """Plain values of the draws that asked, in their order."""
    chosen, ids, values = logprobs.chosen.tolist(), logprobs.top_ids.tolist(), logprobs.top.tolist()
    return [
        TokenLogprob(token, chosen[i], tuple(zip(ids[i][:k], values[i][:k], strict=True))) for i, (token, k) in enumerate(zip(token_ids, num_top, strict=True))
    ]
