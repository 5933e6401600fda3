"""Random sequences of what a core asks, on every stack: contents, counts and what is found agree with a model at each call."""

from __future__ import annotations

import random
from typing import Any

import pytest
from cpu_swap_rig import CACHES, Rig, key_chain

from corekit.api import BlockKey, Ticket


class Walk:
    """Requests of three chains that share beginnings. Whatever else happens, what is parked is found and comes back whole."""

    def __init__(self, rig: Rig, seed: int) -> None:
        self.rig = rig
        self.rng = random.Random(seed)
        trunk = key_chain(1, 2, 3)
        self.chains = [trunk + key_chain(at, at + 1, at + 2, root=trunk[-1]) for at in (10, 20)] + [key_chain(*range(30, 36))]
        self.running: list[list[int]] = []
        self.parked: list[tuple[Ticket, list[BlockKey]]] = []
        self.num_refused = 0

    def run(self, length: int) -> None:
        moves = (self.start, self.start, self.start, self.end, self.fork, self.park, self.park, self.back, self.back, self.drop)
        for _ in range(length):
            self.rng.choice(moves)()
            for _, keys in self.parked:
                found = self.rig.find(keys).blocks if self.rig.caches else keys
                assert len(found) == len(keys), "a key of a parked request is not found"
        for ticket, _ in self.parked:
            self.rig.drop(ticket)
        for table in self.running:
            self.rig.give(table)

    def start(self) -> None:
        rig, chain = self.rig, self.rng.choice(self.chains)[: self.rng.randint(1, 6)]
        match = rig.find(chain)
        num_new = len(chain) - len(match.blocks) + self.rng.randint(0, 2)
        if match.num_taken + num_new > rig.stack.available:
            return
        table = (rig.hold(match) or []) if match.blocks else []
        fresh = rig.take(num_new) or []
        for block, key in zip(fresh, chain[len(table) :], strict=False):
            if rig.caches and self.rng.random() < 0.9:
                rig.publish(block, key)
        self.running.append(table + fresh)

    def end(self) -> None:
        if self.running:
            self.rig.give(self.pick(self.running))

    def fork(self) -> None:
        if self.running:
            table = self.rng.choice(self.running)
            self.rig.share(table)
            self.running.append(list(table))

    def park(self) -> None:
        if not self.running or not self.rig.swap:
            return
        table = self.rng.choice(self.running)
        keys = [key for block in table if (key := self.rig.key_of.get(block)) is not None]
        ticket = self.rig.swap_out(table)
        if ticket is None:
            self.num_refused += 1
            return
        self.running.remove(table)
        self.rig.give(table)
        self.parked.append((ticket, keys))

    def back(self) -> None:
        if self.parked:
            at = self.rng.randrange(len(self.parked))
            table = self.rig.swap_in(self.parked[at][0])
            if table is not None:
                self.running.append(table)
                self.parked.pop(at)

    def drop(self) -> None:
        if self.parked and self.rng.random() < 0.5:
            self.rig.drop(self.pick(self.parked)[0])

    def pick(self, among: list[Any]) -> Any:
        return among.pop(self.rng.randrange(len(among)))


@pytest.mark.parametrize("host", [0, 2, 8, 64])
@pytest.mark.parametrize("beneath", ["nothing", *CACHES])
def test_walks_agree_with_the_model(beneath: str, host: int) -> None:
    num_out = num_in = num_refused = 0
    for seed in range(25):
        rig = Rig(4 + seed % 9, host=host, max_cached=(host, host // 2, 0)[seed % 3], beneath=beneath)
        walk = Walk(rig, seed)
        walk.run(60)
        assert rig.stack.available == rig.num_blocks
        used, cached = rig.host
        assert used == cached, "host blocks are claimed and nobody is parked"
        assert not rig.layer.audit()
        num_out, num_in, num_refused = num_out + rig.journal.num_out, num_in + rig.journal.num_in, num_refused + walk.num_refused
    assert bool(num_out) == bool(num_in) == bool(host), "the walks show nothing"
    assert bool(num_refused) == (host in (2, 8)), "the walks do not fill the space"
