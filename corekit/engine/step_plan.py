"""The step in the making: what a policy asks, made safe. Knows counts and blocks; never tensors, text or what comes after plan().

Every grant, refusal and preemption keeps the limits by itself: a policy may call these in any order.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import cast

from corekit.api import PASSED_OVER, Grant, PreemptMode, PrefixMatch, Reason, Refusal, RequestState, RequestView

from .blocks import NO_MATCH, BlockTables, BrokenStackError
from .claims import Claims
from .limits import Limits
from .live import Live
from .parking import Parking
from .prefixes import Prefixes
from .request import Request, Shortage
from .room import Room
from .row import Row

REFUSED: Mapping[Reason, Grant] = {reason: Grant(reason=reason) for reason in Reason}
ONE_TOKEN = Grant(1)
PREEMPT_MODES = (None, "recompute", "swap")


class Step:
    """Implements StepPlan. `running` and `waiting` hold still during plan(); `resident`, `preempted` and the numbers are live."""

    def __init__(self, *, limits: Limits, blocks: BlockTables, prefixes: Prefixes, claims: Claims, parking: Parking, clock: Callable[[], float]) -> None:
        self._limits = limits
        self._blocks = blocks
        self._prefixes = prefixes
        self._claims = claims
        self._parking = parking
        self._clock = clock
        self._open = False
        self._matches: dict[Request, PrefixMatch] = {}
        self.number = -1
        self.now = 0.0
        self._seats = limits.max_num_seqs
        self._budget = 0
        self.rows: dict[Request, Row] = {}
        self.residents: list[Request] = []
        self.resident = Live(self.residents)
        self.running: Sequence[Request] = ()
        self.waiting: Sequence[Request] = ()
        self.num_returning = 0
        self.victims: list[Request] = []
        self.preempted = Live(self.victims)
        self.admitted: list[Request] = []
        self.awaiting: list[Request] = []
        self.ended: list[Request] = []
        self.broken_words: list[str] = []
        """Methods of the stack that refused what it said it has."""

    def begin(self, waiting: Sequence[Request], num_returning: int) -> None:
        self.number += 1
        self.now = self._clock()
        self.rows, self.admitted, self.awaiting, self.ended, self.broken_words = {}, [], [], [], []
        self.victims.clear()
        self.running, self.waiting, self.num_returning = tuple(self.residents), tuple(waiting), num_returning
        self._budget = self._limits.max_num_batched_tokens
        self._open = True

    def close(self) -> None:
        """From here on the policy's calls raise: a plan that was kept cannot touch a later step."""
        self._open = False
        self._matches.clear()

    @property
    def fault(self) -> BrokenStackError | None:
        """What a layer raised, whatever became of it in the policy."""
        return self._blocks.fault

    @property
    def stack_name(self) -> str:
        return type(self._blocks.stack).__name__

    @property
    def token_budget(self) -> int:
        return self._budget

    @property
    def seats(self) -> int:
        return self._seats

    @property
    def num_awaiting(self) -> int:
        return self._claims.num_awaiting

    @property
    def free_blocks(self) -> int:
        return self._blocks.num_available

    def cached_tokens(self, request: RequestView) -> int:
        self._check_open()
        r = cast(Request, request)
        if r not in self._matches:
            self._matches[r] = self._prefixes.match(r)
        return len(self._matches[r].blocks) * self._blocks.block_size

    # -- granting

    def schedule_many(self, requests: Sequence[RequestView], start: int = 0) -> Refusal | None:
        self._check_open()
        mine = cast(Sequence[Request], requests)
        number, size, refs, rows = self.number, self._blocks.block_size, self._blocks.refs, self.rows
        running, plain = RequestState.RUNNING, not self._limits.max_draft_tokens
        for at in range(start, len(mine)):
            r = mine[at]
            computed = r.num_computed_tokens
            if (
                plain
                and r.state is running
                and self._budget
                and r.granted_step != number
                and len(r.tokens) + r.num_in_flight == computed + 1 < r.max_known
                and computed % size
                and refs[r.table[-1]] == 1
                and r.num_samples == 1
            ):  # a decode inside a block of its own: the common case, written out because a thousand of them are a step
                rows[r] = Row(r, computed, 1, 1, 0)
                r.granted_step = number
                r.num_computed_tokens = computed + 1
                r.num_in_flight += 1
                self._budget -= 1
                continue
            if r.awaits is not None:  # thousands may, in an order that a policy keeps
                continue
            grant = self.schedule(r)
            if grant.reason is not None and grant.reason not in PASSED_OVER:
                return Refusal(at, r, grant.reason)
        return None

    def schedule(self, request: RequestView, max_tokens: int | None = None) -> Grant:
        self._check_open()
        r = cast(Request, request)
        if r.granted_step == self.number:
            return REFUSED[Reason.SCHEDULED if r in self.rows else Reason.ENDED if r in self.ended else Reason.PREEMPTED]
        if r.state is RequestState.FINISHED:
            return REFUSED[Reason.ENDED]
        if r.num_known >= r.max_known:
            return REFUSED[Reason.NOT_READY]  # the rest of its answer is in flight
        most = self._budget if max_tokens is None else min(operator.index(max_tokens), self._budget)
        most = min(most, self._limits.long_prefill_token_threshold or most)
        if most <= 0:
            return REFUSED[Reason.BUDGET]
        return self._continue(r, most) if r.state is RequestState.RUNNING else self._admit(r, most)

    def _continue(self, r: Request, most: int) -> Grant:
        start = r.num_computed_tokens
        count = min(r.num_known - start, most)
        if count <= 0:
            return REFUSED[Reason.NOT_READY]
        if self._blocks.needed(r.table, start, start + count) > self.free_blocks:
            return REFUSED[Reason.BLOCKS] if len(self.residents) > 1 else self._end(r)
        return self._grant(r, start, count, self._drafts(r, start, count, most))

    def _drafts(self, r: Request, start: int, count: int, most: int) -> int:
        """Guesses that a decode may carry: within the budget, the answer's length and the free blocks."""
        if not self._limits.max_draft_tokens or r.constraint is not None or count > 1 or r.num_known == r.num_prompt_tokens or start + 1 < r.num_known:
            return 0
        drafts = max(0, min(self._limits.max_draft_tokens, most - 1, r.max_known - r.num_known - 1))
        return drafts if self._blocks.needed(r.table, start, start + 1 + drafts) <= self.free_blocks else 0

    def _admit(self, r: Request, most: int) -> Grant:
        if r.steps_in_flight or not r.queued or r.awaits is not None:
            return REFUSED[Reason.NOT_READY]  # its last tokens are not known here yet, or another computes its prefix
        if r.num_samples > self._seats:
            return REFUSED[Reason.SEATS]
        if r.shortage is not None and self._is_still_short(r, r.shortage):
            return REFUSED[Reason.BLOCKS if r.shortage.num_needed > self.free_blocks else Reason.WATERMARK]
        blocks, match = self._blocks, self._prefixes.match(r)
        if (key := self._prefixes.awaited(r, len(match.blocks), self.number)) is not None:
            self._claims.wait(r, key)
            self.awaiting.append(r)
            return REFUSED[Reason.NOT_READY]
        start = len(match.blocks) * blocks.block_size if r.ticket is None else r.num_computed_tokens
        count = min(len(r.tokens) - start, most)
        # Whole, not by its first chunk: a prompt that does not fit yet would be computed, give way to itself, and begin again.
        end = len(r.tokens) if self.residents else start + count
        needed = max(blocks.span(end), r.num_parked_blocks) - len(match.blocks) + match.num_taken
        lacking = needed - self.free_blocks
        if not self.residents and lacking > 0:
            return self._end(r)
        if self.residents and lacking + self._limits.watermark_blocks > 0:
            r.shortage = Shortage(needed, lacking + self._limits.watermark_blocks, blocks.num_given, len(match.blocks))
            return REFUSED[Reason.BLOCKS if lacking > 0 else Reason.WATERMARK]
        table = blocks.hold(match) if r.ticket is None else blocks.unpark(r.ticket)
        if table is None:
            return self._mistrust(r, "hold" if r.ticket is None else "swap_in")
        r.table = table
        if r.ticket is None:
            r.num_computed_tokens = r.num_committed = start
            r.num_published = len(match.blocks)
        r.ticket = None
        grant = self._grant(r, start, count, 0)
        if not grant:  # the stack broke its word: nothing is kept
            blocks.release(table)
            r.lose()
            if r.state is RequestState.PARKED:
                r.state = RequestState.PREEMPTED
            return grant
        self._settle_in(r, match)
        return grant

    def _settle_in(self, r: Request, match: PrefixMatch) -> None:
        """It holds blocks and a seat now."""
        r.state = RequestState.RUNNING
        self.residents.append(r)
        self.admitted.append(r)
        self._seats -= r.num_samples
        self._prefixes.begin(r, match, self.number, self.now)
        r.mistrusts, r.shortage = False, None

    def _is_still_short(self, r: Request, short: Shortage, num_more: int = 0) -> bool:
        """What it lacked cannot have come together since, nor with num_more blocks: a block that was given back is one, unless its prefix grew."""
        if not self.residents or self._blocks.num_given - short.num_given + num_more >= short.num_lacking:
            return False
        return not self._prefixes.has_grown(r, short.num_found, self.number)

    def _mistrust(self, r: Request, method: str) -> Grant:
        """The stack has what it does not give. It computes all of it, or it might wait for ever."""
        self.broken_words.append(method)
        r.mistrusts = True
        if r.ticket is not None:
            self._blocks.forget(r.ticket)
            r.ticket, r.state = None, RequestState.PREEMPTED
            r.lose()
        return REFUSED[Reason.BLOCKS]

    def _grant(self, r: Request, start: int, count: int, num_drafts: int) -> Grant:
        num_samples = 0 if start + count < r.num_known else r.num_samples if r.num_known == r.num_prompt_tokens else 1
        count += num_drafts
        changed = self._blocks.extend(r.table, start, start + count)
        if changed is None:
            self.broken_words.append("take")
            return REFUSED[Reason.BLOCKS]
        r.table_sent = min(r.table_sent, changed)
        row = self.rows[r] = Row(r, start, count, num_samples, num_drafts)
        r.granted_step = self.number
        r.num_computed_tokens = start + count
        r.num_in_flight += row.max_new_tokens
        self._budget -= count
        return ONE_TOKEN if count == 1 else Grant(count)

    def _end(self, r: Request) -> Grant:
        """It outgrew the pool alone; that is known once nothing of it is in flight."""
        if r.steps_in_flight:
            return REFUSED[Reason.NOT_READY]
        r.granted_step = self.number
        self.ended.append(r)
        return REFUSED[Reason.ENDED]

    # -- giving way

    def victims_for(self, request: RequestView, candidates: Iterable[RequestView]) -> Sequence[RequestView] | None:
        self._check_open()
        r = cast(Request, request)
        waits, known = r.state is not RequestState.RUNNING, r.num_known
        away = waits and (r.steps_in_flight or not r.queued or r.awaits is not None)
        if away or r.granted_step == self.number or known >= r.max_known or r.num_computed_tokens >= known:  # room is not what it lacks
            return None
        those = list(cast(Iterable[Request], candidates))
        short = r.shortage if waits and len(those) < len(self.residents) else None
        if short is not None and self._is_still_short(r, short, sum(one.num_blocks for one in those)):
            return None
        match = self._prefixes.match(r) if waits else NO_MATCH
        if waits and self._prefixes.awaited(r, len(match.blocks), self.number) is not None:
            return None
        room = Room(r, match, self._blocks, self._limits, self._seats, self._budget, len(self.residents), self.rows)
        return room.fewest(those)

    def preempt(self, request: RequestView, mode: PreemptMode | None = None) -> None:
        self._check_open()
        r = cast(Request, request)
        if mode not in PREEMPT_MODES:
            raise ValueError(f"preempt mode {mode!r}: it is one of {PREEMPT_MODES}")
        if r.state is not RequestState.RUNNING:
            raise ValueError(f"{r!r} holds no blocks: only those in step.resident can be preempted")
        row = self.rows.pop(r, None)
        if row is not None:
            self._budget += row.num_tokens
            r.num_in_flight -= row.max_new_tokens
            r.num_computed_tokens = row.start
        r.granted_step = self.number
        r.num_preemptions += 1
        r.ticket = self._parking.park(r, mode or self._limits.preemption)
        self.vacate(r)
        r.state = RequestState.PREEMPTED if r.ticket is None else RequestState.PARKED
        if r.ticket is None:
            r.lose()
        else:
            r.num_published = self._parking.num_keyed(r)
        self.victims.append(r)

    def vacate(self, r: Request) -> None:
        """Give up blocks and seat."""
        self._claims.release(r)
        self.residents.remove(r)
        self._seats += r.num_samples
        self._blocks.release(r.table)
        r.table, r.table_sent, r.sent = [], 0, False

    def _check_open(self) -> None:
        if not self._open:
            raise RuntimeError("a StepPlan is valid during plan() only")
