"""Slot `block_allocator` (stable, a stack of layers): which KV blocks to hand out, keep, evict and move.

The core owns block tables, reference counts, forks and copy-on-write. Layers see transitions only: a block is free, idle
(findable, without an owner) or used. Every operation is O(1) per block. Block 0 is the null block and never handed out.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import NamedTuple, Protocol, runtime_checkable


class BlockRef(NamedTuple):
    """A place for one block, on the device or on the host."""

    block: int
    on_host: bool = False


class Copy(NamedTuple):
    """One whole block, all layers, from source to target."""

    source: BlockRef
    target: BlockRef


class CopyJournal(Protocol):
    """Copies to make before the next step's first KV write. Program order is execution order; nothing is ever dropped."""

    def copy(self, source: BlockRef, target: BlockRef) -> None:
        """Append one copy. Later entries see it done: a source may be written and a target read by those that follow."""
        ...


class BlockKey:
    """One full block of a prefix: its tokens, its parent and what else its content depends on.

    Keys are interned by the core: two keys are equal exactly when they are one object, so a hash collision can cost time
    and never an answer. `hash` (a digest of parent hash, tokens and extra) is the identity outside this process.
    """

    __slots__ = ("__weakref__", "extra", "group", "hash", "parent", "tokens")

    def __init__(self, *, hash: bytes, parent: BlockKey | None, tokens: tuple[int, ...], extra: tuple[str, ...] = (), group: int = 0) -> None:
        self.hash = hash
        self.parent = parent
        self.tokens = tokens
        self.extra = extra
        self.group = group

    def __repr__(self) -> str:
        return f"<BlockKey {self.hash.hex()[:8]} {len(self.tokens)} tokens>"


@dataclass(frozen=True, slots=True)
class Blocks:
    """Device block ids, in table order."""

    ids: tuple[int, ...] = ()
    group: int = 0


@dataclass(frozen=True, slots=True)
class PrefixQuery:
    """Consecutive keys of one chain; the first need not be its root."""

    keys: Sequence[BlockKey]
    group: int = 0


@dataclass(frozen=True, slots=True)
class CachedBlock:
    """A key and where its block lies now."""

    key: BlockKey
    place: BlockRef


@dataclass(frozen=True, slots=True)
class PrefixMatch:
    """The longest prefix of a query that is there. Stale as soon as anything else was asked of the stack."""

    blocks: tuple[CachedBlock, ...] = ()
    num_taken: int = 0
    """How many of `available` holding it uses: idle blocks, and one device block for each host hit."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Durations:
    """A histogram of seconds since the start. counts[i] fell into bounds[i - 1] < seconds <= bounds[i]; the last count is of all above."""

    bounds: tuple[float, ...] = ()
    counts: tuple[int, ...] = (0,)
    sum: float = 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class AllocatorStats:
    """Blocks by state, summed over the stack, and what was seen of a sample of its blocks."""

    num_free: int = 0
    num_idle: int = 0
    """Without an owner, and findable."""
    num_host_used: int = 0
    """On the host: those of parked requests, and cached ones."""
    num_host_cached: int = 0
    """Of num_host_used: those that nobody parked; their room is there for whoever parks next."""
    num_evicted: int = 0
    """Device blocks that lost their key so far."""
    num_retained: int = 0
    """Device blocks that are kept longer because somebody asked for it."""
    residency: Durations = Durations()
    """From publish to eviction."""
    idle_before_evict: Durations = Durations()
    """From the last use to eviction."""
    reuse_gap: Durations = Durations()
    """From one use to the next, of blocks that were idle between."""


class BlockAllocator(Protocol):
    """One layer. It is built with `BuildContext.inner`, the layer beneath (None for the bottom), and delegates downwards.

    The core sees the top of the stack only: a layer passes on the optional abilities of the layer beneath that it does not
    mean to hide (`prefix_cache` above all), and keeps that layer in an attribute `inner`, so that audits reach it.
    """

    @property
    def available(self) -> int:
        """Free plus idle blocks: `take(available)` succeeds. The core checks it first, so nothing has to be undone."""
        ...

    def take(self, count: int) -> Blocks | None:
        """`count` free or idle blocks become used, evicting where needed. None, changing nothing, if that many are not there."""
        ...

    def give(self, blocks: Blocks) -> None:
        """The last reference to each block is gone; in table order. Published blocks may stay findable."""
        ...

    def find(self, query: PrefixQuery) -> PrefixMatch:
        """The longest findable prefix of the query. Takes nothing and disturbs no order."""
        ...

    def hold(self, match: PrefixMatch) -> Blocks | None:
        """Make every block of the match used (used ones included) and return their device ids, in order.

        None for a stale match. A host hit gets a device block, a copy in the journal and its key. What is held is safe
        from eviction before anything is taken.
        """
        ...

    def publish(self, block: int, key: BlockKey, retain_until: float | None = None) -> bool:
        """The block is full and will not change. False: another block holds that key already, this one stays private.

        retain_until: seconds of `BuildContext.clock`; until then other blocks are evicted first, as far as the layer allows
        that. It is the key that is retained, whichever block holds it and whatever is answered, and a used block that holds
        it already may be published again to retain it longer; a retention is never shortened. None asks for nothing.
        """
        ...

    def stats(self) -> AllocatorStats: ...


@runtime_checkable
class SupportsPrefixCache(Protocol):
    """Optional: says whether `publish` makes a block findable in this stack. Without it the core computes no keys."""

    @property
    def prefix_cache(self) -> bool: ...


@dataclass(frozen=True, slots=True)
class Ticket:
    """A parked request's claim on host slots, one for each block of its table. Slots of several tickets may be the same."""

    slots: tuple[int, ...]


