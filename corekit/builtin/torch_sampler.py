"""Logits to tokens in plain torch operations. Knows one step's draws; nothing of requests, rows of a batch or vocabularies' meaning.

A draw inverts a cumulative sum at a point that is a hash of (seed, position, index). Probabilities become integer weights
first, so sums are exact in any order: whatever else is in the batch, a row draws the same id. Filters keep a prefix of the
ids by falling weight (equal weights by rising id): at most top_k, none below min_p times the highest, then the shortest that
reaches top_p of what is left. What is done to logits before that is in `torch_shaping`.
"""

from __future__ import annotations

import torch
from torch import Tensor

from corekit.api import Logprobs, Sampled, SamplingBatch

from .torch_shaping import Shaper, is_shaped

WEIGHT_BITS = 40
"""The likeliest id weighs 2**40. Sums of up to 2**23 ids are exact in int64; ids below 2**-40 of the likeliest are not drawn."""
LEAST_TEMPERATURE = 1e-45
NUM_SORTED = 256
"""Filters usually end within so many ids; rows for which they do not are sorted whole."""
CPU_CHUNK = 1 << 18
"""Elements worked on at once: what a CPU's cache holds."""
DEVICE_CHUNK = 1 << 25
"""The same elsewhere, where the bound is for memory."""

_GOLDEN = 0x9E3779B97F4A7C15 - (1 << 64)
_MULTIPLIERS = (0xBF58476D1CE4E5B9 - (1 << 64), 0x94D049BB133111EB - (1 << 64))


class TorchSampler:
    """Equal arguments draw equal ids, on every device up to the rounding of its exponential."""

    def __init__(self) -> None:
        self._shaper = Shaper()

    def sample(self, logits: Tensor, batch: SamplingBatch) -> Sampled:
        if batch.all_greedy and not is_shaped(batch):
            return Sampled(token_ids=_argmax(logits)[batch.logits_row])
        token_ids = torch.empty_like(batch.logits_row)
        size = _chunk_size(logits)
        for first in range(0, len(token_ids), size):
            end = min(first + size, len(token_ids))
            chunk = self._shaper.rows(logits, batch, first, end)
            token_ids[first:end] = _argmax(chunk) if batch.all_greedy else _draw_mixed(chunk, batch, slice(first, end))
        return Sampled(token_ids=token_ids)

    def logprobs(self, logits: Tensor, logits_row: Tensor, token_ids: Tensor, num_top: int) -> Logprobs:
        count, num_top = len(token_ids), min(num_top, logits.shape[1])
        chosen = torch.empty(count, device=logits.device)
        top_ids, top = torch.empty((count, num_top), dtype=torch.int64, device=logits.device), torch.empty((count, num_top), device=logits.device)
        size = _chunk_size(logits)
        for first in range(0, count, size):
            which = slice(first, min(first + size, count))
            values = logits[logits_row[which]].float().log_softmax(-1)
            chosen[which] = values.gather(1, token_ids[which, None])[:, 0]
            top_ids[which] = _likeliest(values, num_top)
            top[which] = values.gather(1, top_ids[which])
        return Logprobs(chosen=chosen, top_ids=top_ids, top=top)


