"""Slot `executor` (provisional, one): on which ranks the workers run. Steps cross it as plain values."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import NamedTuple, Protocol

from .attention_backend import KvPlan
from .block_allocator import Copy
from .types import SamplingParams, TokenLogprob


class Admission(NamedTuple):
    """What the worker must know of a sample, sent with the first row after each admission."""

    token_ids: tuple[int, ...]
    """All known tokens: the prompt and, after a preemption, what was generated."""
    num_prompt_tokens: int
    params: SamplingParams
    seed: int
    sample: int
    """Which sample of its request; a leader's row may draw for `sample .. sample + num_samples - 1`."""
    end_ids: tuple[int, ...]
    """Ids that may end it; not drawn before `params.min_tokens`."""
    bad_words: tuple[tuple[int, ...], ...] = ()
    """Sequences of ids that the output must not complete: the last id of one is not drawn after the others."""


class RowInput(NamedTuple):
    """What one step does for one sample. Deltas only: the worker keeps its tokens and table from step to step."""

    id: int
    start: int
    """First position to compute; without an admission the worker's own count rules (only it knows what was accepted)."""
    num_tokens: int
    """Positions to compute, drafts included."""
    num_samples: int
    """Samples to draw from the last known token; 0 while the prefill is unfinished."""
    num_drafts: int
    table_start: int
    """The blocks below replace the table from this index on."""
    blocks: tuple[int, ...]
    admission: Admission | None


@dataclass(frozen=True, slots=True, kw_only=True)
class StepInput:
    """One step, as plain values that msgpack can carry."""

    number: int
    rows: tuple[RowInput, ...]
    copies: tuple[Copy, ...] = ()
    """In order, before the first KV write."""
    gone: tuple[int, ...] = ()
    """Samples that left since the last step."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RowMasks:
    """Bit masks of the ids that rows may draw: row of the step -> little-endian 32-bit words."""

    words: Mapping[int, bytes]


@dataclass(frozen=True, slots=True, kw_only=True)
class StepResult:
    """What a step drew, row by row in the order of its input."""

    tokens: tuple[tuple[tuple[int, ...], ...], ...]
    """[row][sample]: the accepted ids, oldest first; () for a row that draws nothing."""
    logprobs: Mapping[int, tuple[tuple[TokenLogprob, ...], ...]] = field(default_factory=dict)
    """row -> [sample][token], for the rows that asked."""
    prompt_logprobs: Mapping[int, tuple[int, tuple[TokenLogprob, ...]]] = field(default_factory=dict)
    """row -> (position of the first, one for each position of the prompt in turn). A row that computes positions s .. e - 1 of a
    prompt brings those of s + 1 .. e, as far as the prompt goes; only for samples admitted without any output."""
    faults: Mapping[int, str] = field(default_factory=dict)
    """row -> what went wrong with it; its tokens are ()."""
    seconds: float = 0.0
    """Time the worker spent on it."""
    copy_seconds: float = 0.0
    """Of that: what the copies of blocks took. 0 where nobody measured it."""


class Worker(Protocol):
    """One rank. Implemented by the core, built by composition, driven by an executor: submit, sample, collect, in that order."""

    @property
    def max_draft_tokens(self) -> int: ...

    def free_memory(self) -> int:
        """Bytes of the device that KV blocks may take."""
        ...

    def bytes_per_block(self, kv_dtype: str) -> int: ...

    def allocate_kv(self, plan: KvPlan) -> None: ...

    def submit(self, step: StepInput) -> None:
        """Copies, forward pass. Returns without waiting for the device."""
        ...

    def sample(self, masks: RowMasks | None) -> None:
        """Draw for the step submitted last. The results of earlier steps may be collected between its `submit` and this."""
        ...

    def collect(self) -> StepResult:
        """The oldest step whose result was not collected yet. Raises when the device has failed."""
        ...


WorkerFactory = Callable[[int, int], Worker]
"""(rank, size) -> a worker with its weights loaded; picklable."""


class Executor(Protocol):
    """The same verbs over all ranks. At most `max_in_flight` steps are submitted and not collected."""

    @property
    def max_in_flight(self) -> int: ...

    @property
    def max_draft_tokens(self) -> int: ...

    def free_memory(self) -> int: ...

    def bytes_per_block(self, kv_dtype: str) -> int: ...

    def allocate_kv(self, plan: KvPlan) -> None: ...

    def submit(self, step: StepInput) -> None: ...

    def sample(self, masks: RowMasks | None) -> None:
        """Draw for the step submitted last; called once for every step, before the next is submitted.

        What earlier steps drew decides the masks of a constrained row, so the order submit(k), collect() of every earlier
        step, sample(k) is allowed. Masks are read before it returns.
        """
        ...

    def collect(self) -> StepResult: ...

    def check_health(self) -> None:
        """Raises when a rank can no longer answer."""
        ...

    def shutdown(self) -> None:
        """Ends all ranks. May be called twice."""
        ...
