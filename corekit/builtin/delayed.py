"""An executor that runs a step only when its result is due, from a serialized copy: steps in flight on any machine.

Whoever relies on a result before it is committed, changes a plan that was handed over, or puts something into a step that
another process could not receive, fails with it. Knows nothing of what a step does.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass

import msgspec

from corekit.api import KvPlan, RowMasks, StepInput, StepResult, Worker

from .options import DelayedOptions


@dataclass(slots=True)
class _Pending:
    step: bytes
    masks: bytes | None = None
    sampled: bool = False


class Delayed:
    """Steps run in the order of submission; nothing of a step but its bytes is kept until then."""

    def __init__(self, worker: Worker, depth: int) -> None:
        self._worker = worker
        self._depth = DelayedOptions(depth=depth).depth
        self._pending: deque[_Pending] = deque()
        self._encoder = msgspec.msgpack.Encoder()
        self._steps = msgspec.msgpack.Decoder(StepInput)
        self._masks = msgspec.msgpack.Decoder(RowMasks)
        self._results = msgspec.msgpack.Decoder(StepResult)

    @property
    def max_in_flight(self) -> int:
        return self._depth

    @property
    def max_draft_tokens(self) -> int:
        return self._worker.max_draft_tokens

    def free_memory(self) -> int:
        return self._worker.free_memory()

    def bytes_per_block(self, kv_dtype: str) -> int:
        return self._worker.bytes_per_block(kv_dtype)

    def allocate_kv(self, plan: KvPlan) -> None:
        self._worker.allocate_kv(plan)

    def submit(self, step: StepInput) -> None:
        if len(self._pending) == self._depth:
            raise RuntimeError(f"delayed: step {step.number} would be number {self._depth + 1} in flight; collect one first")
        self._pending.append(_Pending(self._encoder.encode(step)))

    def sample(self, masks: RowMasks | None) -> None:
        pending = self._pending[-1]
        if pending.sampled:
            raise RuntimeError("delayed: the newest step was sampled already; submit comes before sample")
        pending.masks, pending.sampled = self._encoder.encode(masks) if masks is not None else None, True

    def collect(self) -> StepResult:
        pending = self._pending.popleft()
        if not pending.sampled:
            raise RuntimeError("delayed: the oldest step was not sampled; submit, sample, collect is the order")
        self._worker.submit(self._steps.decode(pending.step))
        self._worker.sample(self._masks.decode(pending.masks) if pending.masks is not None else None)
        return self._results.decode(self._encoder.encode(self._worker.collect()))

    def check_health(self) -> None:
        """A worker in this process fails where it is called."""

    def shutdown(self) -> None:
        self._pending.clear()
