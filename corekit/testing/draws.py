"""Draws in plain values: what one sample asks for, the batch of several, and what it may draw by a plain reference in float64.

The reference follows the contract's words one after the other; nothing in it is fast. Owned by the kit of slot `sampler`.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, ClassVar

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from corekit.api import Biases, BuildContext, Penalties, Sampled, Sampler, SamplingBatch

from .kit import Kit

Floats = NDArray[np.float64]
LEAST_P_VALUE = 1e-6
"""Right draws look this odd once in a million checks; a wrong distribution falls far below with the numbers drawn here."""
LEAST_EXPECTED = 8.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Draw:
    """One sample of a batch, as plain values."""

    temperature: float = 1.0
    top_k: int = 0
    top_p: float = 1.0
    min_p: float = 0.0
    seed: int = 1
    position: int = 5
    index: int = 0
    banned: tuple[int, ...] = ()
    allowed: tuple[int, ...] | None = None
    biases: tuple[tuple[int, float], ...] = ()
    repetition: float = 1.0
    presence: float = 0.0
    frequency: float = 0.0
    history: tuple[tuple[int, int], ...] = ()
    """(id, how often it stands in the output)."""


GREEDY = Draw(temperature=0.0)


def batch_of(draws: Sequence[Draw], rows: Sequence[int] | None, device: str, *, all_greedy: bool = False) -> SamplingBatch:
    """rows: the row of logits of each; None: one after the other."""

    def ints(values: Sequence[int]) -> Tensor:
        return torch.tensor(list(values), dtype=torch.int64, device=device)

    def floats(values: Sequence[float]) -> Tensor:
        return torch.tensor(list(values), dtype=torch.float32, device=device)

    biases = [(at, id, value) for at, draw in enumerate(draws) for id, value in draw.biases]
    history = [(at, id, count) for at, draw in enumerate(draws) for id, count in draw.history]
    return SamplingBatch(
        logits_row=ints(range(len(draws)) if rows is None else rows),
        temperature=floats([draw.temperature for draw in draws]),
        top_k=ints([draw.top_k for draw in draws]),
        top_p=floats([draw.top_p for draw in draws]),
        min_p=floats([draw.min_p for draw in draws]),
        seed=ints([draw.seed for draw in draws]),
        position=ints([draw.position for draw in draws]),
        index=ints([draw.index for draw in draws]),
        banned=tuple((at, ids) for at, draw in enumerate(draws) for ids in (draw.banned[:1], draw.banned[1:]) if ids),
        allowed=tuple((at, draw.allowed) for at, draw in enumerate(draws) if draw.allowed is not None),
        biases=Biases(sample=ints([b[0] for b in biases]), token_id=ints([b[1] for b in biases]), value=floats([b[2] for b in biases])) if biases else None,
        penalties=Penalties(
            repetition=floats([draw.repetition for draw in draws]),
            presence=floats([draw.presence for draw in draws]),
            frequency=floats([draw.frequency for draw in draws]),
            sample=ints([h[0] for h in history]),
            token_id=ints([h[1] for h in history]),
            num_output=ints([h[2] for h in history]),
        )
        if history
        else None,
        all_greedy=all_greedy,
    )


def shaped(logits: Sequence[float], draw: Draw) -> Floats:
    """The logits after biases, penalties, and what is allowed and banned."""
    x = np.array(logits, np.float64)
    ids = range(len(x))
    for id, value in draw.biases:
        if id in ids:
            x[id] += np.float32(value)
    repetition, presence, frequency = np.float32(draw.repetition), np.float32(draw.presence), np.float32(draw.frequency)
    for id, num_output in draw.history:
        if id in ids:
            x[id] = x[id] / repetition if x[id] > 0 else x[id] * repetition
            x[id] -= presence * (num_output > 0) + frequency * num_output
    kept = set(ids if draw.allowed is None else draw.allowed) - set(draw.banned)
    x[[id not in kept for id in ids]] = -np.inf
    return x


def probabilities(logits: Sequence[float], draw: Draw) -> Floats:
    """Of every id, after all that the draw asks for."""
    x = shaped(logits, draw)
    if draw.temperature == 0:
        one: Floats = np.eye(len(x))[int(x.argmax())]
        return one
    weight = np.exp((x - x.max()) / np.float64(np.float32(draw.temperature)))
    falling = sorted(np.flatnonzero(weight > 0).tolist(), key=lambda id: (-weight[id], id))
    if draw.top_k > 0:
        falling = falling[: draw.top_k]
    falling = [id for id in falling if weight[id] >= np.float32(draw.min_p) * weight[falling[0]]]
    reached = np.cumsum(weight[falling])
    need = np.float64(np.float32(draw.top_p)) * reached[-1]
    kept = falling[: int(np.searchsorted(reached, need)) + 1]
    result = np.zeros(len(x))
    result[kept] = weight[kept] / weight[kept].sum()
    return result


def chi_square_p(seen: Mapping[int, int], expected: Floats) -> float:
    """How often draws that follow `expected` counts look at least as odd as those seen (Pearson; Wilson and Hilferty 1931)."""
    large = np.flatnonzero(expected >= LEAST_EXPECTED).tolist()
    bins = [(seen.get(id, 0), expected[id]) for id in large]
    rest = (sum(seen.values()) - sum(count for count, _ in bins), expected.sum() - sum(value for _, value in bins))
    bins += [rest] if rest[1] >= LEAST_EXPECTED else []
    free = len(bins) - 1
    if free < 1:
        return 1.0
    chi = sum((count - value) ** 2 / value for count, value in bins)
    spread = 2 / (9 * free)
    return 0.5 * math.erfc(((chi / free) ** (1 / 3) - (1 - spread)) / math.sqrt(2 * spread))


class DrawKit(Kit):
    """What the laws of samplers share. `device`: where logits and batches are."""

    slot = "sampler"
    device: ClassVar[str] = "cpu"

    def context(self) -> BuildContext:
        return BuildContext(device=self.device)

    def sampler(self) -> Sampler:
        made: Sampler = self.build()
        return made

    def logits(self, values: Any, dtype: torch.dtype = torch.float32) -> Tensor:
        return torch.tensor(values, dtype=dtype, device=self.device)

    def random(self, num_rows: int, vocab_size: int, seed: int, width: float = 2.0) -> Tensor:
        return (torch.randn(num_rows, vocab_size, generator=torch.Generator().manual_seed(seed)) * width).to(self.device)

    def along(self, name: str, values: Iterable[int]) -> list[Draw]:
        """Draws that differ in one field."""
        given: Sequence[Any] = [{name: value} for value in values]
        return [Draw(**fields) for fields in given]

    def draw(
        self, logits: Tensor, draws: Sequence[Draw], rows: Sequence[int] | None = None, *, sampler: Sampler | None = None, all_greedy: bool = False
    ) -> list[int]:
        """The id of each draw, from a fresh component unless one is given."""
        sampled = (sampler or self.sampler()).sample(logits, batch_of(draws, rows, self.device, all_greedy=all_greedy))
        assert isinstance(sampled, Sampled), f"sample gave a {type(sampled).__name__}, expected Sampled(token_ids=...)"
        token_ids = sampled.token_ids
        assert token_ids.dtype == torch.int64, f"token_ids are {token_ids.dtype}, expected torch.int64"
        assert token_ids.shape == (len(draws),), f"token_ids has the shape {tuple(token_ids.shape)}, expected ({len(draws)},): one id per sample"
        return token_ids.tolist()

    def draw_many(self, logits: Sequence[float], draw: Draw, count: int) -> Counter[int]:
        """How often each id comes, at `count` positions of as many seeds."""
        draws = [replace(draw, position=at, seed=draw.seed + at % 7) for at in range(count)]
        return Counter(self.draw(self.logits([list(logits)]), draws, [0] * count))

    def check_greedy(self, logits: Tensor, draws: Sequence[Draw], what: str) -> None:
        """Each row's greedy draw is the highest of its logits as they were asked to be changed."""
        got = self.draw(logits, draws)
        for row, draw, id in zip(logits.tolist(), draws, got, strict=True):
            x = shaped(row, draw)
            assert id in range(len(x)), f"{id} is no id of {len(x)} logits"
            assert x[id] >= x.max() - 1e-4, f"{what}: {draw} on {row} drew {id}, whose logit is {x[id]} then; the highest is {int(x.argmax())} with {x.max()}"

    def check_distribution(self, logits: Sequence[float], draw: Draw, count: int = 4000) -> None:
        """Many draws follow the reference."""
        expected, seen = probabilities(logits, draw) * count, self.draw_many(logits, draw, count)
        wrong = [id for id in seen if not expected[id]]
        assert not wrong, f"{draw} drew {sorted(wrong)}, which are not among {np.flatnonzero(expected).tolist()}; logits {list(logits)}"
        p = chi_square_p(seen, expected)
        assert p > LEAST_P_VALUE, (
            f"{draw}: {count} draws do not follow their distribution (chi-square p = {p:.1e}); seen {dict(sorted(seen.items()))},"
            f" expected about {dict(enumerate(expected.round().astype(int).tolist()))}"
        )
