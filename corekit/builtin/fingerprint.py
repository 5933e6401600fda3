"""A model without weights whose answer depends on every cached position, exactly: the engine is proved on it.

Layer 0 caches a code of (token, position); layer 1 caches a code of what layer 0 read back, so a block depends on its whole
prefix. In each layer head 0 attends evenly (a sum) and head 1 sharply to one position (so keys count): keys are (p*p, p, 1)
and the query (-c, 2cq, -cq*q) peaks at position q. What comes back is rounded to integers. A position that nobody wrote
(NaN) makes the code NaN, and so the logits. `solo` is the same function in plain integers, without cache or attention.
It knows nothing of blocks, rows or steps.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TypeVar

import torch
from torch import Tensor

from corekit.api import Attend, LayerSpec, ModelInputs, ModelSpec, Sampler, SamplingBatch, SamplingParams, Shard, WeightSource

from .options import FingerprintOptions

NUM_HEADS = 2
HEAD_DIM = 3
SHARPNESS = 60.0
"""exp(-60) of the neighbour's code is far below a half: the sharp head reads one position exactly."""
NUM_PEAKS = 8
PEAK = 4.0
STEP = 0.5
FLOOR = -20.0
"""Logits: eight ids from 4.0 down in steps of 0.5 (chosen by the code), all others at -20."""
CODE_RANGE = 1_000_003


Number = TypeVar("Number", int, Tensor)
# The next six functions take integers or int64 tensors alike: one definition for the model and for `solo`.


def _code0(t: Number, p: Number) -> Number:
    return (t * 131 + p * 37 + t * p * 7 + 17) % 1009


def _code1(a: Number, s: Number, t: Number, p: Number) -> Number:
    return (a * 13 + s * 101 + t * 29 + p * 3 + 5) % 1013


def _look0(t: Number, p: Number) -> Number:
    return (t * 7 + p * 3) % (p + 1)


def _look1(a: Number, s: Number, p: Number) -> Number:
    return (a + s) % (p + 1)


def _mix(a: Number, s: Number, b: Number, u: Number, seed: int) -> Number:
    return (b * 17 + u * 257 + a * 3 + s * 5 + seed * 7919) % CODE_RANGE


def _peak(code: Number, rank: Number, vocab_size: int) -> Number:
    """The id with the rank-th highest logit, unless a better rank has it already."""
    return ((code + 1) * (2 * rank + 1) * 2654435761 + rank * 40503 >> 5) % vocab_size


class Fingerprint:
    """The code of a token is a pure function of its row's tokens up to and including it."""

    def __init__(self, options: FingerprintOptions | None = None) -> None:
        self._options = options or FingerprintOptions()
        layer = LayerSpec(num_heads=NUM_HEADS, num_kv_heads=NUM_HEADS, key_dim=HEAD_DIM, value_dim=HEAD_DIM, scale=1.0)
        self._spec = ModelSpec(
            architecture="fingerprint",
            layers=(layer, layer),
            vocab_size=self._options.vocab_size,
            context_length=self._options.context_length,
            hidden_size=1,
            dtype="float64",
        )

    @property
    def spec(self) -> ModelSpec:
        return self._spec

    @property
    def options(self) -> FingerprintOptions:
        return self._options

    @property
    def max_draft_tokens(self) -> int:
        return self._options.max_draft_tokens

    def load(self, weights: WeightSource, shard: Shard) -> None:
        """There is nothing to read."""

    def forward(self, inputs: ModelInputs, attend: Attend) -> Tensor:
        t, p = inputs.token_ids, inputs.positions
        a, s, bad = _layer(attend, 0, _code0(t, p), _look0(t, p), p, torch.zeros_like(p, dtype=torch.bool))
        b, u, bad = _layer(attend, 1, _code1(a, s, t, p), _look1(a, s, p), p, bad)
        code = _mix(a, s, b, u, self._options.seed)
        return code.to(torch.float64).masked_fill(bad, float("nan"))[:, None]

    def logits(self, hidden: Tensor) -> Tensor:
        bad = hidden.isnan()
        code = hidden.nan_to_num().round().to(torch.int64)
        ranks = torch.arange(NUM_PEAKS, device=hidden.device)
        ids = _peak(code, ranks, self._options.vocab_size)
        logits = torch.full((len(hidden), self._options.vocab_size), FLOOR, dtype=torch.float64, device=hidden.device)
        heights = (PEAK - STEP * ranks).to(torch.float64).expand_as(ids)
        return logits.scatter_reduce_(1, ids, heights, "amax").masked_fill_(bad, float("nan"))

    def draft(self, token_ids: Sequence[int], count: int) -> Sequence[int]:
        """The greedy continuation, with about a third of the guesses spoilt."""
        start, options = len(token_ids), self._options
        guesses = solo(token_ids, max_tokens=count, options=options) if count > 0 else ()
        return [(guess + 1) % options.vocab_size if (guess + start + at) % 3 == 0 else guess for at, guess in enumerate(guesses)]


