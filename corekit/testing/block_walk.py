"""A seeded walk over all operations of an allocator stack, as the core would ask them. Owned by the kit of slot `block_allocator`."""

from __future__ import annotations

import random
from dataclasses import dataclass

from corekit.api import BlockKey, Ticket

from .block_ledger import Ledger, key_chain


@dataclass
class Table:
    """One request's blocks, and how many of its chain's keys they hold."""

    ids: list[int]
    chain: list[BlockKey]


def walk(ledger: Ledger, seed: int, length: int = 50) -> None:
    """Raises AssertionError where the stack differs from the model. At the end nothing is owned."""
    rng = random.Random(seed)
    trunk = key_chain(1, 2, 3)
    chains = [trunk + key_chain(10 + i, 20 + i, 30 + i, root=trunk[-1]) for i in range(2)] + [key_chain(7, 8, 9, 10)]
    tables: list[Table] = []
    tickets: list[tuple[Ticket, list[BlockKey]]] = []
    for _ in range(length):
        dice = rng.random()
        if dice < 0.4 or not tables:
            _start(ledger, rng, tables, rng.choice(chains))
        elif dice < 0.6:
            ledger.give(tables.pop(rng.randrange(len(tables))).ids)
        elif dice < 0.7:
            _share(ledger, tables, rng.choice(tables))
        elif dice < 0.8:
            ledger.take(ledger.stack.available + rng.randint(1, 3))
        elif dice < 0.9 and ledger.swap:
            _park(ledger, rng, tables, tickets)
        elif tickets:
            _return(ledger, rng, tables, tickets)
        else:
            ledger.find(rng.choice(chains)[rng.randint(0, 2) :])
    for table in tables:
        ledger.give(table.ids)
    for ticket, _ in tickets:
        ledger.drop(ticket)


def _start(ledger: Ledger, rng: random.Random, tables: list[Table], chain: list[BlockKey]) -> None:
    """A request arrives: what is cached is held, the rest is taken, filled and published."""
    chain = chain[: rng.randint(1, len(chain))]
    match = ledger.find(chain) if ledger.caches else None
    held: list[int] = []
    missing = len(chain) - (len(match.blocks) if match else 0)
    if missing + (match.num_taken if match else 0) > ledger.stack.available:
        return
    if match and match.blocks:
        answer = ledger.hold(match)
        ledger.check(answer is not None, "hold refused a match right after its find, with the blocks that it needs available")
        held = answer or []
    if missing:
        taken = ledger.take(missing) or []
        for block, key in zip(taken, chain[len(held) :], strict=True):
            if ledger.caches and rng.random() < 0.9:
                ledger.publish(block, key)
        held = held + taken
    tables.append(Table(held, chain))


def _share(ledger: Ledger, tables: list[Table], table: Table) -> None:
    """A fork: two tables list the same blocks."""
    for block in table.ids:
        ledger.refs[block] += 1
    tables.append(Table(list(table.ids), table.chain))


def _park(ledger: Ledger, rng: random.Random, tables: list[Table], tickets: list[tuple[Ticket, list[BlockKey]]]) -> None:
    table = tables[rng.randrange(len(tables))]
    ticket = ledger.swap_out(table.ids)
    if ticket is not None:
        tables.remove(table)
        ledger.give(table.ids)
        tickets.append((ticket, table.chain))


def _return(ledger: Ledger, rng: random.Random, tables: list[Table], tickets: list[tuple[Ticket, list[BlockKey]]]) -> None:
    at = rng.randrange(len(tickets))
    ticket, chain = tickets[at]
    if rng.random() < 0.3:
        ledger.drop(ticket)
    else:
        ids = ledger.swap_in(ticket)
        if ids is None:
            return
        tables.append(Table(ids, chain))
    tickets.pop(at)
