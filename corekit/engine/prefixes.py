"""What of a waiting request the stack has, or another request computes right now. Knows keys and claims; grants nothing."""

from __future__ import annotations

from corekit.api import BlockKey, PrefixMatch

from .blocks import NO_MATCH, BlockTables
from .claims import Claims
from .keys import KeyChain
from .request import Request


class Prefixes:
    """Invariant: the last token is never found. Its logits are the next draw, so it is always computed."""

    def __init__(self, *, blocks: BlockTables, keys: KeyChain, claims: Claims) -> None:
        self._blocks = blocks
        self._keys = keys
        self._claims = claims

    def read(self, r: Request) -> bool:
        """Whether it may be given what others computed. The logprobs of a prompt need the logits of all its positions."""
        return self._blocks.caches_prefixes and r.group.prompt_logprobs is None and not r.mistrusts

    def match(self, r: Request) -> PrefixMatch:
        """What the stack has of it; of a parked one, what has a key."""
        if r.ticket is not None:
            return self._blocks.find(r.keys[: r.num_published])
        if not self.read(r):
            return NO_MATCH
        self._keys.extend(r.keys, r.tokens, len(r.tokens), r.group.extra)
        return self._blocks.find(r.keys[: self._most(r)])

    def awaited(self, r: Request, num_found: int, step: int) -> BlockKey | None:
        """What it would compute after num_found blocks although another is at it."""
        if r.ticket is not None or not self.read(r):
            return None
        return self._claims.awaited(r, num_found, self._most(r), step)

    def has_grown(self, r: Request, num_found: int, step: int) -> bool:
        """Whether the stack may have more than num_found blocks of it now, or will soon. Costs one block's look."""
        if r.ticket is not None or num_found >= self._most(r) or not self.read(r):
            return False
        return bool(self._blocks.find(r.keys[num_found : num_found + 1]).blocks) or self.awaited(r, num_found, step) is not None

    def _most(self, r: Request) -> int:
        """Blocks that may be found."""
        return (len(r.tokens) - 1) // self._blocks.block_size

    def begin(self, r: Request, match: PrefixMatch, step: int, now: float) -> None:
        """It holds what was found, and computes the rest."""
        if not self.read(r):
            return
        self._keys.extend(r.keys, r.tokens, len(r.tokens), r.group.extra)
        self._claims.claim(r, r.num_published, len(r.keys), step)
        if r.group.retention and match.blocks:
            self._blocks.retain(match, r.table[: len(match.blocks)], now + r.group.retention)
