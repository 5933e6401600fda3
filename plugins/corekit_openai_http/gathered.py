"""Samples put together from their news: to their end, for a whole answer; or a few tokens at a time, for a slower stream. Knows no engine."""

from __future__ import annotations

import math
from collections.abc import Sequence

from corekit.api import CompletionOutput, TokenLogprob

Samples = Sequence[tuple[int, CompletionOutput]]
"""What is new, by number of the choice."""


class Gathered:
    """One sample, put together from its news."""

    def __init__(self) -> None:
        self._texts: list[str] = []
        self._token_ids: list[int] = []
        self._logprobs: list[TokenLogprob] | None = None
        self._last: CompletionOutput | None = None

    def add(self, output: CompletionOutput) -> None:
        self._texts.append(output.text)
        self._token_ids += output.token_ids
        if output.logprobs is not None:
            self._logprobs = self._logprobs or []
            self._logprobs += output.logprobs
        self._last = output

    @property
    def num_tokens(self) -> int:
        return len(self._token_ids)

    def whole(self, index: int) -> CompletionOutput:
        return CompletionOutput(
            index=index,
            text="".join(self._texts),
            token_ids=tuple(self._token_ids),
            logprobs=None if self._logprobs is None else tuple(self._logprobs),
            finish_reason=self._last.finish_reason if self._last else None,
            stop_reason=self._last.stop_reason if self._last else None,
        )


class Paced:
    """News of choices, held back until so many tokens of one are there. The first of each goes out at once, and its end does."""

    def __init__(self, interval: int) -> None:
        self._interval = interval
        self._held: dict[int, Gathered] = {}
        self._begun: set[int] = set()

    def due(self, samples: Samples) -> Samples:
        """Takes what is new, gives what is to be sent now."""
        if self._interval == 1:
            return samples
        sent = []
        for index, output in samples:
            held = self._held.setdefault(index, Gathered())
            held.add(output)
            if index not in self._begun or output.finish_reason is not None or held.num_tokens >= self._interval:
                self._begun.add(index)
                sent.append((index, self._held.pop(index).whole(output.index)))
        return sent

    def rest(self) -> Samples:
        """What is still held, for a stream that cannot go on."""
        held, self._held = self._held, {}
        return [(index, one.whole(index)) for index, one in held.items()]


def likeliest(samples: Sequence[CompletionOutput], num_drawn: int, num_best: int) -> list[CompletionOutput]:
    """The best of each prompt's samples, best first: those whose tokens are likeliest in the mean."""
    best: list[CompletionOutput] = []
    for first in range(0, len(samples), num_drawn):
        best += sorted(samples[first : first + num_drawn], key=_mean_logprob, reverse=True)[:num_best]
    return best


def _mean_logprob(sample: CompletionOutput) -> float:
    """One without tokens, or with a token that cannot be, comes last."""
    logprobs = [token.logprob for token in sample.logprobs or ()]
    mean = sum(logprobs) / len(logprobs) if logprobs else -math.inf
    return -math.inf if math.isnan(mean) else mean
