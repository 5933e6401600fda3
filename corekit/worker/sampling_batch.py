"""What the sampler is given for a stretch of draws, from the rows' parameters and histories. Knows no logits and no results."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypedDict

import numpy as np
from torch import Tensor

from corekit.api import Biases, Penalties, SamplingBatch

from .draws import Draws
from .restrictions import Restrictions
from .rows import Floats, Ints, Rows

Send = Callable[[Ints | Floats], Tensor]
Lists = tuple[tuple[int, tuple[int, ...]], ...]


def sampling_batch(draws: Draws, which: slice, logits_row: Tensor, rows: Rows, send: Send) -> SamplingBatch:
    """For the draws of `which`; logits_row is on the device already."""
    columns, place, position = rows.columns, draws.place[which], draws.position[which]
    temperature = columns.temperature[place]
    return SamplingBatch(
        logits_row=logits_row,
        temperature=send(temperature),
        top_k=send(columns.top_k[place]),
        top_p=send(columns.top_p[place]),
        min_p=send(columns.min_p[place]),
        seed=send(columns.seed[place]),
        position=send(position),
        index=send(draws.index[which]),
        all_greedy=not temperature.any(),
        **_restrictions(draws, which, rows, send),
    )


class _Restricted(TypedDict, total=False):
    banned: Lists
    allowed: Lists
    biases: Biases | None
    penalties: Penalties | None


def _restrictions(draws: Draws, which: slice, rows: Rows, send: Send) -> _Restricted:
    place = draws.place[which]
    restricted = np.flatnonzero(rows.level(place, draws.position[which])).tolist()
    if not restricted:
        return {}
    mine = [(at, rows.restrictions[int(place[at])], rows.tokens[int(place[at])], draws.guesses(which.start + at)) for at in restricted]
    return {
        "banned": tuple((at, ids) for at, one, tokens, guesses in mine for ids in one.banned(tokens, guesses)),
        "allowed": tuple((at, one.allowed) for at, one, _, _ in mine if one.allowed is not None),
        "biases": _biases([(at, one) for at, one, _, _ in mine if len(one.bias_ids)], send),
        "penalties": _penalties([(at, one, one.history.counts(guesses)) for at, one, _, guesses in mine if one.history is not None], len(place), send),
    }


def _biases(mine: list[tuple[int, Restrictions]], send: Send) -> Biases | None:
    if not mine:
        return None
    counts = [len(one.bias_ids) for _, one in mine]
    return Biases(
        sample=send(np.repeat([at for at, _ in mine], counts)),
        token_id=send(np.concatenate([one.bias_ids for _, one in mine])),
        value=send(np.concatenate([one.bias_values for _, one in mine])),
    )


def _penalties(mine: list[tuple[int, Restrictions, tuple[Ints, Ints]]], num_samples: int, send: Send) -> Penalties | None:
    if not mine:
        return None
    repetition, presence, frequency = np.ones(num_samples, np.float32), np.zeros(num_samples, np.float32), np.zeros(num_samples, np.float32)
    for at, one, _ in mine:
        repetition[at], presence[at], frequency[at] = one.repetition, one.presence, one.frequency
    return Penalties(
        repetition=send(repetition),
        presence=send(presence),
        frequency=send(frequency),
        sample=send(np.repeat([at for at, _, _ in mine], [len(ids) for _, _, (ids, _) in mine])),
        token_id=send(np.concatenate([ids for _, _, (ids, _) in mine])),
        num_output=send(np.concatenate([num_output for _, _, (_, num_output) in mine])),
    )
