"""How what one engine said of a text compares with what a reference said. Knows numbers only.

perplexity: exp of the mean of -ln p of every scored token (Jelinek et al., 1977). ratio: of two perplexities, exp of the mean
difference of their logarithms; its uncertainty is the standard error over windows, whose differences are paired, by the delta
method. agreement: the share of tokens before which both find the same id likeliest, which is what greedy decoding takes.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import chain
from statistics import stdev

LARGEST = 700.0
"""exp of more is beyond a float."""


@dataclass(frozen=True, slots=True)
class Scored:
    """One window: of each scored token its log-probability, and the id that was likeliest in its place."""

    logprobs: tuple[float, ...]
    likeliest: tuple[int, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Comparison:
    perplexity: float
    ratio: float
    """To the reference's perplexity."""
    uncertainty: float | None
    """Standard error of the ratio; None for a single window."""
    agreement: float
    """Share of tokens, 0..1."""
    difference: float
    """Mean of |ln p - ln p of the reference| of the tokens of the text."""


def perplexity(windows: Sequence[Scored]) -> float:
    return _exp(-_mean([value for window in windows for value in window.logprobs]))


def compare(windows: Sequence[Scored], reference: Sequence[Scored]) -> Comparison:
    """Both of the same windows, in the same order."""
    if [len(one.logprobs) for one in windows] != [len(one.logprobs) for one in reference]:
        raise ValueError("what is compared must be of the same windows")
    losses = [[theirs - mine for mine, theirs in zip(one.logprobs, other.logprobs, strict=True)] for one, other in zip(windows, reference, strict=True)]
    ratio = _exp(_mean(list(chain.from_iterable(losses))))
    pairs = [pair for one, other in zip(windows, reference, strict=True) for pair in zip(one.likeliest, other.likeliest, strict=True)]
    return Comparison(
        perplexity=perplexity(windows),
        ratio=ratio,
        uncertainty=ratio * stdev(map(_mean, losses)) / math.sqrt(len(losses)) if len(losses) > 1 else None,
        agreement=sum(mine == theirs for mine, theirs in pairs) / len(pairs),
        difference=_mean([abs(loss) for window in losses for loss in window]),
    )


def _mean(values: Sequence[float]) -> float:
    return math.fsum(values) / len(values)


def _exp(value: float) -> float:
    return math.exp(value) if value < LARGEST else math.inf
