"""Builds one rank: attention backend, model with its weights, sampler, and the worker that drives them. Knows no executor."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Any

from corekit.api import BuildContext, Model, Sampler, Shard, Worker

from .parts import Part


@dataclass(kw_only=True)
class RankFactory:
    """(rank, size) -> a worker with its weights loaded. Picklable: a rank in another process builds its model itself."""

    context: BuildContext
    model: Part
    attention_backend: Part
    sampler: Part
    ready: tuple[Model, Sampler] | None = field(default=None, repr=False)
    """The parts that composition built to ask them what they can: taken by rank 0 of 1, once."""

    def __call__(self, rank: int, size: int) -> Worker:
        from corekit.worker.worker import RankWorker

        attention = self.attention_backend.build(self.context)
        ready, self.ready = self.ready if size == 1 else None, None
        model, sampler = ready or (self.model.build(self.context), self.sampler.build(self.context))
        if self.context.source is not None:
            with self.model.named("loading its weights"):
                model.load(self.context.source, Shard(rank=rank, size=size))
        return RankWorker(model=model, attention=attention, sampler=sampler, device=self.context.device, threads=self.context.threads)

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "ready": None, "context": replace(self.context, worker=None, journal=None, inner=None)}
