"""What lru-prefix has to do, in plain dictionaries and slowly; and a seeded walk that compares the two. Knows nothing of how it is done."""

from __future__ import annotations

import hashlib
import random
from collections import Counter
from collections.abc import Sequence

from corekit_lru_prefix import LruPrefixOptions
from corekit_lru_prefix.layer import LruPrefix

from corekit.api import BlockKey, Blocks, PrefixMatch, PrefixQuery
from corekit.builtin.free_list import FreeList

NUM_SEEDS = 40
LENGTH = 500
MAX_RETAINED = 0.5


class Clock:
    """Stands still until it is moved; counts who asks."""

    def __init__(self) -> None:
        self.now = 100.0
        self.num_calls = 0

    def __call__(self) -> float:
        self.num_calls += 1
        return self.now


def chain(*names: int, root: BlockKey | None = None) -> list[BlockKey]:
    keys: list[BlockKey] = []
    for name in names:
        parent = keys[-1] if keys else root
        keys.append(BlockKey(hash=hashlib.sha256(f"{parent and parent.hash.hex()} {name}".encode()).digest(), parent=parent, tokens=(name,)))
    return keys


def layer(num_blocks: int, *, clock: Clock | None = None, made: type[LruPrefix] = LruPrefix, max_retained: float = 0.25, sample_every: int = 0) -> LruPrefix:
    """Over a free list; it watches nothing unless that is asked for."""
    return made(FreeList(num_blocks), LruPrefixOptions(max_retained=max_retained, sample_every=sample_every), clock=clock or Clock())


def filled(cache: LruPrefix, keys: Sequence[BlockKey], retain_until: float | None = None) -> Blocks:
    """A table with these keys, all published."""
    table = cache.take(len(keys))
    assert table is not None
    assert all(cache.publish(block, key, retain_until) for block, key in zip(table.ids, keys, strict=True))
    return table


def kept(cache: LruPrefix, keys: Sequence[BlockKey]) -> list[bool]:
    """Which of them are found, each for itself."""
    return [bool(cache.find(PrefixQuery((key,))).blocks) for key in keys]


