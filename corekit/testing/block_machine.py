"""An engine that does what the dice say, in steps, over an allocator stack; its memory is a model, and every request reads it back.

Between two submitted steps nothing of the journal runs: requests arrive, share, fork, write copies of what others list, are
preempted, parked, brought back, dropped and aborted. Then the copies run in program order, and every row writes its tokens.
Owned by the kit of slot `block_allocator`; knows no implementation.
"""

from __future__ import annotations

import random
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

from corekit.api import BlockKey, BlockRef, PrefixMatch, Ticket

from .block_calls import BLOCK_SIZE, Calls
from .block_memory import Life, Memory, Row, Texts, span

MAX_LIVES = 7


class Machine:
    """Invariant: after every submitted step, each running request reads exactly its own contents at every computed position."""

    def __init__(self, calls: Calls, seed: int) -> None:
        self.calls = calls
        self.memory = Memory()
        self.texts = Texts()
        self.lives: list[Life] = []
        self._dice = random.Random(seed)
        self._depth = self._dice.randint(0, 1)
        self._swaps = self._dice.choice((0.4, 0.9)) if calls.swap else 0.0
        self._prompts = [[self._dice.randint(0, 1) for _ in range(3 * BLOCK_SIZE)] for _ in range(2)]
        self._rows: dict[Life, Row] = {}
        self._submitted: list[list[Row]] = []

    def run(self, num_steps: int) -> None:
        for _ in range(num_steps):
            self._plan()
            self._submit()
            while len(self._submitted) > self._depth:
                self._commit(self._submitted.pop(0))

    def end(self) -> None:
        """Every request is aborted, in whatever state it is."""
        while self.lives:
            self._end(self._dice.choice(self.lives))
        while self._submitted:
            self._commit(self._submitted.pop(0))

    # -- one step

    def _plan(self) -> None:
        self.calls.clock.now += self._dice.choice((0.0, 1.0, 5.0))
        for life in list(self.lives):
            self._schedule(life)
        moves = (self._arrive, self._arrive, self._preempt, self._abort, self._look, self._ask_again)
        for _ in range(self._dice.randint(1, 4)):
            self._dice.choice(moves)()

    def _schedule(self, life: Life) -> None:
        """It runs on, or comes back, or begins; most of the time."""
        if life.gone or self._dice.random() < 0.3:
            return
        if life.table:
            self._advance(life)
        elif life.in_flight:  # its rows have to commit first
            return
        elif life.ticket:
            self._bring_back(life, life.ticket)
        else:
            self._start(life)

    def _submit(self) -> None:
        """Without a row nothing is submitted, and the copies stay."""
        if not self._rows:
            return
        rows, self._rows = list(self._rows.values()), {}
        copies = self.calls.journal.drain()
        for source, target in copies:
            self.calls.check_copy(source, target)
        self.memory.run(copies)
        for row in rows:
            row.life.in_flight += 1
            self.memory.write(row.life.table, row.start, row.life.contents[row.start : row.end])
        for life in self.lives:
            there, right = self.memory.read(life.table, life.computed), life.contents[: life.computed]
            if life.table and there != right:
                at = next(at for at in range(len(right)) if there[at] != right[at])
                self.calls.check(False, f"a request with blocks {life.table} reads at position {at} what is not its own, after the step's copies and writes")
        self.calls.check_stats()
        self.calls.check_found()
        self._submitted.append(rows)

    def _commit(self, rows: Sequence[Row]) -> None:
        for row in rows:
            life = row.life
            life.in_flight -= 1
            if life.gone or row.recomputed != life.recomputed:
                continue
            life.committed = row.end
            if life.table:
                self._publish(life)
            if row.end == life.num_prompt:
                self._fork(life)
            if row.end == len(life.contents):
                self._end(life)

    def _publish(self, life: Life) -> None:
        """Full, committed blocks, each while one table lists it."""
        keys = self._keys(life, life.committed // BLOCK_SIZE)
        while life.published < len(keys) and self.calls.refs[life.table[life.published]] == 1:
            self.calls.publish(life.table[life.published], keys[life.published], self._until(life))
            life.published += 1

    def _fork(self, leader: Life) -> None:
        """The other samples share the blocks of the prompt; the leader may have written more into the last of them."""
        full = leader.num_prompt // BLOCK_SIZE
        for _ in range(1, leader.num_samples):
            prompt = leader.contents[: leader.num_prompt]
            life = Life(self.texts.contents(self._draw(6), prompt), len(prompt), private=leader.private, retain=leader.retain)
            if leader.table:
                life.table = leader.table[: span(len(prompt))]
                self.calls.share(life.table)
                life.computed = life.committed = len(prompt)
                life.published = min(full, leader.published)
            self.lives.append(life)
        leader.num_samples = 1

    # -- moves

    def _arrive(self) -> None:
        if len(self.lives) < MAX_LIVES:
            prompt = self._dice.choice(self._prompts)
            if self._dice.random() < 0.6:  # else one that was there, whole
                prompt = prompt[: self._dice.randint(0, 3 * BLOCK_SIZE)] + self._draw(4)
                self._prompts.append(prompt)
            life = Life(self.texts.contents(prompt + self._draw(8)), len(prompt))
            life.num_samples = self._dice.choice((1, 1, 3))
            life.private = self._dice.random() < 0.15
            life.retain = self._dice.choice((0.0, 0.0, 7.0))
            self.lives.append(life)
            self._start(life)

    def _start(self, life: Life) -> None:
        """What the prefix cache has is held; the last known token is always computed."""
        keys = self._keys(life, (life.known - 1) // BLOCK_SIZE)
        match = self.calls.find(keys) if keys else PrefixMatch()
        if span(life.known) - len(match.blocks) + match.num_taken > self.calls.stack.available:
            return
        if match.blocks:
            held = self.calls.hold(match)
            self.calls.check(held is not None, "hold refused a match right after its find, with the blocks that it needs available")
            life.table = held or []
            life.published = len(life.table)
            life.computed = life.committed = len(life.table) * BLOCK_SIZE
            self._prolong(life)
        self._advance(life)

    def _advance(self, life: Life) -> None:
        """The next chunk of one that runs, or begins. Somebody gives way when it finds no room."""
        start = life.computed
        end = min(start + self._dice.randint(1, 6), life.num_prompt if start < life.num_prompt else len(life.contents))
        if start == end or life in self._rows:
            return
        while not self._extend(life.table, start, end):
            victim = self._one([other for other in self.lives if other.table and other is not life])
            if victim is None:  # it outgrew the pool
                self._end(life)
                return
            self._give_way(victim)
        life.computed = end
        self._rows[life] = Row(life=life, start=start, end=end, recomputed=life.recomputed)

    def _extend(self, table: list[int], start: int, end: int) -> bool:
        """Make positions start..end-1 writable: a block that others list is copied first."""
        first, refs = start // BLOCK_SIZE, self.calls.refs
        copied = first < len(table) and refs[table[first]] > 1
        count = max(0, span(end) - len(table)) + copied
        fresh = self.calls.take(count) if count else []
        if fresh is None:
            return False
        if copied:
            old, table[first] = table[first], fresh.pop(0)
            self.calls.journal.copy(BlockRef(old), BlockRef(table[first]))
            self.calls.give([old])
        table += fresh
        return True

    def _preempt(self) -> None:
        if victim := self._one([life for life in self.lives if life.table]):
            self._give_way(victim)

    def _give_way(self, life: Life) -> None:
        """It is parked, where there is room; or will compute everything again. What it was to compute in this step it does not."""
        row = self._rows.pop(life, None)
        if row is not None:
            life.computed = row.start
        if life.computed and self._dice.random() < self._swaps:
            parked = life.table[: self._dice.choice((span(life.computed), len(life.table)))]
            keys = self._keys(life, life.committed // BLOCK_SIZE)
            life.ticket, life.published = self.calls.swap_out(parked, [*keys, *[None] * (len(parked) - len(keys))]), len(keys)
        table, life.table = life.table, []
        self.calls.give(table)
        if life.ticket is None:
            life.known = max(life.known, life.computed)
            life.computed = life.committed = life.published = 0
            life.recomputed += 1

    def _bring_back(self, life: Life, ticket: Ticket) -> None:
        table = self.calls.swap_in(ticket)
        if table is not None:
            life.table, life.ticket = table, None
            self._prolong(life)
            self._advance(life)

    def _abort(self) -> None:
        if self._dice.random() < 0.5 and (life := self._one(self.lives)):
            self._end(life)

    def _end(self, life: Life) -> None:
        self._rows.pop(life, None)
        self.lives.remove(life)
        life.gone = True
        if life.ticket is not None:
            self.calls.drop(life.ticket)
        table, life.table = life.table, []
        self.calls.give(table)

    def _look(self) -> None:
        life = self._one(self.lives)
        if life and (keys := self._keys(life, len(life.contents) // BLOCK_SIZE)[self._dice.randint(0, 2) :]):
            self.calls.find(keys)

    def _ask_again(self) -> None:
        """For more than there is."""
        self.calls.take(self.calls.stack.available + self._dice.randint(1, 3))

    # -- the rest

    def _prolong(self, life: Life) -> None:
        """Publish again what was hit: a used block that holds its key."""
        if life.retain:
            for block, key in zip(life.table, self._keys(life, life.published), strict=False):
                self.calls.publish(block, key, self._until(life))

    def _until(self, life: Life) -> float | None:
        return self.calls.clock.now + life.retain if life.retain else None

    def _keys(self, life: Life, count: int) -> list[BlockKey]:
        return self.texts.keys(life.contents, count) if self.calls.caches and not life.private else []

    def _draw(self, most: int) -> list[int]:
        """Few different tokens, so that requests meet."""
        return [self._dice.randint(0, 1) for _ in range(self._dice.randint(1, most))]

    def _one(self, lives: Sequence[Life]) -> Life | None:
        return self._dice.choice(lives) if lives else None


@contextmanager
def told(seed: int) -> Iterator[None]:
    """A law that fails says how to come there again."""
    try:
        yield
    except Exception as error:
        error.add_note(f"Machine(calls, seed={seed})")
        raise
