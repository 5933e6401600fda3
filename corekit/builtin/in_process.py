"""The default executor: one worker in this process. Knows nothing of what a step does."""

from __future__ import annotations

from corekit.api import KvPlan, RowMasks, StepInput, StepResult, Worker


class InProcess:
    """A step is collected before the next is submitted."""

    def __init__(self, worker: Worker) -> None:
        self._worker = worker

    @property
    def max_in_flight(self) -> int:
        return 1

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
        self._worker.submit(step)

    def sample(self, masks: RowMasks | None) -> None:
        self._worker.sample(masks)

    def collect(self) -> StepResult:
        return self._worker.collect()

    def check_health(self) -> None:
        """A worker in this process fails where it is called."""

    def shutdown(self) -> None:
        """There is nothing to end."""
