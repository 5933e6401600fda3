"""What a batch does to its samples' logits before anything is drawn: biases, penalties, then what is allowed and banned.

Knows nothing of temperatures, filters or draws. Ids outside the vocabulary are passed over. Nothing here waits for a device:
entries that are not for a chunk are sent to a row that nobody reads.
"""

from __future__ import annotations

from array import array
from collections import OrderedDict

import torch
from torch import Tensor

from corekit.api import Biases, Penalties, SamplingBatch

Ids = tuple[int, ...]
Lists = list[tuple[int, Ids]]
LONG = 256
"""Lists of more ids than this are turned into masks, which are kept: the same list comes back step after step."""
MAX_MASKS = 256
MAX_KEPT_IDS = 1 << 22
"""Of the lists of all masks together, which stay in memory with them: the longest of many requests must not add up."""


def is_shaped(batch: SamplingBatch) -> bool:
    """Whether some sample draws from anything but its logits as they are."""
    return bool(batch.biases or batch.penalties or batch.allowed or batch.banned)


class Shaper:
    """What it remembers is what was asked before, by the very tuple: it saves time and changes no draw."""

    def __init__(self) -> None:
        self._masks: OrderedDict[int, tuple[Ids, Tensor]] = OrderedDict()
        """id of a tuple -> the tuple, which must not be freed before this entry, and its mask."""

    def rows(self, logits: Tensor, batch: SamplingBatch, first: int, end: int) -> Tensor:
        """[end - first, vocab_size]: a copy of the logits of samples first .. end - 1, changed as the batch says.

        Half-precision logits become float32 where there is something to compute: a penalty must not be rounded away.
        """
        rows = logits[batch.logits_row[first:end]]
        if batch.biases is not None or batch.penalties is not None:
            rows = _computed(rows, batch, first)
        for lists, keeps in ((batch.allowed, True), (batch.banned, False)):
            if lists:
                self._restrict(rows, [(sample - first, ids) for sample, ids in lists if first <= sample < end], keeps)
        return rows

    def _restrict(self, rows: Tensor, lists: Lists, keeps: bool) -> None:
        short = [(row, ids) for row, ids in lists if len(ids) <= LONG]
        for row, ids in lists:
            if len(ids) > LONG:
                mask = self._mask(ids, rows)
                rows[row].masked_fill_(~mask if keeps else mask, float("-inf"))
        if short and keeps:
            which = _send([row for row, _ in short], rows.device)
            keep = torch.zeros((len(short), rows.shape[1]), dtype=torch.bool, device=rows.device)
            keep[_cells_of([(at, ids) for at, (_, ids) in enumerate(short)], rows)] = True
            rows[which] = rows[which].masked_fill_(~keep, float("-inf"))
        elif short:
            rows[_cells_of(short, rows)] = float("-inf")

    def _mask(self, ids: Ids, rows: Tensor) -> Tensor:
        """[vocab_size]: which ids the list has."""
        found = self._masks.pop(id(ids), None)
        if found is None or len(found[1]) != rows.shape[1] or found[1].device != rows.device:
            mask = torch.zeros(rows.shape[1], dtype=torch.bool)
            mask[_cells_of([(0, ids)], mask[None])[1]] = True
            found = ids, _send(mask, rows.device)
            self._make_room(len(ids))
        self._masks[id(ids)] = found
        return found[1]

    def _make_room(self, num_ids: int) -> None:
        """For a mask of a list of so many ids. Those that were not used for longest go."""
        while self._masks and (len(self._masks) >= MAX_MASKS or num_ids + sum(len(ids) for ids, _ in self._masks.values()) > MAX_KEPT_IDS):
            self._masks.popitem(last=False)


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


def _cells_of(lists: Lists, rows: Tensor) -> tuple[Tensor, Tensor]:
    """(row, id) of everything in the lists that is an id of the vocabulary."""
    flat = array("q")
    for _, listed in lists:
        flat.extend(listed)
    row = torch.tensor([row for row, _ in lists]).repeat_interleave(torch.tensor([len(listed) for _, listed in lists]))
    ids = torch.frombuffer(flat, dtype=torch.int64) if flat else torch.empty(0, dtype=torch.int64)
    inside = (ids >= 0) & (ids < rows.shape[1])
    return _send(row[inside], rows.device), _send(ids[inside], rows.device)


def _send(values: Tensor | list[int], device: torch.device) -> Tensor:
    return torch.as_tensor(values).to(device, non_blocking=True)
