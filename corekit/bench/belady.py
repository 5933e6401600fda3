"""How often a clairvoyant cache would hit: Belady's rule on chains of blocks. Knows what comes next; no allocator does.

Belady, A study of replacement algorithms for a virtual-storage computer (1966): evict what is used next farthest in the future.
"""

from __future__ import annotations

import heapq
from collections.abc import Sequence

NEVER = 1 << 60


def most_hits(chains: Sequence[Sequence[int]], num_blocks: int) -> int:
    """The most blocks that any cache of `num_blocks` could find, over all requests.

    All blocks of a request must be in the cache while it is in service. Only a prefix that is there without a gap is found: a
    block is never used again before its parent is, so with ties broken towards the end of a chain no gap ever arises.
    """
    upcoming = _uses(chains)
    cached: set[int] = set()
    farthest: list[tuple[int, int, int]] = []  # a heap of (-next use, -depth, block)
    num_hits = 0
    for now, chain in enumerate(chains):
        if len(chain) > num_blocks:
            raise ValueError(f"request {now} alone needs {len(chain)} blocks, the cache has {num_blocks}")
        num_hits += next((depth for depth, block in enumerate(chain) if block not in cached), len(chain))
        num_fresh = sum([block not in cached for block in chain])
        for _ in range(len(cached) + num_fresh - num_blocks):
            after, _, block = heapq.heappop(farthest)  # what a block said of uses that are past lies behind all that is ahead
            assert -after > now, "a block of the request in service was evicted"
            cached.remove(block)
        cached.update(chain)
        for depth, block in enumerate(chain):
            after = upcoming[block].pop() if upcoming[block] else NEVER
            heapq.heappush(farthest, (-after, -depth, block))
    return num_hits


def _uses(chains: Sequence[Sequence[int]]) -> dict[int, list[int]]:
    """Block -> the requests that use it, the first of all left out, the next one last."""
    uses: dict[int, list[int]] = {}
    for now in range(len(chains) - 1, -1, -1):
        for block in chains[now]:
            uses.setdefault(block, []).append(now)
    for requests in uses.values():
        requests.pop()
    return uses
