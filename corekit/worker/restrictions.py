"""What one sample may draw and what changes its logits: fixed on admission, asked at every draw. Plain Python and numpy; knows no device.

The output is what stands in `tokens` from the end of the prompt on, then the guesses before the draw: both count alike, so a
draw after guesses sees what it would have seen if they had been drawn one step after the other.
"""

from __future__ import annotations

from collections.abc import Container, Sequence

import numpy as np
from numpy.typing import NDArray

from corekit.api import Admission

from .history import History

FREE = 0
SHAPED = 1
"""Biases and penalties: any id may still be drawn."""
FORBIDDING = 2
"""Some ids may not be drawn."""

Ids = tuple[int, ...]
_MAX_SET = 256
"""Longer lists are kept as flags."""


class Restrictions:
    """Nothing here changes after the admission but the history, which grows with the tokens."""

    def __init__(self, admission: Admission) -> None:
        params, self._num_prompt = admission.params, admission.num_prompt_tokens
        self.allowed = params.allowed_token_ids
        biases = dict(params.logit_bias)
        self.bias_ids: NDArray[np.int64] = np.array(list(biases), np.int64)
        self.bias_values: NDArray[np.float32] = np.array(list(biases.values()), np.float32)
        self.repetition, self.presence, self.frequency = params.repetition_penalty, params.presence_penalty, params.frequency_penalty
        self.history = None
        if self.repetition != 1 or self.presence or self.frequency:
            prompt, output = admission.token_ids[: self._num_prompt], admission.token_ids[self._num_prompt :]
            self.history = History(prompt if self.repetition != 1 else (), output)
        self.end_ids = admission.end_ids
        self.min_tokens = params.min_tokens if admission.end_ids else 0
        self._banned_ids = params.banned_token_ids
        self._single = tuple(word[0] for word in admission.bad_words if len(word) == 1)
        self._young = self._single + self.end_ids
        self._after: dict[int, list[tuple[Ids, int]]] = {}
        """The last but one id of a bad word -> (all but its last, its last)."""
        for word in admission.bad_words:
            if len(word) > 1:
                self._after.setdefault(word[-2], []).append((word[:-1], word[-1]))
        self._longest = max((len(word) - 1 for word in admission.bad_words), default=0)
        self._allowed_set = None if self.allowed is None else _set_of(self.allowed)
        self._banned_set = _set_of(self._banned_ids)

    @property
    def level(self) -> int:
        """What holds for every draw, however long the output is."""
        if self.allowed is not None or self._banned_ids or self._single or self._after:
            return FORBIDDING
        return SHAPED if self.history is not None or len(self.bias_ids) else FREE

    def banned(self, tokens: Sequence[int], guesses: Ids) -> list[Ids]:
        """The ids that may not come next, in lists. What may be long is the same object each time."""
        return [ids for ids in (self._banned_ids, self._short(tokens, guesses)) if ids]

    def permits(self, id: int, tokens: Sequence[int], guesses: Ids) -> bool:
        if (self._allowed_set is not None and id not in self._allowed_set) or id in self._banned_set:
            return False
        return id not in self._short(tokens, guesses)

    def named(self, tokens: Sequence[int]) -> list[tuple[str, bool, Ids]]:
        """(what the caller knows it by, whether it keeps these ids alone or takes them away, ids), for a message."""
        named: list[tuple[str, bool, Ids]] = [] if self.allowed is None else [("allowed_token_ids", True, self.allowed)]
        named += [("banned_token_ids", False, self._banned_ids), ("bad_words", False, self._single + self._completing(tokens, ()))]
        if self._num_output(tokens, ()) < self.min_tokens:
            named.append((f"min_tokens = {self.min_tokens}", False, self.end_ids))
        return named

    def _short(self, tokens: Sequence[int], guesses: Ids) -> Ids:
        """What is banned besides `banned_token_ids`."""
        return (self._young if self._num_output(tokens, guesses) < self.min_tokens else self._single) + self._completing(tokens, guesses)

    def _num_output(self, tokens: Sequence[int], guesses: Ids) -> int:
        return len(tokens) - self._num_prompt + len(guesses)

    def _completing(self, tokens: Sequence[int], guesses: Ids) -> Ids:
        """The last ids of longer bad words whose others the output ends with."""
        if not self._after:
            return ()
        output = (*tokens[max(self._num_prompt, len(tokens) - self._longest) :], *guesses)
        candidates = self._after.get(output[-1], ()) if output else ()
        return tuple(last for others, last in candidates if output[-len(others) :] == others)


class _Flags:
    """A set of many ids, a byte for each id up to the highest: samples with long lists are many where one request has many samples."""

    def __init__(self, ids: Ids) -> None:
        self._flags = np.zeros(max(ids) + 1, bool)
        self._flags[np.array(ids, np.int64)] = True

    def __contains__(self, id: object) -> bool:
        return isinstance(id, int) and 0 <= id < len(self._flags) and bool(self._flags[id])


def _set_of(ids: Ids) -> Container[int]:
    return frozenset(ids) if len(ids) <= _MAX_SET else _Flags(ids)
