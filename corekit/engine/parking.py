"""How a victim's blocks are taken: parked on the host, or computed again. Knows tables, keys and rates; nothing of steps."""

from __future__ import annotations

from corekit.api import PreemptMode, Ticket

from .blocks import BlockTables
from .counts import Counts
from .keys import KeyChain
from .limits import Limits
from .rates import Rates
from .request import Request


class Parking:
    """Nothing is given up here: what was parked is still the victim's until its table is released."""

    def __init__(self, *, blocks: BlockTables, keys: KeyChain, limits: Limits, rates: Rates, counts: Counts) -> None:
        self._blocks = blocks
        self._keys = keys
        self._limits = limits
        self._rates = rates
        self._counts = counts

    def park(self, r: Request, mode: PreemptMode | None) -> Ticket | None:
        """A claim on host blocks for all that it has computed; None: it computes that again. mode None: whichever is quicker."""
        blocks = self._blocks
        if mode == "recompute" or not blocks.num_host_blocks or not r.num_computed_tokens:
            return None
        table = r.table[: blocks.span(r.num_computed_tokens)]
        if mode is None and not self._is_quicker(r, table):
            return None
        num_keyed = self.num_keyed(r)
        self._keys.extend(r.keys, r.tokens, num_keyed * blocks.block_size, r.group.extra)
        ticket = blocks.park(table, r.keys[:num_keyed])
        self._counts.num_swap_refusals += ticket is None
        return ticket

    def num_keyed(self, r: Request) -> int:
        """Its leading blocks that are full of tokens which have committed: others may find them by their keys."""
        return r.num_committed // self._blocks.block_size if self._blocks.caches_prefixes else 0

    def _is_quicker(self, r: Request, table: list[int]) -> bool:
        """To copy what only it holds away and back. What others hold stays there whatever is done."""
        num_lost = sum([self._blocks.refs[block] == 1 for block in table])
        return self._rates.swap_is_quicker(2 * num_lost * self._limits.bytes_per_block, min(num_lost * self._blocks.block_size, r.num_computed_tokens))
