"""What a batch does to its samples' logits before anything is drawn: biases, penalties, then what is allowed and banned.

Knows nothing of temperatures, filters or draws. Ids outside the vocabulary are passed over. Nothing here waits for a device:
entries that are not for a chunk are sent to a row that nobody reads.
"""

from __future__ import annotations

from array import array
from collections.abc import Sequence

import torch
from torch import Tensor

from corekit.api import Biases, Penalties, SamplingBatch

Lists = Sequence[tuple[int, tuple[int, ...]]]


def is_shaped(batch: SamplingBatch) -> bool:
    """Whether some sample draws from anything but its logits as they are."""
    return bool(batch.biases or batch.penalties or batch.allowed or batch.banned)


def shaped_rows(logits: Tensor, batch: SamplingBatch, first: int, end: int) -> Tensor:
    """[end - first, vocab_size]: a copy of the logits of samples first .. end - 1, changed as the batch says.

    Half-precision logits become float32 where there is something to compute: a penalty must not be rounded away.
    """
    rows = logits[batch.logits_row[first:end]]
    if batch.biases is not None or batch.penalties is not None:
        rows = _computed(rows, batch, first)
    _allow(rows, _within(batch.allowed, first, end))
    _ban(rows, _within(batch.banned, first, end))
    return rows


def _computed(rows: Tensor, batch: SamplingBatch, first: int) -> Tensor:
    count, vocab_size = rows.shape
    whole = rows.new_zeros((count + 1, vocab_size), dtype=torch.promote_types(rows.dtype, torch.float32))
    whole[:count] = rows
    if batch.biases is not None:
        _add(whole, batch.biases, first)
    if batch.penalties is not None:
        _penalise(whole, batch.penalties, first)
    return whole[:count]


def _add(whole: Tensor, biases: Biases, first: int) -> None:
    mine = _mine(biases.sample, first, len(whole) - 1)
    at = _cells(whole, biases.sample[mine] - first, biases.token_id[mine])
    whole[at] += biases.value[mine].to(whole.dtype)


def _penalise(whole: Tensor, penalties: Penalties, first: int) -> None:
    mine = _mine(penalties.sample, first, len(whole) - 1)
    sample, num_output = penalties.sample[mine], penalties.num_output[mine]
    at = _cells(whole, sample - first, penalties.token_id[mine])
    owner = sample.clamp(0, len(penalties.repetition) - 1)

    def of(column: Tensor) -> Tensor:
        return column[owner].to(whole.dtype)

    x, repetition = whole[at], of(penalties.repetition)
    x = torch.where(x > 0, x / repetition, x * repetition)
    whole[at] = x - of(penalties.presence) * (num_output > 0) - of(penalties.frequency) * num_output


def _mine(sample: Tensor, first: int, count: int) -> Tensor | slice:
    """Which entries are for samples first .. first + count - 1. Elsewhere than on a CPU that would have to wait: all, the others to be sorted out."""
    if sample.device.type != "cpu":
        return slice(None)
    return ((sample >= first) & (sample < first + count)).nonzero()[:, 0]


def _cells(whole: Tensor, row: Tensor, token_id: Tensor) -> tuple[Tensor, Tensor]:
    """Where entries go: the last row takes those of other rows and of ids outside the vocabulary."""
    last, vocab_size = len(whole) - 1, whole.shape[1]
    inside = (row >= 0) & (row < last) & (token_id >= 0) & (token_id < vocab_size)
    return torch.where(inside, row, last), torch.where(inside, token_id, 0)


def _within(lists: Lists, first: int, end: int) -> dict[int, tuple[int, ...]]:
    return {sample - first: ids for sample, ids in lists if first <= sample < end} if lists else {}


def _allow(rows: Tensor, lists: dict[int, tuple[int, ...]]) -> None:
    if lists:
        keep = torch.zeros((len(lists), rows.shape[1]), dtype=torch.bool, device=rows.device)
        keep[_listed(rows, dict(enumerate(lists.values())))] = True
        which = _send(list(lists), rows.device)
        rows[which] = rows[which].masked_fill_(~keep, float("-inf"))


def _ban(rows: Tensor, lists: dict[int, tuple[int, ...]]) -> None:
    if lists:
        rows[_listed(rows, lists)] = float("-inf")


def _listed(rows: Tensor, lists: dict[int, tuple[int, ...]]) -> tuple[Tensor, Tensor]:
    """(row, id) of everything in the lists that is an id of the vocabulary."""
    flat = array("q")
    for listed in lists.values():
        flat.extend(listed)
    row = torch.tensor(list(lists)).repeat_interleave(torch.tensor([len(listed) for listed in lists.values()]))
    ids = torch.frombuffer(flat, dtype=torch.int64) if flat else torch.empty(0, dtype=torch.int64)
    inside = (ids >= 0) & (ids < rows.shape[1])
    return _send(row[inside], rows.device), _send(ids[inside], rows.device)


def _send(values: Tensor | list[int], device: torch.device) -> Tensor:
    return torch.as_tensor(values).to(device, non_blocking=True)
