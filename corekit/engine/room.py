"""Who would have to give way for a request. Knows block tables and counts; changes nothing."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING

from corekit.api import PrefixMatch, RequestState

from .blocks import BlockTables
from .request import Request

if TYPE_CHECKING:
    from .limits import Limits
    from .row import Row


class Room:
    """What `request` would find with those in `gone` away. Invariant: `num_won` counts the blocks that only they list.

    A block that the request's own prefix hits is not won: it would lie idle, and be taken again.
    """

    def __init__(
        self,
        request: Request,
        match: PrefixMatch,
        blocks: BlockTables,
        limits: Limits,
        seats: int,
        budget: int,
        num_residents: int,
        rows: Mapping[Request, Row],
    ) -> None:
        self._request = request
        self._match = match
        self._blocks = blocks
        self._limits = limits
        self._rows = rows
        self._hit = {cached.place.block for cached in match.blocks if not cached.place.on_host}
        self._drops: dict[int, int] = {}
        self._seats = seats
        self._budget = budget
        self._num_others = num_residents
        self._num_won = 0
        self._gone: dict[Request, None] = {}

    def fewest(self, candidates: Iterable[Request]) -> list[Request] | None:
        """The first of candidates without whom it fits, less those that make no difference; None when not even all would do."""
        if not self._fits():
            for r in candidates:
                if r.state is RequestState.RUNNING and r is not self._request and r not in self._gone:
                    self._away(r)
                    if self._fits():
                        break
            else:
                return None
        taken = tuple(self._gone)
        for r in reversed(taken):  # those that were named last are spared first
            self._back(r)
            if not self._fits():
                self._away(r)
        return [r for r in taken if r in self._gone]

    def _fits(self) -> bool:
        """Whether the step would grant it tokens, or tell it that it outgrew the pool."""
        r, blocks = self._request, self._blocks
        most = min(self._budget, self._limits.long_prefill_token_threshold or self._budget)
        free = blocks.num_available + self._num_won
        if most <= 0:
            return False
        if r.state is RequestState.RUNNING:
            end = min(r.num_known, r.num_computed_tokens + most)
            return self._num_others == 1 or blocks.needed(r.table, r.num_computed_tokens, end, self._drops) <= free
        needed = max(blocks.span(len(r.tokens)), r.num_parked_blocks) - len(self._match.blocks) + self._match.num_taken
        return r.num_samples <= self._seats and (not self._num_others or free - needed >= self._limits.watermark_blocks)

    def _away(self, r: Request) -> None:
        self._gone[r] = None
        self._count(r, 1)
        refs, drops, hit, won = self._blocks.refs, self._drops, self._hit, 0
        for block in r.table:  # thousands of blocks when many share a prefix
            if refs[block] == 1:
                won += block not in hit
            else:
                drops[block] = dropped = drops.get(block, 0) + 1
                won += dropped == refs[block] and block not in hit
        self._num_won += won

    def _back(self, r: Request) -> None:
        del self._gone[r]
        self._count(r, -1)
        refs, drops, hit, lost = self._blocks.refs, self._drops, self._hit, 0
        for block in r.table:
            if refs[block] == 1:
                lost += block not in hit
            else:
                lost += drops[block] == refs[block] and block not in hit
                drops[block] -= 1
        self._num_won -= lost

    def _count(self, r: Request, sign: int) -> None:
        self._seats += sign * r.num_samples
        row = self._rows.get(r)
        self._budget += sign * row.num_tokens if row else 0  # what it got in this step
        self._num_others -= sign