def _layer(attend: Attend, layer: int, code: Tensor, look: Tensor, p: Tensor, bad: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Cache code, read it back: (sum over all positions, value at `look`, whether anything was NaN)."""
    position, target, zero = p.to(torch.float64), look.to(torch.float64), torch.zeros_like(p, dtype=torch.float64)
    key = torch.stack([position * position, position, torch.ones_like(position)], -1)[:, None].expand(-1, NUM_HEADS, -1)
    value = code.to(torch.float64).masked_fill(bad, float("nan"))[:, None, None].expand(-1, NUM_HEADS, HEAD_DIM)
    sharp = torch.stack([zero - SHARPNESS, 2 * SHARPNESS * target, -SHARPNESS * target * target], -1)
    query = torch.stack([torch.zeros_like(sharp), sharp], 1)
    out = attend(layer, query.contiguous(), key.contiguous(), value.contiguous())
    bad = bad | out.isnan().flatten(1).any(1)
    out = out.nan_to_num()
    return (out[:, 0, 0] * (position + 1)).round().to(torch.int64), out[:, 1, 0].round().to(torch.int64), bad


class SoloCode:
    """The code of the last of a row's tokens, in plain integers: what the model's `forward` gives without cache or attention."""

    def __init__(self, seed: int = 0) -> None:
        self._seed = seed
        self._sum0 = self._sum1 = self._last = 0
        self._codes0: list[int] = []
        self._codes1: list[int] = []

    def after(self, known: Sequence[int]) -> int:
        """known: all tokens; those of the call before, and any number more."""
        for p in range(len(self._codes0), len(known)):
            t = known[p]
            self._codes0.append(_code0(t, p))
            self._sum0 += self._codes0[p]
            s = self._codes0[_look0(t, p)]
            self._codes1.append(_code1(self._sum0, s, t, p))
            self._sum1 += self._codes1[p]
            self._last = _mix(self._sum0, s, self._sum1, self._codes1[_look1(self._sum0, s, p)], self._seed)
        return self._last


def solo(
    prompt_ids: Sequence[int],
    *,
    max_tokens: int,
    params: SamplingParams | None = None,
    seed: int = 0,
    sample: int = 0,
    end_ids: Sequence[int] = (),
    options: FingerprintOptions | None = None,
    sampler: Sampler | None = None,
) -> tuple[int, ...]:
    """What a request must answer, naively. Greedy (the default) by integers alone; drawn by `sampler` from one row of logits.

    The answer ends with the first of `end_ids` (they are not drawn before `params.min_tokens`) or after `max_tokens`. Of the
    parameters it knows temperature, filters and `min_tokens`.
    """
    options, params = options or FingerprintOptions(), params or SamplingParams(temperature=0)
    model = Fingerprint(options) if params.temperature else None
    known, code = list(prompt_ids), SoloCode(options.seed)
    ends, num_prompt = frozenset(end_ids), len(prompt_ids)
    while True:
        last = code.after(known)
        banned = ends if len(known) - num_prompt < params.min_tokens else frozenset()
        if model is None:
            token = next(i for i in (*(_peak(last, r, options.vocab_size) for r in range(NUM_PEAKS)), *range(options.vocab_size)) if i not in banned)
        else:
            assert sampler is not None, "a drawn answer needs a sampler"
            logits = model.logits(torch.tensor([[last]], dtype=torch.float64))
            token = draw_one(sampler, logits, params, seed=seed, sample=sample, position=len(known), banned=tuple(banned))
        known.append(token)
        if token in ends or len(known) - num_prompt == max_tokens:
            return tuple(known[num_prompt:])


def draw_one(sampler: Sampler, logits: Tensor, params: SamplingParams, *, seed: int, sample: int, position: int, banned: tuple[int, ...] = ()) -> int:
    """One id from one row of logits, with temperature and filters of params."""

    def one(value: float, dtype: torch.dtype) -> Tensor:
        return torch.tensor([value], dtype=dtype)

    batch = SamplingBatch(
        logits_row=one(0, torch.int64),
        temperature=one(params.temperature, torch.float32),
        top_k=one(params.top_k, torch.int64),
        top_p=one(params.top_p, torch.float32),
        min_p=one(params.min_p, torch.float32),
        seed=one(seed, torch.int64),
        position=one(position, torch.int64),
        index=one(sample, torch.int64),
        banned=((0, banned),) if banned else (),
    )
    return int(sampler.sample(logits, batch).token_ids[0])
