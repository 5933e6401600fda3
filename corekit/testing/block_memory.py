"""What requests compute and read back: contents by position, a model of memory, a request and its rows. Knows no allocator.

Owned by the kit of slot `block_allocator`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Final

from corekit.api import BlockKey, BlockRef, Copy, Ticket

from .block_calls import BLOCK_SIZE

NOTHING: Final = (0,) * BLOCK_SIZE


def span(num_positions: int) -> int:
    """Blocks that so many positions take."""
    return -(-num_positions // BLOCK_SIZE)


class Texts:
    """Invariant: a position's content stands for all tokens up to it, so equal contents are equal prefixes. Interns keys, as the core does."""

    def __init__(self) -> None:
        self._content: dict[tuple[int, int], int] = {}
        self._tokens = [0]
        self._keys: dict[int, BlockKey] = {}

    def contents(self, tokens: Sequence[int], after: Sequence[int] = ()) -> list[int]:
        """One number for each position, after those that are given."""
        made = list(after)
        for token in tokens:
            made.append(self._content.setdefault((made[-1] if made else 0, token), len(self._tokens)))
            if made[-1] == len(self._tokens):
                self._tokens.append(token)
        return made

    def keys(self, contents: Sequence[int], count: int) -> list[BlockKey]:
        """Of the first `count` blocks."""
        keys: list[BlockKey] = []
        for end in range(BLOCK_SIZE - 1, count * BLOCK_SIZE, BLOCK_SIZE):
            key = self._keys.get(contents[end])
            if key is None:
                tokens = tuple(self._tokens[content] for content in contents[end + 1 - BLOCK_SIZE : end + 1])
                key = BlockKey(hash=b"%d" % contents[end], parent=keys[-1] if keys else None, tokens=tokens)
                self._keys[contents[end]] = key
            keys.append(key)
        return keys


class Memory:
    """What every block and slot holds once the copies that were made have run."""

    def __init__(self) -> None:
        self._places: dict[BlockRef, tuple[int, ...]] = {}

    def run(self, copies: Sequence[Copy]) -> None:
        """What was never written may be copied, and is nothing."""
        for source, target in copies:
            self._places[target] = self._places.get(source, NOTHING)

    def write(self, table: Sequence[int], start: int, contents: Sequence[int]) -> None:
        """From position `start` on. What follows in the last block is no use to anybody."""
        end = start + len(contents)
        for at in range(start // BLOCK_SIZE, span(end)):
            first, place = at * BLOCK_SIZE, BlockRef(table[at])
            kept = self._places.get(place, NOTHING)[: max(0, start - first)]
            new = contents[max(0, first - start) : first + BLOCK_SIZE - start]
            self._places[place] = (*kept, *new, *NOTHING)[:BLOCK_SIZE]

    def read(self, table: Sequence[int], count: int) -> list[int]:
        """What a request finds at its first `count` positions."""
        found: list[int] = []
        for block in table[: span(count)]:
            found += self._places.get(BlockRef(block), NOTHING)
        return found[:count]


@dataclass(eq=False, slots=True)
class Life:
    """One sample. Its tokens are known beforehand, and computed by rows. It waits (no table, no ticket), runs, or is parked."""

    contents: list[int]
    num_prompt: int
    num_samples: int = 1
    private: bool = False
    """Nobody else may read its blocks: it has no keys."""
    retain: float = 0.0
    table: list[int] = field(default_factory=list)
    ticket: Ticket | None = None
    known: int = 0
    """Positions whose tokens it has: the prompt, and what it had generated when it lost its blocks."""
    computed: int = 0
    committed: int = 0
    published: int = 0
    in_flight: int = 0
    recomputed: int = 0
    gone: bool = False

    def __post_init__(self) -> None:
        self.known = self.num_prompt


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """Positions start..end-1 of one life, in the table that it had when it was planned."""

    life: Life
    start: int
    end: int
    recomputed: int
