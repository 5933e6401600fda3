"""Resets of the prefix cache among everything else: what is held, parked and retained keeps its content, and every audit stays clean."""

from __future__ import annotations

from random import Random

import pytest
from kit_mutants import subject

from corekit.api import BlockKey, SupportsAudit, Ticket
from corekit.testing import BlockAllocatorKit
from corekit.testing.block_calls import key_chain
from corekit.testing.block_ledger import Ledger

NUM_STEPS = 150


class Walk:
    """Tables come and go, by chance: begun, given back, parked, brought back, dropped; and all is forgotten now and then."""

    def __init__(self, ledger: Ledger, seed: int) -> None:
        self.ledger = ledger
        self.random = Random(seed)
        roots = key_chain(0, 1)
        self.chains = [[*roots, *key_chain(*range(2, 5), root=roots[-1])] for _ in range(3)] + [key_chain(*range(4)) for _ in range(2)]
        self.tables: list[tuple[list[int], list[BlockKey]]] = []
        self.tickets: list[tuple[Ticket, list[BlockKey]]] = []
        self.num_forgotten = 0

    def begin(self) -> None:
        ledger, keys = self.ledger, self.random.choice(self.chains)[: self.random.randint(1, 5)]
        match = ledger.find(keys)
        if len(keys) - len(match.blocks) + match.num_taken > ledger.stack.available:
            return
        table = (ledger.hold(match) if match.blocks else []) or []
        table += ledger.take(len(keys) - len(table)) or []
        for block, key in list(zip(table, keys, strict=True))[len(match.blocks) :]:
            ledger.publish(block, key, self.random.choice((None, ledger.clock.now + 5)))
        self.tables.append((table, keys))

    def end(self) -> None:
        if self.tables:
            self.ledger.give(self.tables.pop(self.random.randrange(len(self.tables)))[0])

    def park(self) -> None:
        if self.tables:
            table, keys = self.tables[at := self.random.randrange(len(self.tables))]
            ticket = self.ledger.swap_out(table)
            if ticket is not None:
                del self.tables[at]
                self.ledger.give(table)
                self.tickets.append((ticket, keys))

    def unpark(self) -> None:
        if self.tickets:
            ticket, keys = self.tickets[at := self.random.randrange(len(self.tickets))]
            table = self.ledger.swap_in(ticket)
            if table is not None:
                del self.tickets[at]
                self.tables.append((table, keys))

    def drop(self) -> None:
        if self.tickets:
            self.ledger.drop(self.tickets.pop(self.random.randrange(len(self.tickets)))[0])

    def forget(self) -> None:
        """Only what is parked is found afterwards, and that on the host."""
        self.num_forgotten += self.ledger.forget()
        places = [cached.place for keys in self.chains for key in keys for cached in self.ledger.find([key]).blocks]
        assert all(place.on_host for place in places)
        assert len(set(places)) <= self.ledger.num_parked

    def wait(self) -> None:
        self.ledger.clock.now += 2

    def run(self) -> None:
        steps = (self.begin, self.begin, self.begin, self.end, self.park, self.unpark, self.drop, self.wait)
        for _ in range(NUM_STEPS):
            (self.forget if self.random.random() < 0.06 else self.random.choice(steps))()
            self.ledger.check_stats()
        while self.tables or self.tickets:
            self.end()
            self.drop()


@pytest.mark.parametrize("host_blocks", [2, 8, 64])
def test_nothing_is_lost_by_forgetting(host_blocks: int) -> None:
    kit = subject(BlockAllocatorKit, "cpu-swap", {"num_host_blocks": host_blocks}, beneath=("lru-prefix", "free-list"))
    num_forgotten = 0
    for seed in range(20):
        ledger: Ledger = kit.ledger(10)  # type: ignore[attr-defined]
        walk = Walk(ledger, seed)
        walk.run()
        num_forgotten += walk.num_forgotten
        assert ledger.stack.available == 10
        layer = ledger.stack
        while layer is not None:
            assert not isinstance(layer, SupportsAudit) or list(layer.audit()) == []
            layer = getattr(layer, "inner", None)
    assert num_forgotten > 100
