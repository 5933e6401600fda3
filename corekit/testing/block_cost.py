"""Counts what an allocator stack does per operation, without a clock. Owned by the kit of slot `block_allocator`.

Instructions see Python's own loops; block ids that count their comparisons and hashes see loops in C over blocks. Every call is
made once: it changes the stack.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping
from types import FrameType
from typing import Any

from corekit.api import BlockKey, Blocks, PrefixQuery

from .block_calls import key_chain
from .block_ledger import Ledger

ROUNDS = 5
"""The cheapest of so many counts: a dictionary that grows now and then is nobody's fault."""


class _Tally:
    """Instructions of what is traced, and comparisons and hashes of block ids."""

    def __init__(self) -> None:
        self.count = 0

    def of(self, call: Callable[[], object]) -> int:
        before, previous = self.count, sys.gettrace()
        sys.settrace(self._trace)
        try:
            call()
        finally:
            sys.settrace(previous)
        return self.count - before

    def _trace(self, frame: FrameType, event: str, argument: Any) -> Any:
        frame.f_trace_opcodes = True
        self.count += event == "opcode"
        return self._trace

    def block_ids(self) -> type[int]:
        """The type of ids that count."""

        def counted(name: str) -> Callable[..., Any]:
            plain = getattr(int, name)

            def method(block: int, *arguments: Any) -> Any:
                self.count += 1
                return plain(block, *arguments)

            return method

        names = ("__eq__", "__lt__", "__gt__", "__le__", "__ge__", "__hash__")
        return type("CountedBlock", (int,), {name: counted(name) for name in names})


def cost(ledger: Ledger) -> Mapping[str, int]:
    """Operation -> its cost, in a pool of which a half is used and a quarter is idle, if the stack keeps blocks idle."""
    stack, tally = ledger.stack, _Tally()
    block_id = tally.block_ids()
    taken = stack.take(ledger.num_blocks)
    assert taken is not None, "take of all blocks of a fresh stack is None"
    blocks = [block_id(block) for block in taken.ids]
    quarter = len(blocks) // 4
    if ledger.caches:
        for block, key in zip(blocks[:quarter], key_chain(*range(quarter)), strict=True):
            stack.publish(block, key)
    stack.give(Blocks(tuple(blocks[:quarter])))
    stack.give(Blocks(tuple(blocks[quarter : 2 * quarter])))
    rounds = [_round(ledger, tally, block_id, key) for key in key_chain(*range(-ROUNDS, 0))]
    return {name: min(one[name] for one in rounds) for name in rounds[0]}


def _round(ledger: Ledger, tally: _Tally, block_id: type[int], key: BlockKey) -> dict[str, int]:
    stack, got = ledger.stack, list[Any]()
    counts = {"available": tally.of(lambda: stack.available), "stats": tally.of(stack.stats), "take": tally.of(lambda: got.append(stack.take(1)))}
    block = block_id(got[0].ids[0])
    if ledger.caches:
        counts["publish"] = tally.of(lambda: stack.publish(block, key))
    counts["give"] = tally.of(lambda: stack.give(Blocks((block,))))
    if ledger.caches:
        counts["find"] = tally.of(lambda: got.append(stack.find(PrefixQuery((key,)))))
        counts["hold"] = tally.of(lambda: got.append(stack.hold(got[-1])))
        stack.give(Blocks((block,)))
    if swap := ledger.swap:
        parked = stack.take(1) or Blocks()
        counts["swap_out"] = tally.of(lambda: got.append(swap.swap_out(parked, (None,))))
        stack.give(parked)
        counts["swap_in"] = tally.of(lambda: got.append(swap.swap_in(got[-1])))
        stack.give(got[-1])
    return counts