def _chunk_size(logits: Tensor) -> int:
    return max(1, (CPU_CHUNK if logits.device.type == "cpu" else DEVICE_CHUNK) // logits.shape[1])


def _argmax(logits: Tensor) -> Tensor:
    """The first of the highest, NaN above all. Of float32 on a CPU numpy finds it ten times as fast."""
    if logits.device.type == "cpu" and logits.dtype is torch.float32:
        return torch.from_numpy(logits.numpy().argmax(-1))
    return logits.argmax(-1)


def _draw_mixed(chunk: Tensor, batch: SamplingBatch, which: slice) -> Tensor:
    temperature = batch.temperature[which]
    drawing = (temperature > 0).nonzero()[:, 0]
    if len(drawing) == len(chunk):
        return _draw(chunk, batch, which, None)
    token_ids = _argmax(chunk)
    if len(drawing):
        token_ids[drawing] = _draw(chunk[drawing], batch, which, drawing)
    return token_ids


def _draw(logits: Tensor, batch: SamplingBatch, which: slice, chosen: Tensor | None) -> Tensor:
    """An id for each row of logits, drawn at temperature above 0."""

    def mine(column: Tensor) -> Tensor:
        return column[which] if chosen is None else column[which][chosen]

    weights = _weights(logits, mine(batch.temperature))
    top_k, top_p, min_p = mine(batch.top_k), mine(batch.top_p), mine(batch.min_p)
    filtered = (((top_k > 0) & (top_k < logits.shape[1])) | (top_p < 1) | (min_p > 0)).nonzero()[:, 0]
    if len(filtered) == len(weights):
        weights = _filter(weights, top_k, top_p, min_p)
    elif len(filtered):
        weights[filtered] = _filter(weights[filtered], top_k[filtered], top_p[filtered], min_p[filtered])
    sums = weights.cumsum(1)
    total = sums[:, -1]
    point = (uniform(mine(batch.seed), mine(batch.position), mine(batch.index)) * total).to(torch.int64)
    point = torch.minimum(point, total - 1).clamp_(min=0)
    # A row without any weight (all NaN or -inf) ends beyond the last id; it must not raise here, and may get any id.
    return torch.searchsorted(sums, point[:, None], right=True)[:, 0].clamp_(max=logits.shape[1] - 1)


def _weights(logits: Tensor, temperature: Tensor) -> Tensor:
    """Probabilities as int64, 2**40 for the likeliest; 0 in a row that has NaN or infinity."""
    logits = logits.double()
    logits -= logits.amax(1, keepdim=True)
    logits /= temperature.double().clamp(min=LEAST_TEMPERATURE)[:, None]
    return logits.exp_().nan_to_num_(nan=0.0).mul_(1 << WEIGHT_BITS).to(torch.int64)


def _filter(weights: Tensor, top_k: Tensor, top_p: Tensor, min_p: Tensor) -> Tensor:
    """Weights with 0 for what the filters drop."""
    vocab_size = weights.shape[1]
    most = torch.where((top_k > 0) & (top_k < vocab_size), top_k, vocab_size)
    least = (min_p.double() * (1 << WEIGHT_BITS)).ceil().to(torch.int64)
    share = top_p.double()
    threshold, num_equal, found = _cut(weights, weights.topk(min(NUM_SORTED, vocab_size), dim=1).values, most, share, least)
    if not found.all():
        rest = (~found).nonzero()[:, 0]
        whole = weights[rest].sort(dim=1, descending=True).values
        threshold[rest], num_equal[rest], _ = _cut(weights[rest], whole, most[rest], share[rest], least[rest])
    equal = weights == threshold[:, None]
    keep = (weights > threshold[:, None]) | (equal & (equal.cumsum(1) <= num_equal[:, None]))
    return weights * keep


def _cut(weights: Tensor, falling: Tensor, most: Tensor, share: Tensor, least: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Where each row's filters end: (weight of the last id that is kept, how many of that weight, whether `falling` shows it).

    `falling`: the highest weights of the row, falling; all of them, or the first few.
    """
    num_sorted, vocab_size = falling.shape[1], weights.shape[1]
    allowed = (torch.arange(num_sorted, device=weights.device) < most[:, None]) & (falling >= least[:, None])
    sums = (falling * allowed).cumsum(1)
    whole = (weights * (weights >= least[:, None])).sum(1) if num_sorted < vocab_size else sums[:, -1]
    total = torch.where(most <= num_sorted, sums[:, -1], whole)
    need = torch.minimum((share * total).ceil().to(torch.int64), total).clamp_(min=1)
    kept = allowed & (sums - falling * allowed < need[:, None])
    count = kept.sum(1).clamp_(min=1)
    threshold = falling.gather(1, count[:, None] - 1)[:, 0]
    num_equal = count - (falling > threshold[:, None]).sum(1)
    found = (most <= num_sorted) | ((most == vocab_size) & ((count < num_sorted) | (sums[:, -1] >= need)))
    return threshold, num_equal, found


def _likeliest(values: Tensor, count: int) -> Tensor:
    """[rows, count] ids of the highest of these float32 values, best first, equal values by rising id, NaN as the lowest.

    The bits of a float, turned over where it is negative, rise with it as an integer; the id below them breaks every tie.
    """
    bits = (values.nan_to_num(nan=float("-inf"), neginf=float("-inf")) + 0.0).view(torch.int32)  # + 0.0: there is one zero
    height = (bits ^ ((bits >> 31) & 0x7FFFFFFF)).to(torch.int64)
    rising = torch.arange(values.shape[1], device=values.device)
    return ((height << 32) - rising).topk(count, dim=1).indices


def uniform(seed: Tensor, position: Tensor, index: Tensor) -> Tensor:
    """float64 in [0, 1): a hash of the three (rounds of splitmix64, Steele, Lea and Flood 2014)."""
    state = _mix(seed + _GOLDEN)
    state = _mix((state ^ position) + _GOLDEN)
    state = _mix((state ^ index) + _GOLDEN)
    return _shift(state, 11).double() * 2.0**-53


def _mix(x: Tensor) -> Tensor:
    x = (x ^ _shift(x, 30)) * _MULTIPLIERS[0]
    x = (x ^ _shift(x, 27)) * _MULTIPLIERS[1]
    return x ^ _shift(x, 31)


def _shift(x: Tensor, bits: int) -> Tensor:
    """Logical shift to the right."""
    return (x >> bits) & ((1 << (64 - bits)) - 1)
