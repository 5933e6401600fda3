"""What became of blocks and prefixes since the start, in plain counts. Knows nothing of why."""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence

from corekit.api import Copy

from .request import Request


class Counts:
    """Invariant: no count ever falls."""

    def __init__(self, bytes_per_block: int) -> None:
        self._bytes_per_block = bytes_per_block
        self.num_prefix_queries = 0
        self.num_prefix_hits = 0
        self._looked_up = (0, 0)
        self._in_flight: deque[tuple[int, int]] = deque()
        self.num_preemptions = 0
        self.num_swap_preemptions = 0
        self.num_swap_refusals = 0
        self.num_bytes_to_host = 0
        self.num_bytes_to_device = 0

    def looked_up(self, num_tokens: int, num_found: int) -> None:
        """The prompt of an admitted request, in the prefix cache. Counted when the step has committed that is being planned."""
        self._looked_up = (self._looked_up[0] + num_tokens, self._looked_up[1] + num_found)

    def submitted(self, copies: Sequence[Copy]) -> None:
        """The plan became a step."""
        self._copied(copies)
        self._in_flight.append(self._looked_up)
        self._looked_up = (0, 0)

    def committed(self) -> None:
        """The oldest step."""
        num_tokens, num_found = self._in_flight.popleft()
        self.num_prefix_queries += num_tokens
        self.num_prefix_hits += num_found

    def preempted(self, victims: Sequence[Request]) -> None:
        self.num_preemptions += len(victims)
        self.num_swap_preemptions += sum(r.ticket is not None for r in victims)

    def _copied(self, copies: Sequence[Copy]) -> None:
        size = self._bytes_per_block
        for source, target in copies:
            if target.on_host:
                self.num_bytes_to_host += size
            elif source.on_host:
                self.num_bytes_to_device += size