@runtime_checkable
class SupportsSwap(Protocol):
    """Optional: parks the blocks of preempted requests on the host.

    A slot that a ticket lists is filled, or a device block still holds its key: what was parked always comes back. While it
    is parked, `find` finds every key of it. `swap_in` uses as many of `available` as a `hold` of those keys would, and one
    more for every block that had none.
    """

    @property
    def num_host_blocks(self) -> int:
        """Slots 0 .. num_host_blocks - 1 of the host. 0: it cannot swap."""
        ...

    def swap_out(self, blocks: Blocks, keys: Sequence[BlockKey | None]) -> Ticket | None:
        """Journal copies of blocks to the host; gives nothing back. None, changing nothing, when the host has no room.

        keys: what each block holds, in table order; None for a block that is not full, or that nobody else may read. A key
        that stays findable on the device only reserves its slot: the copy is made if it is evicted.
        """
        ...

    def swap_in(self, ticket: Ticket) -> Blocks | None:
        """Device blocks for the whole ticket, copies in the journal; drops the ticket. None changes nothing.

        A key that is on the device is held there, others come by copy and are findable on the device again.
        """
        ...

    def drop(self, ticket: Ticket) -> None:
        """It will not come back."""
        ...


@runtime_checkable
class SupportsEvictionSink(Protocol):
    """Optional: tells the layer above which block is about to lose its key."""

    def set_sink(self, sink: Callable[[int, BlockKey], None]) -> None:
        """`sink(block, key)` is called before `take` returns that block; it may only append copies to the journal."""
        ...


@runtime_checkable
class SupportsForgetting(Protocol):
    """Optional: drops a whole prefix cache. The core asks the top of the stack, between two steps."""

    def forget(self) -> int:
        """No key that was published so far is found any more; how many device blocks and cached host slots lost theirs.

        Used blocks stay used, idle ones become free; what is published later is found again. Each device block that loses its key
        is told to the sink, used ones too. What is parked comes back, and is found on the host as before.
        """
        ...


@runtime_checkable
class SupportsAudit(Protocol):
    """Optional: checks a layer's own invariants while the engine is idle."""

    def audit(self) -> Sequence[str]:
        """Every broken invariant in words; empty when the layer is sound. No table lists a block when it is called, but
        a layer above may keep idle blocks, which the one beneath takes for used."""
        ...
