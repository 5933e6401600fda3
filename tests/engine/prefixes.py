"""Requests of one prefix on a bare scheduler, and what they computed."""

from __future__ import annotations

from typing import Any

from bare import Bare

from corekit.api import PrefixMatch, PrefixQuery
from corekit.builtin.free_list import FreeList
from corekit.engine.request import Request
from corekit.testing.prefix_cache import PlainPrefixCache

PREFIX = range(100, 124)
"""Six blocks of four."""


class Counting(PlainPrefixCache):
    num_finds = 0

    def find(self, query: PrefixQuery) -> PrefixMatch:
        self.num_finds += 1
        return super().find(query)


def cached(policy: Any = None, *, num_blocks: int = 96, **limits: Any) -> Bare:
    return Bare(policy, stack=Counting(FreeList(num_blocks)), num_blocks=num_blocks, **limits)


def total(bare: Bare) -> int:
    return sum(bare.work.values())


def add(bare: Bare, number: int, prefix: Any = PREFIX, tail: int = 3, **shape: Any) -> Request:
    return bare.add([*prefix, *range(10 * number, 10 * number + tail)], **{"max_tokens": 2, **shape})
