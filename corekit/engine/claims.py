"""Who is computing which key right now, and who waits for it, so that equal prefixes in flight are computed once.

Knows requests and their keys; nothing of blocks.
"""

from __future__ import annotations

from collections.abc import Iterator

from corekit.api import BlockKey

from .request import Request


class Claims:
    """Invariant: a key has one writer at most, which is running and has not published it; whoever awaits a key awaits it of its writer.

    A writer that got no tokens in a step keeps its claims until somebody else takes them over; nobody waits for it: it may have
    to wait longer than they.
    """

    def __init__(self, block_size: int) -> None:
        self._size = block_size
        self._writers: dict[BlockKey, Request] = {}
        self._awaiting: dict[BlockKey, dict[Request, None]] = {}
        self.num_awaiting = 0
        self.free: dict[Request, None] = {}
        """Those whose wait has ended, and who stand nowhere since."""

    def claim(self, r: Request, first: int, end: int, step: int) -> None:
        """It is about to compute its keys first .. end - 1, as far as nobody else is at it."""
        for key in r.keys[first:end]:
            writer = self._writers.setdefault(key, r)
            if writer is not r and not self._moves(writer, step):
                self._writers[key] = r
        r.claim_end = end

    def awaited(self, r: Request, first: int, end: int, step: int) -> BlockKey | None:
        """The deepest of its keys first .. end - 1 that the writer of the first computes too: one wake for all of them."""
        if first >= end or not self._writers:
            return None
        keys, writers = r.keys, self._writers
        writer = writers.get(keys[first])
        if writer is None or writer is r or not self._moves(writer, step):
            return None
        while first + 1 < end and writers.get(keys[first + 1]) is writer:
            first += 1
        return keys[first]

    def _moves(self, writer: Request, step: int) -> bool:
        return writer.granted_step >= step - 1 or writer.num_computed_tokens >= writer.claim_end * self._size

    def wait(self, r: Request, key: BlockKey) -> None:
        r.awaits = key
        self._awaiting.setdefault(key, {})[r] = None
        self.num_awaiting += 1

    def published(self, key: BlockKey) -> None:
        """Whoever wrote it."""
        if self._writers.pop(key, None) is not None and key in self._awaiting:
            self._wake(key)

    def release(self, writer: Request) -> None:
        """It will not publish what it has not published."""
        for key in writer.keys[writer.num_published : writer.claim_end]:
            if self._writers.get(key) is writer:
                self.published(key)
        writer.claim_end = 0

    def leave(self, r: Request) -> None:
        """It ended while it waited, or after its wait."""
        if r.awaits is not None:
            waiting = self._awaiting[r.awaits]
            del waiting[r]
            if not waiting:
                del self._awaiting[r.awaits]
            r.awaits = None
            self.num_awaiting -= 1
        else:
            self.free.pop(r, None)

    def _wake(self, key: BlockKey) -> None:
        woken = self._awaiting.pop(key)
        for r in woken:
            r.awaits = None
        self.num_awaiting -= len(woken)
        self.free.update((r, None) for r in woken if not r.queued)  # else it has not left the waiting list yet

    def take_free(self, step: int) -> list[Request]:
        """Those whose wait has ended before `step`. Nobody waits for a writer that got nothing in the step before."""
        for key in [key for key in self._awaiting if not self._moves(self._writers[key], step)]:
            self._wake(key)
        taken, self.free = list(self.free), {}
        return taken

    def audit(self) -> Iterator[str]:
        """Broken invariants, once no request is left."""
        if self._writers or self._awaiting or self.num_awaiting or self.free:
            yield f"claims are left: {len(self._writers)} keys, {self.num_awaiting} requests that wait, {len(self.free)} that waited"
