"""A scheduler without a worker: steps are planned and committed by hand, with made-up tokens."""

from __future__ import annotations

import itertools
from collections.abc import Sequence

from corekit.api import SamplingParams, StepInput, StepResult
from corekit.builtin.fcfs import Fcfs
from corekit.builtin.free_list import FreeList
from corekit.engine.blocks import CopyJournal
from corekit.engine.limits import Limits
from corekit.engine.request import NewRequest, Request
from corekit.engine.row import Row
from corekit.engine.scheduler import Scheduler


def made_up(rows: Sequence[Row], token: int = 1) -> StepResult:
    return StepResult(tokens=tuple(((token,),) * row.num_samples if row.num_samples else ((),) for row in rows))


class Bare:
    """`schedule` and `commit` by hand; `step` does both. A stack that copies does so through `journal`, which has to be the same."""

    def __init__(self, policy=None, *, num_blocks=32, block_size=4, max_num_seqs=8, budget=64, stack=None, journal=None, **limits) -> None:
        clock = itertools.count().__next__
        self.scheduler = Scheduler(
            stack=stack or FreeList(num_blocks),
            journal=journal or CopyJournal(),
            policy=policy or Fcfs(),
            fallback=Fcfs(),
            limits=Limits(num_blocks=num_blocks, block_size=block_size, max_num_seqs=max_num_seqs, max_num_batched_tokens=budget, max_model_len=4096, **limits),
            clock=lambda: float(clock()),
        )
        self.work: dict[str, int] = {}
        self.last: StepInput | None = None

    def add(self, prompt: int | Sequence[int], *, max_tokens: int = 8, n: int = 1, priority: int = 0, end_ids: tuple[int, ...] = (), **shape) -> Request:
        ids = tuple(range(prompt)) if isinstance(prompt, int) else tuple(prompt)
        name = f"r{self.scheduler._num_arrivals}"
        params = SamplingParams(n=n, max_tokens=max_tokens, **shape)
        new = NewRequest(request_id=name, token_ids=ids, params=params, max_tokens=max_tokens, seed=0, end_ids=end_ids, arrival_time=0.0, priority=priority)
        self.scheduler.add(new)
        return self.scheduler.groups[name].samples[0]

    def schedule(self) -> list[Row]:
        rows, self.last = self.scheduler.schedule()
        for row in rows:
            name = row.request.group.asked.request_id
            self.work[name] = self.work.get(name, 0) + row.num_tokens
        return rows

    def commit(self, rows: Sequence[Row], token: int = 1) -> None:
        self.scheduler.commit(rows, made_up(rows, token))

    def step(self) -> list[Row]:
        rows = self.schedule()
        if rows:
            self.commit(rows)
        return rows

    def run(self, most: int = 500) -> None:
        while self.scheduler.groups:
            self.step()
            most -= 1
            assert most, "no end in sight"
        assert list(self.scheduler.audit()) == []
