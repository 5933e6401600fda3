"""One request and its samples, for their whole life. A policy's RequestView is the Request itself. Knows no blocks' owner but the table."""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

from corekit.api import BlockKey, FinishReason, RequestState, SamplingParams, Ticket, TokenLogprob

from .constraints import Constraint


@dataclass(frozen=True, slots=True, kw_only=True)
class NewRequest:
    """What the door lets in: checked, tokenized, with every default resolved."""

    request_id: str
    token_ids: tuple[int, ...]
    params: SamplingParams
    max_tokens: int
    seed: int = 0
    """Of the draws; the client chooses one where the parameters have none."""
    end_ids: tuple[int, ...]
    """Ids that end a sample: stop ids, and EOS unless it is ignored."""
    bad_words: tuple[tuple[int, ...], ...] = ()
    """Sequences of ids that the output must not complete."""
    constraints: tuple[Constraint | None, ...] = ()
    """One entry for each sample, or nothing."""
    arrival_time: float = 0.0
    priority: int = 0
    tenant: str = ""
    deadline: float | None = None


class Group:
    """All samples of one request, and what its observers want to know at the end."""

    __slots__ = (
        "admitted_time",
        "arrival",
        "asked",
        "end_ids",
        "extra",
        "finish_reason",
        "first_token_time",
        "num_cached_tokens",
        "prompt_logprobs",
        "retention",
        "samples",
    )

    def __init__(self, asked: NewRequest, arrival: int) -> None:
        self.asked = asked
        self.arrival = arrival
        self.end_ids = frozenset(asked.end_ids)
        self.extra = (f"salt:{asked.params.cache_salt}",) if asked.params.cache_salt else ()  # of its keys
        self.retention = asked.params.cache_retention
        self.samples: list[Request] = []
        self.num_cached_tokens = 0
        self.finish_reason: FinishReason = "abort"  # of the sample that finished last
        self.admitted_time: float | None = None
        self.first_token_time: float | None = None
        wants = asked.params.prompt_logprobs is not None
        self.prompt_logprobs: list[TokenLogprob | None] | None = [None] * len(asked.token_ids) if wants else None  # until they were sent

    def keep_prompt_logprobs(self, first: int, scored: tuple[TokenLogprob, ...]) -> None:
        """By position, so that a prompt that is computed again overwrites and never appends. Ignored once they were sent."""
        if self.prompt_logprobs is not None:
            self.prompt_logprobs[first : first + len(scored)] = scored

    def take_prompt_logprobs(self) -> tuple[TokenLogprob | None, ...] | None:
        """Once, to go with the first tokens of the request."""
        if self.prompt_logprobs is None:
            return None
        taken, self.prompt_logprobs = tuple(self.prompt_logprobs), None
        return taken

    @property
    def finished(self) -> bool:
        return all(r.state is RequestState.FINISHED for r in self.samples)


class Shortage(NamedTuple):
    """Why a request that waits found no room, so that it need not look for its prefix in each step until there may be some."""

    num_needed: int
    num_lacking: int
    """Of them, and of those that it has to leave free."""
    num_given: int
    """BlockTables.num_given at that time."""
    num_found: int
    """Blocks of it that the stack had."""


class Request:
    """One sample.

    Invariant: 0 <= num_committed <= num_computed_tokens <= len(tokens) + num_in_flight, and the table covers the computed
    positions (it is empty unless the state is RUNNING; while it is PARKED the ticket stands for it). Computed and in-flight
    counts are upper bounds while rows are in flight. A request that lost its blocks is not admitted again before its rows in
    flight have committed, so that a row never speaks for another life of the blocks.
    """

    __slots__ = (
        "awaits",
        "claim_end",
        "constraint",
        "fresh",
        "granted_step",
        "group",
        "id",
        "keys",
        "max_known",
        "mistrusts",
        "num_committed",
        "num_computed_tokens",
        "num_in_flight",
        "num_preemptions",
        "num_prompt_tokens",
        "num_published",
        "num_samples",
        "queued",
        "sample",
        "sent",
        "shortage",
        "state",
        "steps_in_flight",
        "table",
        "table_sent",
        "ticket",
        "tokens",
    )

    def __init__(self, id: int, group: Group, *, sample: int = 0, num_samples: int = 1) -> None:
        asked = group.asked
        self.id = id
        self.group = group
        self.sample = sample
        self.num_samples = num_samples  # seats: n until the prefill commits and the siblings appear, then 1
        self.state = RequestState.WAITING
        self.constraint = asked.constraints[sample] if asked.constraints else None
        self.tokens = list(asked.token_ids)
        self.num_prompt_tokens = len(self.tokens)
        self.max_known = self.num_prompt_tokens + asked.max_tokens
        self.num_computed_tokens = 0  # positions whose KV is there or planned
        self.num_committed = 0  # positions whose KV is known to be there
        self.num_in_flight = 0  # sampled tokens that no commit has delivered
        self.steps_in_flight = 0  # rows that no commit has delivered
        self.num_published = 0  # leading blocks offered to the stack
        self.num_preemptions = 0
        self.table: list[int] = []
        self.table_sent = 0  # leading blocks of the table that the worker knows
        self.ticket: Ticket | None = None  # of its blocks on the host
        self.keys: list[BlockKey] = []
        self.claim_end = 0  # it computes its keys before this index, those that it has not published
        self.awaits: BlockKey | None = None  # another request computes it
        self.shortage: Shortage | None = None  # of blocks, when it asked last
        self.mistrusts = False  # the stack did not give it what it found
        self.sent = False  # the worker has its tokens
        self.granted_step = -1  # last step that granted, preempted or ended it
        self.queued = False  # stands in the waiting list
        self.fresh = False  # never ran: it counts for the limits of the queue

    def lose(self) -> None:
        """Nothing of what was computed is there any more."""
        self.table, self.num_computed_tokens, self.num_committed, self.num_published = [], 0, 0, 0

    @property
    def arrival(self) -> int:
        return self.group.arrival

    @property
    def arrival_time(self) -> float:
        return self.group.asked.arrival_time

    @property
    def priority(self) -> int:
        return self.group.asked.priority

    @property
    def tenant(self) -> str:
        return self.group.asked.tenant

    @property
    def deadline(self) -> float | None:
        return self.group.asked.deadline

    @property
    def num_known(self) -> int:
        """Tokens that will be known once everything in flight has committed."""
        return len(self.tokens) + self.num_in_flight

    @property
    def num_output_tokens(self) -> int:
        return len(self.tokens) - self.num_prompt_tokens

    @property
    def max_output_tokens(self) -> int:
        return self.group.asked.max_tokens

    @property
    def is_prefill(self) -> bool:
        return self.num_computed_tokens < self.num_known - 1

    @property
    def num_blocks(self) -> int:
        return len(self.table)

    @property
    def num_parked_blocks(self) -> int:
        """More than its tokens take, where guesses that were in flight when it was parked have been rejected."""
        return len(self.ticket.slots) if self.ticket is not None else 0

    def __repr__(self) -> str:
        return f"<Request {self.id} {self.state.value} {self.num_computed_tokens}/{self.num_known} blocks {self.table}>"
