"""The host's side: which slot holds what, for whom, and which goes next. Copies nothing and knows no device block."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterator, Sequence

from corekit.api import BlockKey


class HostSlots:
    """Invariant: every slot is free, referenced by tickets, or cached; each step of one is O(1).

    A cached slot is filled and keyed, and anyone may displace it, the least recently used first. A referenced slot is filled,
    or awaited: then its key is on the device, and it is filled before that block is reused. A key has one slot at most.
    """

    def __init__(self, count: int, max_cached: int) -> None:
        self.count = count
        self.slot_of: dict[BlockKey, int] = {}
        self._max_cached = max_cached
        self._key_of: dict[int, BlockKey] = {}
        self._refs: dict[int, int] = {}
        self._awaited: set[int] = set()
        self._cached: OrderedDict[int, None] = OrderedDict()
        self._given: list[int] = []
        self._next = 0  # above it lie those that were never used, so that a huge space is made at once

    @property
    def num_free(self) -> int:
        return len(self._given) + self.count - self._next

    @property
    def num_cached(self) -> int:
        return len(self._cached)

    def key_of(self, slot: int) -> BlockKey | None:
        return self._key_of.get(slot)

    def is_awaited(self, slot: int) -> bool:
        return slot in self._awaited

    def filled(self, key: BlockKey) -> int | None:
        """The slot that a key can be read from."""
        slot = self.slot_of.get(key)
        return None if slot in self._awaited else slot

    def room_beside(self, shared: Sequence[int | None]) -> int:
        """Slots that can be claimed once the shared ones are referenced."""
        return self.num_free + len(self._cached) - sum(slot in self._cached for slot in shared)

    def claim(self, key: BlockKey | None, *, awaited: bool) -> int:
        """A slot with one reference; there has to be room. None: of a private block."""
        slot = self._fresh() if self.num_free else self._displace()
        self._refs[slot] = 1
        if key is not None:
            self._name(slot, key)
            if awaited:
                self._awaited.add(slot)
        return slot

    def keep(self, key: BlockKey) -> int | None:
        """A cached slot for a key that has none, displacing the oldest where the cache may not grow; None where it has no room at all."""
        if len(self._cached) < self._max_cached and self.num_free:
            slot = self._fresh()
        elif self._cached:
            slot = self._displace()
        else:
            return None
        self._name(slot, key)
        self._cached[slot] = None
        return slot

    def fill(self, slot: int) -> None:
        """An awaited slot gets its content."""
        self._awaited.discard(slot)

    def forget_cached(self) -> int:
        """Every cached slot becomes free; how many. What tickets reference stays."""
        count = len(self._cached)
        for _ in range(count):
            self._given.append(self._displace())
        return count

    def touch(self, slot: int) -> None:
        """Somebody had a use for what is cached there."""
        if slot in self._cached:
            self._cached.move_to_end(slot)

    def refer(self, slot: int) -> None:
        """One reference more; what is referenced is not displaced."""
        self._refs[slot] = self._refs.get(slot, 0) + 1
        self._cached.pop(slot, None)

    def release(self, slots: Sequence[int]) -> None:
        """One reference less on each, in table order: earlier blocks of a table are then cached as used later, so they go after their children."""
        for slot in reversed(slots):
            left = self._refs[slot] - 1
            if left:
                self._refs[slot] = left
                continue
            del self._refs[slot]
            if slot in self._key_of and slot not in self._awaited and self._max_cached:
                if len(self._cached) >= self._max_cached:
                    self._given.append(self._displace())
                self._cached[slot] = None
            else:
                self._forget(slot)
                self._given.append(slot)

    def _fresh(self) -> int:
        if self._given:
            return self._given.pop()
        self._next += 1
        return self._next - 1

    def _displace(self) -> int:
        slot, _ = self._cached.popitem(last=False)
        self._forget(slot)
        return slot

    def _name(self, slot: int, key: BlockKey) -> None:
        self.slot_of[key], self._key_of[slot] = slot, key

    def _forget(self, slot: int) -> None:
        key = self._key_of.pop(slot, None)
        if key is not None:
            del self.slot_of[key]
        self._awaited.discard(slot)

    def audit(self) -> Iterator[str]:
        """Every broken invariant, once no ticket is left."""
        free, cached, claimed = set(self._given), set(self._cached), set(self._refs)
        if len(free) != len(self._given):
            yield "a host slot was freed twice"
        if claimed:
            yield f"tickets still reference host slots {sorted(claimed)[:8]}"
        if self._awaited:
            yield f"host slots {sorted(self._awaited)[:8]} wait for their content although no ticket needs it"
        if several := (free & cached) | (free & claimed) | (cached & claimed):
            yield f"host slots {sorted(several)[:8]} are in two states"
        if lost := set(range(self._next)) ^ (free | cached | claimed):
            yield f"host slots {sorted(lost)[:8]} are lost, or not of this space"
        if self._next > self.count or len(cached) > self._max_cached:
            yield f"{self._next} host slots of {self.count} were used, {len(cached)} are cached of {self._max_cached} that may be"
        if {slot: key for key, slot in self.slot_of.items()} != self._key_of or not cached <= self._key_of.keys() <= cached | claimed:
            yield "keys and host slots do not agree"