class Model:
    """Plays the core's part too: owners of blocks. Every call is made on the layer and checked."""

    def __init__(self, num_blocks: int, made: type[LruPrefix] = LruPrefix) -> None:
        self.clock = Clock()
        self.cache = layer(num_blocks, clock=self.clock, made=made, max_retained=MAX_RETAINED)
        self.cache.set_sink(lambda block, key: self.told.append((block, key)))
        self.told: list[tuple[int, BlockKey]] = []
        self.num_blocks, self.most = num_blocks, int(num_blocks * MAX_RETAINED)
        self.owners: Counter[int] = Counter()
        self.key_of: dict[int, BlockKey] = {}
        self.idle_since: dict[int, int] = {}
        self.until: dict[BlockKey, float] = {}
        self.num_given = self.num_evicted = 0

    @property
    def free(self) -> int:
        return self.num_blocks - len(+self.owners) - len(self.idle_since)

    def retained(self) -> set[BlockKey]:
        return {key for key, until in self.until.items() if until > self.clock.now}

    def take(self, count: int) -> list[int] | None:
        short, retained = count - self.free, self.retained()
        order = sorted(self.idle_since, key=lambda block: (self.key_of[block] in retained, self.idle_since[block]))
        expected = [(block, self.key_of[block]) for block in order[: max(0, short)]]
        self.told = []
        taken = self.cache.take(count)
        if short > len(order):
            assert taken is None, f"take({count}) with {self.free} free and {len(order)} idle blocks gave {taken}"
            expected = []
        assert self.told == expected, f"take({count}) evicted {self.told}, expected {expected}"
        if taken is None:
            assert short > len(order), f"take({count}) refused with {self.free} free and {len(order)} idle blocks"
            return None
        for block, key in expected:
            del self.idle_since[block], self.key_of[block]
            self.until.pop(key, None)
        self.num_evicted += len(expected)
        assert len(set(taken.ids)) == count and not any(self.owners[block] for block in taken.ids), f"take({count}) gave {taken}"
        self.owners.update(taken.ids)
        return list(taken.ids)

    def find(self, keys: Sequence[BlockKey]) -> tuple[PrefixMatch, list[int]]:
        """The match, and the blocks that it has to list."""
        block_of = {key: block for block, key in self.key_of.items()}
        expected: list[int] = []
        for key in keys:
            if key not in block_of:
                break
            expected.append(block_of[key])
        match = self.cache.find(PrefixQuery(keys))
        assert [cached.place.block for cached in match.blocks] == expected, f"find gave {match}, expected the blocks {expected}"
        idle = sum(block in self.idle_since for block in expected)
        assert match.num_taken == idle, f"num_taken is {match.num_taken}, of the match {idle} blocks are idle"
        return match, expected

    def find_and_hold(self, keys: Sequence[BlockKey]) -> list[int] | None:
        """None: there is no room for what is idle of it and for the rest."""
        match, expected = self.find(keys)
        if match.num_taken + len(keys) - len(expected) > self.cache.available:
            return None
        held = self.cache.hold(match)
        assert held == Blocks(tuple(expected)), f"hold of {expected} gave {held}"
        for block in expected:
            self.idle_since.pop(block, None)
        self.owners.update(expected)
        return expected

    def publish(self, block: int, key: BlockKey, until: float | None) -> None:
        holder = next((other for other, kept in self.key_of.items() if kept is key), block)
        answer = self.cache.publish(block, key, until)
        assert answer == (holder == block), f"publish of block {block} answered {answer}; block {holder} holds that key"
        if answer:
            self.key_of[block] = key
        retained = self.retained()
        if until is not None and (key in retained or len(retained) < self.most):
            self.until[key] = max(until, self.until.get(key, until))
            if holder in self.idle_since:  # computed again: a use of it
                self.num_given += 1
                self.idle_since[holder] = self.num_given

    def give(self, table: Sequence[int]) -> None:
        self.owners.subtract(table)
        last = [block for block in table if not self.owners[block]]
        self.cache.give(Blocks(tuple(last)))
        for block in reversed(last):
            if block in self.key_of:
                self.num_given += 1
                self.idle_since[block] = self.num_given

    def compare(self) -> None:
        stats = self.cache.stats()
        counts = (self.cache.available, stats.num_free, stats.num_idle, stats.num_evicted, stats.num_retained)
        expected = (self.free + len(self.idle_since), self.free, len(self.idle_since), self.num_evicted, len(self.retained()))
        assert counts == expected, f"available, free, idle, evicted, retained: {counts}, expected {expected}"
        assert not (problems := self.cache.audit()), problems


def walk(seed: int, made: type[LruPrefix] = LruPrefix) -> None:
    """Requests come, share, are retained, wait and go. Raises AssertionError where the layer and the model part."""
    rng = random.Random(seed)
    model = Model(rng.randint(3, 16), made)
    trunk = chain(1, 2)
    chains = [trunk + chain(i, i + 10, root=trunk[-1]) for i in range(3)] + [chain(100 + i, 200 + i) for i in range(6)]
    tables: list[list[int]] = []
    for _ in range(LENGTH):
        dice = rng.random()
        if dice < 0.5:
            _start(model, rng, tables, rng.choice(chains))
        elif dice < 0.85 and tables:
            model.give(tables.pop(rng.randrange(len(tables))))
        elif dice < 0.87:
            model.take(model.cache.available + 1)
        elif dice < 0.9:
            model.find(rng.choice(chains))
        else:
            model.clock.now += rng.choice((0.5, 1.0, 2.0))
        if rng.random() < 0.3:  # not always: who looks at the counts must not be what keeps them right
            model.compare()
    for table in tables:
        model.give(table)
    model.take(model.num_blocks)
    model.compare()


def _start(model: Model, rng: random.Random, tables: list[list[int]], keys: list[BlockKey]) -> None:
    keys = keys[: rng.randint(1, len(keys))]
    until = model.clock.now + rng.choice((0.0, 2.0, 4.0, 8.0)) if rng.random() < 0.4 else None
    held = model.find_and_hold(keys)
    if held is None:
        return
    fresh = model.take(len(keys) - len(held))
    assert fresh is not None
    table = held + fresh
    for block, key in zip(table, keys, strict=True):
        if block in fresh or until is not None:
            if rng.random() < 0.05:
                break
            model.publish(block, key, until)
    tables.append(table)
