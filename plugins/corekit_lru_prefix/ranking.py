"""Keys in the order of their ranks: the first comes out, and any other, in logarithmic time at worst. Knows nothing of what ranks mean."""

from __future__ import annotations

from collections.abc import KeysView

from corekit.api import BlockKey


class _Entry:
    """A key, its rank, and where it stands in the heap."""

    __slots__ = ("key", "place", "rank")

    def __init__(self, key: BlockKey, rank: float, place: int) -> None:
        self.key, self.rank, self.place = key, rank, place


class Ranking:
    """Invariant: `_heap` is a binary heap by rank, and has the one entry of each key at the place that this entry says.

    The heap of the standard library cannot take a key out of its middle. What is left there would pile up, and be cleared away in one long step.
    """

    def __init__(self) -> None:
        self._heap: list[_Entry] = []
        self._entries: dict[BlockKey, _Entry] = {}
        self.keys: KeysView[BlockKey] = self._entries.keys()
        """Those that are in it, in no order; it changes with them."""

    @property
    def first(self) -> tuple[float, BlockKey]:
        """The lowest rank, and whose it is. There is one."""
        entry = self._heap[0]
        return entry.rank, entry.key

    def rank(self, key: BlockKey) -> float | None:
        entry = self._entries.get(key)
        return None if entry is None else entry.rank

    def put(self, key: BlockKey, rank: float) -> None:
        """A new key, or a new rank for one that is there."""
        entry = self._entries.get(key)
        if entry is None:
            self._entries[key] = entry = _Entry(key, rank, len(self._heap))
            self._heap.append(entry)
        entry.rank = rank
        self._settle(entry, entry.place)

    def remove(self, key: BlockKey) -> None:
        """Take it out, if it is there."""
        entry = self._entries.pop(key, None)
        if entry is None:
            return
        last = self._heap.pop()
        if last is not entry:
            self._settle(last, entry.place)

    def _settle(self, entry: _Entry, place: int) -> None:
        """Put an entry where what is at `place` may be overwritten, then up or down until its neighbours are in order."""
        heap, rank = self._heap, entry.rank
        while place and rank < (above := heap[(place - 1) >> 1]).rank:
            heap[place], above.place = above, place
            place = (place - 1) >> 1
        size = len(heap)
        while (child := 2 * place + 1) < size:
            below = heap[child]
            if child + 1 < size and (other := heap[child + 1]).rank < below.rank:
                below, child = other, child + 1
            if below.rank >= rank:
                break
            heap[place], below.place = below, place
            place = child
        heap[place], entry.place = entry, place
