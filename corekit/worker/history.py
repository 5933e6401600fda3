"""How often each id stands in a sample's output, and which stand in its prompt: what penalties look at. Knows no params and no device."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

Ints = NDArray[np.int64]


class History:
    """Each id of prompt and output stands once, with its count in the output; a new token costs the same however many there are."""

    def __init__(self, prompt: Sequence[int], output: Sequence[int]) -> None:
        """prompt: empty if it does not count."""
        ids = np.unique(np.array(prompt, np.int64))
        self._at = {id: at for at, id in enumerate(ids.tolist())}
        self._ids, self._num_output = ids, np.zeros(len(ids), np.int64)
        self.add(output)

    def add(self, ids: Sequence[int]) -> None:
        """These ids of the output are new."""
        for id in ids:
            at = self._at.setdefault(id, len(self._at))
            if at == len(self._ids):
                spare = max(64, at)
                self._ids = np.concatenate([self._ids, np.zeros(spare, np.int64)])
                self._num_output = np.concatenate([self._num_output, np.zeros(spare, np.int64)])
            self._ids[at] = id
            self._num_output[at] += 1

    def counts(self, guesses: tuple[int, ...]) -> tuple[Ints, Ints]:
        """(ids, how often each stands in the output), with these guesses at its end."""
        known = len(self._at)
        ids, num_output = self._ids[:known], self._num_output[:known]
        if not guesses:
            return ids, num_output
        num_output, more = num_output.copy(), dict[int, int]()
        for id in guesses:
            at = self._at.get(id)
            if at is None:
                more[id] = more.get(id, 0) + 1
            else:
                num_output[at] += 1
        return np.concatenate([ids, np.array(list(more), np.int64)]), np.concatenate([num_output, np.array(list(more.values()), np.int64)])
