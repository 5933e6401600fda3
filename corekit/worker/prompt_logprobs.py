"""Logprobs of prompts, keyed by position: a row that computes s .. e - 1 of a prompt shows s + 1 .. e, as far as the prompt goes.

The last position of a prompt draws and has none here; the token after a chunk's last position is known to the rows. Logits exist
for a bounded number of positions at a time, however long a chunk is. Knows tensors and rows; nothing of draws.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import pairwise

import numpy as np
import torch
from torch import Tensor

from corekit.api import Logprobs, Model, Sampler, SupportsLogprobs, TokenLogprob

from .batch import Batch
from .rows import Ints, Rows
from .sampling import read_logprobs

MAX_ELEMENTS = 1 << 24
"""Logits that exist at once, positions times vocabulary; one position at least."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Scores:
    """What a forward pass said of prompts; still on the device."""

    row: Ints
    """Row of the step input."""
    position: Ints
    """[rows]: of the first token that is shown."""
    ends: Ints
    """[rows + 1]: the tokens of row r are ends[r] .. ends[r+1] - 1."""
    num_top: Ints
    token_ids: Ints
    logprobs: Logprobs
    peak: Tensor
    """The highest logit before each token; not finite where the model gave NaN or infinity."""


class PromptScorer:
    """Each row's logprobs are independent of its neighbours and of where its prompt was cut."""

    def __init__(self, *, model: Model, sampler: Sampler, device: str) -> None:
        self._model, self._sampler = model, sampler
        self._supports = sampler if isinstance(sampler, SupportsLogprobs) else None
        self._device = torch.device(device)
        self._size = max(1, MAX_ELEMENTS // model.spec.vocab_size)
        self.part = ""

    def score(self, batch: Batch, rows: Rows, hidden: Tensor, query_start_loc: Ints) -> Scores | None:
        """hidden: of all positions of the batch, the first of row r at query_start_loc[r]. None: no row of the batch asks."""
        columns, place = rows.columns, batch.place
        count = np.minimum(batch.start + batch.num_known, columns.num_prompt[place] - 1) - batch.start
        asking = np.flatnonzero((columns.num_prompt_logprobs[place] >= 0) & (count > 0))
        if self._supports is None or not len(asking):
            return None
        begin, count, start = query_start_loc[asking], count[asking], batch.start[asking]
        wanted = np.concatenate([np.arange(a, a + n) for a, n in zip(begin.tolist(), count.tolist(), strict=True)])
        known = [rows.tokens[p][s + 1 : s + 1 + n] for p, s, n in zip(place[asking].tolist(), start.tolist(), count.tolist(), strict=True)]
        token_ids, num_top = np.concatenate([np.array(ids, np.int64) for ids in known]), columns.num_prompt_logprobs[place[asking]]
        logprobs, peak = self._score(self._supports, hidden, self._send(wanted), self._send(token_ids), int(num_top.max()))
        ends = np.concatenate([[0], count.cumsum()])
        return Scores(row=batch.row[asking], position=start + 1, ends=ends, num_top=num_top, token_ids=token_ids, logprobs=logprobs, peak=peak)

    def _score(self, sampler: SupportsLogprobs, hidden: Tensor, wanted: Tensor, token_ids: Tensor, num_top: int) -> tuple[Logprobs, Tensor]:
        parts, peaks = [], []
        for first in range(0, len(wanted), self._size):
            targets = token_ids[first : first + self._size]
            self.part = f"model {type(self._model).__name__}.logits"
            logits = self._model.logits(hidden[wanted[first : first + self._size]])
            peaks.append(logits.amax(-1))
            self.part = f"sampler {type(self._sampler).__name__}.logprobs"
            parts.append(sampler.logprobs(logits, torch.arange(len(targets), device=self._device), targets, num_top))
        columns = ("chosen", "top_ids", "top")
        return Logprobs(**{name: torch.cat([getattr(part, name) for part in parts]) for name in columns}), torch.cat(peaks)

    def _send(self, array: Ints) -> Tensor:
        return torch.from_numpy(array).to(self._device, non_blocking=True)


def read_scores(scores: Scores) -> Iterator[tuple[int, int, tuple[TokenLogprob, ...] | None]]:
    """(row, position of the first, its logprobs; None if the model's values were not finite). Waits for the device."""
    num_top = np.repeat(scores.num_top, np.diff(scores.ends))
    shown = read_logprobs(scores.logprobs, scores.token_ids.tolist(), num_top.tolist())
    finite = np.isfinite(scores.peak.float().cpu().numpy())
    for (first, end), row, position in zip(pairwise(scores.ends.tolist()), scores.row.tolist(), scores.position.tolist(), strict=True):
        yield row, position, tuple(shown[first:end]) if finite[first:end].all() else None
