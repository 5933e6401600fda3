"""A worker on the fingerprint model, driven by hand: blocks are dealt here, in scattered order, and nothing plans."""

from __future__ import annotations

import random

from corekit.api import Admission, AttentionBackend, Copy, KvPlan, Model, RowInput, RowMasks, Sampler, SamplingParams, StepInput, StepResult
from corekit.builtin.fingerprint import Fingerprint
from corekit.builtin.options import FingerprintOptions
from corekit.builtin.torch_attention import TorchAttention
from corekit.builtin.torch_sampler import TorchSampler
from corekit.worker import RankWorker

GREEDY = SamplingParams(temperature=0)


def fingerprint(**options: int) -> Fingerprint:
    return Fingerprint(FingerprintOptions(**options))


class Rig:
    def __init__(
        self,
        model: Model | None = None,
        *,
        attention: AttentionBackend | None = None,
        sampler: Sampler | None = None,
        block_size: int = 4,
        num_blocks: int = 300,
        seed: int = 0,
    ) -> None:
        self.model = model or fingerprint()
        layers = self.model.spec.layers
        self.worker = RankWorker(
            model=self.model,
            attention=attention or TorchAttention(layers, device="cpu", poison=True),
            sampler=sampler or TorchSampler(),
            device="cpu",
            threads=0,
        )
        self.worker.allocate_kv(KvPlan(num_blocks=num_blocks, num_host_blocks=0, block_size=block_size, kv_dtype="float64", layers=layers))
        self.block_size = block_size
        self._free = list(range(1, num_blocks + 1))
        random.Random(seed).shuffle(self._free)
        self.tables: dict[int, list[int]] = {}
        self._number = 0

    def admit(
        self,
        id: int,
        tokens,
        count: int,
        *,
        num_samples: int = 1,
        params: SamplingParams = GREEDY,
        seed: int = 0,
        sample: int = 0,
        num_prompt: int | None = None,
        start: int = 0,
        shared: tuple[int, ...] = (),
        end_ids: tuple[int, ...] = (),
        bad_words: tuple[tuple[int, ...], ...] = (),
    ) -> RowInput:
        """The first row of a sample: computes `count` tokens from `start`; the blocks of `shared` are its table's first."""
        self._free += [block for block in self.tables.pop(id, []) if block not in shared]
        self.tables[id] = list(shared)
        self._grow(id, start + count)
        admission = Admission(tuple(tokens), len(tokens) if num_prompt is None else num_prompt, params, seed, sample, end_ids, bad_words)
        return RowInput(id, start, count, num_samples, 0, 0, tuple(self.tables[id]), admission)

    def go(self, id: int, end: int, count: int = 1, *, num_samples: int = 1, num_drafts: int = 0) -> RowInput:
        """A later row; `end`: the position after the last that it may compute."""
        before = len(self.tables[id])
        self._grow(id, end)
        return RowInput(id, end - count, count, num_samples, num_drafts, before, tuple(self.tables[id][before:]), None)

    def step(self, *rows: RowInput, masks: RowMasks | None = None, copies: tuple[Copy, ...] = (), gone: tuple[int, ...] = ()) -> StepResult:
        self.submit(*rows, copies=copies, gone=gone)
        self.worker.sample(masks)
        return self.worker.collect()

    def submit(self, *rows: RowInput, copies: tuple[Copy, ...] = (), gone: tuple[int, ...] = ()) -> None:
        self._number += 1
        self.worker.submit(StepInput(number=self._number, rows=rows, copies=copies, gone=gone))

    def block(self) -> int:
        return self._free.pop()

    def _grow(self, id: int, end: int) -> None:
        while len(self.tables[id]) * self.block_size < end:
            self.tables[id].append(self.block())
