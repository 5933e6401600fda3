"""The rows that live on from step to step: tokens, block tables and parameters by sample. Plain numpy; knows no device and no model."""

from __future__ import annotations

from dataclasses import dataclass, field, fields

import numpy as np
from numpy.typing import NDArray

from corekit.api import RowInput, SamplingParams, StepInput

from .restrictions import FORBIDDING, Restrictions

Ints = NDArray[np.int64]
Floats = NDArray[np.float32]


def _no_ints() -> Ints:
    return np.zeros(0, np.int64)


def _no_floats() -> Floats:
    return np.zeros(0, np.float32)


@dataclass(slots=True)
class Columns:
    """One entry per place; a place belongs to one sample from its admission until it is gone."""

    computed: Ints = field(default_factory=_no_ints)
    """Positions whose KV is right or will be when the submitted steps have run, without guesses that nobody confirmed."""
    num_tokens: Ints = field(default_factory=_no_ints)
    num_prompt: Ints = field(default_factory=_no_ints)
    last_token: Ints = field(default_factory=_no_ints)
    num_blocks: Ints = field(default_factory=_no_ints)
    seed: Ints = field(default_factory=_no_ints)
    sample: Ints = field(default_factory=_no_ints)
    top_k: Ints = field(default_factory=_no_ints)
    level: Ints = field(default_factory=_no_ints)
    """How much restricts every draw: see `restrictions`."""
    min_tokens: Ints = field(default_factory=_no_ints)
    """0 where there is no end id."""
    num_logprobs: Ints = field(default_factory=_no_ints)
    """-1: none were asked for."""
    num_prompt_logprobs: Ints = field(default_factory=_no_ints)
    """-1: none were asked for, or they were given before this admission."""
    temperature: Floats = field(default_factory=_no_floats)
    top_p: Floats = field(default_factory=_no_floats)
    min_p: Floats = field(default_factory=_no_floats)


class Rows:
    """tokens[place][:num_tokens] are the known tokens of a sample, tables[place, :num_blocks] its blocks, zeros after them."""

    def __init__(self) -> None:
        self._place: dict[int, int] = {}
        self._free: list[int] = []
        self.tokens: list[list[int]] = []
        self.restrictions: dict[int, Restrictions] = {}
        """place -> what its draws are held to, for samples that are held to anything."""
        self.faults: dict[int, str] = {}
        """place -> why its sample can draw nothing any more; it stays until the sample is gone or admitted again."""
        self.columns = Columns()
        self.tables: Ints = np.zeros((0, 4), np.int64)

    def __len__(self) -> int:
        return len(self._place)

    def apply(self, step: StepInput) -> Ints:
        """Take the deltas of a step over; the place of each of its rows."""
        for id in step.gone:
            self._remove(id)
        places = np.empty(len(step.rows), np.int64)
        known = self._place
        for at, row in enumerate(step.rows):
            if row.admission is not None:
                self._admit(row)
            place = known.get(row.id)
            if place is None:
                raise RuntimeError(
                    f"step {step.number}: row {at} is of sample {row.id}, which was never admitted or is gone; the first row after an admission carries it"
                )
            if row.blocks:
                self._extend_table(place, row.table_start, row.blocks)
            places[at] = place
        return places

    def level(self, place: Ints, position: Ints) -> Ints:
        """How much restricts draws for these places and positions."""
        columns = self.columns
        young = position - columns.num_prompt[place] < columns.min_tokens[place]
        return np.where(young, FORBIDDING, columns.level[place])

    def append(self, place: int, tokens: tuple[int, ...]) -> None:
        """Drawn tokens; the KV of all but the last is there already."""
        self.tokens[place].extend(tokens)
        columns = self.columns
        columns.num_tokens[place] += len(tokens)
        columns.last_token[place] = tokens[-1]
        columns.computed[place] += len(tokens) - 1
        self._count(place, tokens)

    def append_one(self, places: Ints, tokens: Ints) -> None:
        """One drawn token for each place."""
        self.columns.num_tokens[places] += 1
        self.columns.last_token[places] = tokens
        known = self.tokens
        for place, token in zip(places.tolist(), tokens.tolist(), strict=True):
            known[place].append(token)
        if self.restrictions:
            for place, token in zip(places.tolist(), tokens.tolist(), strict=True):
                self._count(place, (token,))

    def fail(self, id: int, why: str) -> None:
        self.faults[self._place[id]] = why

    def _count(self, place: int, tokens: tuple[int, ...]) -> None:
        held = self.restrictions.get(place)
        if held is not None and held.history is not None:
            held.history.add(tokens)

    def _remove(self, id: int) -> None:
        place = self._place.pop(id, None)
        if place is not None:
            self.tokens[place] = []
            self.faults.pop(place, None)
            self.restrictions.pop(place, None)
            self._free.append(place)

    def _admit(self, row: RowInput) -> None:
        admission = row.admission
        assert admission is not None
        if not admission.token_ids:
            raise RuntimeError(f"sample {row.id} was admitted without a token; a prompt has at least one")
        self._remove(row.id)
        if not self._free:
            self._grow()
        place = self._place[row.id] = self._free.pop()
        self.tokens[place] = list(admission.token_ids)
        self.tables[place] = 0
        columns, params = self.columns, admission.params
        columns.computed[place] = row.start
        columns.num_tokens[place] = len(admission.token_ids)
        columns.num_prompt[place] = admission.num_prompt_tokens
        columns.last_token[place] = admission.token_ids[-1]
        columns.num_blocks[place] = 0
        columns.seed[place] = admission.seed
        columns.sample[place] = admission.sample
        self._set_params(place, params)
        has_output = len(admission.token_ids) > admission.num_prompt_tokens
        columns.num_prompt_logprobs[place] = -1 if has_output or params.prompt_logprobs is None else params.prompt_logprobs
        held = Restrictions(admission)
        columns.level[place], columns.min_tokens[place] = held.level, held.min_tokens
        if held.level or held.min_tokens:
            self.restrictions[place] = held

    def _set_params(self, place: int, params: SamplingParams) -> None:
        columns = self.columns
        columns.temperature[place] = params.temperature
        columns.top_k[place] = params.top_k
        columns.top_p[place] = params.top_p
        columns.min_p[place] = params.min_p
        columns.num_logprobs[place] = -1 if params.logprobs is None else params.logprobs

    def _extend_table(self, place: int, start: int, blocks: tuple[int, ...]) -> None:
        old, end = int(self.columns.num_blocks[place]), start + len(blocks)
        if start > old:
            raise RuntimeError(f"a block table of {old} blocks cannot go on at index {start}: blocks between are missing")
        if end > self.tables.shape[1]:
            wider = np.zeros((len(self.tables), max(end, 2 * self.tables.shape[1])), np.int64)
            wider[:, : self.tables.shape[1]] = self.tables
            self.tables = wider
        self.tables[place, start:end] = blocks
        self.tables[place, end:old] = 0
        self.columns.num_blocks[place] = end

    def _grow(self) -> None:
        old = len(self.tables)
        new = max(8, 2 * old)
        for f in fields(Columns):
            column = getattr(self.columns, f.name)
            setattr(self.columns, f.name, np.concatenate([column, np.zeros(new - old, column.dtype)]))
        self.tables = np.concatenate([self.tables, np.zeros((new - old, self.tables.shape[1]), np.int64)])
        self.tokens += [[] for _ in range(new - old)]
        self._free += range(new - 1, old - 1, -1)
