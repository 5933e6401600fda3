"""One rank: takes steps as plain values, gives results as plain values. Knows tensors and rows; never requests, queues or text."""

from __future__ import annotations

import os
import time
from collections import deque
from pathlib import Path

import torch

from corekit.api import AttentionBackend, KvPlan, Model, RowMasks, Sampler, StepInput, StepResult, SupportsDrafts, SupportsThreadPool

from .batch import plan_batch
from .draws import plan_draws
from .outcome import Step, finish
from .prompt_logprobs import PromptScorer
from .rows import Rows
from .runner import Runner
from .sampling import Drawer


class RankWorker:
    """Steps run in the order of submission; what one draws is known to the rows of the next before anyone collects it."""

    def __init__(self, *, model: Model, attention: AttentionBackend, sampler: Sampler, device: str, threads: int) -> None:
        if threads > 0:
            on_pool = isinstance(model, SupportsThreadPool) and model.uses_thread_pool
            torch.set_num_threads(1 if on_pool else threads)
        self._model = model
        self._attention = attention
        self._sampler = sampler
        self._device = torch.device(device)
        self._drafts = model if isinstance(model, SupportsDrafts) else None
        self._rows = Rows()
        scorer = PromptScorer(model=model, sampler=sampler, device=device)
        self._runner = Runner(model=model, attention=attention, scorer=scorer, device=device)
        self._drawer = Drawer(sampler, device)
        self._steps: deque[Step] = deque()

    @property
    def max_draft_tokens(self) -> int:
        return self._drafts.max_draft_tokens if self._drafts is not None else 0

    def free_memory(self) -> int:
        if self._device.type == "cuda":
            return int(torch.cuda.mem_get_info(self._device)[0])
        return available_memory()

    def bytes_per_block(self, kv_dtype: str) -> int:
        return self._attention.bytes_per_block(kv_dtype)

    def allocate_kv(self, plan: KvPlan) -> None:
        with torch.inference_mode():
            self._runner.allocate_kv(plan)

    def submit(self, step: StepInput) -> None:
        begun = time.perf_counter()
        with torch.inference_mode():
            self._settle()
            batch, faults = plan_batch(step, self._rows, self._drafts.draft if self._drafts is not None else None, self._model.spec.vocab_size)
            copying = self._runner.copy(step.copies)
            ran = self._runner.run(batch, self._rows)
        seconds = time.perf_counter() - begun
        faults |= ran.faults
        self._steps.append(Step(input=step, batch=ran.batch, logits=ran.logits, scores=ran.scores, faults=faults, seconds=seconds, copying=copying))

    def sample(self, masks: RowMasks | None) -> None:
        if not self._steps or self._steps[-1].sampled:
            raise RuntimeError("there is no submitted step without draws; submit, sample, collect is the order")
        step, begun = self._steps[-1], time.perf_counter()
        step.sampled = True
        if step.logits is not None:
            with torch.inference_mode():
                step.draws = plan_draws(step.batch, self._rows)
                step.peak = step.logits.amax(-1)
                step.drawn, failed = self._drawer.draw(step.draws, step.logits, self._rows, masks)
            step.faults |= {int(step.draws.batch.row[at]): why for at, why in failed.items()}
            step.masks = masks.words if masks is not None else {}
            step.logits = None
        step.seconds += time.perf_counter() - begun

    def collect(self) -> StepResult:
        if not self._steps or self._steps[0].result is None:  # else the newest step may still wait for its masks
            with torch.inference_mode():
                self._settle()
        result = self._steps.popleft().result
        assert result is not None
        return result

    def _settle(self) -> None:
        """Read the draws of the newest step, if that was not done yet: its rows may go on only with its tokens."""
        if not self._steps or self._steps[-1].result is not None:
            return
        step, begun = self._steps[-1], time.perf_counter()
        if not step.sampled:
            raise RuntimeError(f"step {step.input.number} was submitted but not sampled; submit, sample, collect is the order")
        vocab_size = self._model.spec.vocab_size
        step.result = finish(step, self._rows, type(self._model).__name__, type(self._sampler).__name__, vocab_size, begun)


def available_memory() -> int:
    """Bytes that a program may take without swapping; free pages where the system does not say."""
    try:
        for line in Path("/proc/meminfo").read_text().splitlines():
            if line.startswith("MemAvailable:"):
                return int(line.split()[1]) * 1024
    except OSError:
        pass
    return os.sysconf("SC_AVPHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
