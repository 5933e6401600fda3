"""Answers of whole engines under a policy: real steps on a model without weights, in a pool that is too small. Judges nothing."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Iterator, Mapping, Sequence
from contextlib import aclosing, contextmanager
from functools import cache
from random import Random
from typing import Any

from corekit.api import Prompt, Provider, SamplingParams, SchedulerPolicy
from corekit.compose.assemble import assemble

NUM_REQUESTS = 20
Sample = tuple[tuple[int, ...], ...]
Answers = Sequence[Sample]


@cache
def alone() -> Sequence[Sample]:
    """What is right: one request after the other. It never changes, so it is asked once."""
    return answers(None)[0]


def answers(policy: Provider[SchedulerPolicy] | None, depth: int = 1, *, keeps: bool = False) -> tuple[Answers, list[str]]:
    """For each request its samples' tokens, and what the engine reported. None: the reference, one request after the other."""
    with _reports() as reports, assemble(tables(depth, keeps=keeps), scheduler_policy=policy, frontends=(), progress=False) as assembly:
        return asyncio.run(ask(assembly.client, together=policy is not None)), reports


def tables(depth: int, *, keeps: bool) -> Mapping[str, Any]:
    """An engine whose pool is too small. keeps: with a prefix cache, whose prefixes are awaited, and swap space, where victims are parked."""
    memory = {"stack": ["cpu-swap", "lru-prefix", "free-list"], "options": {"cpu-swap": {"num_host_blocks": 10}}} if keeps else {"stack": ["free-list"]}
    return {
        "model": {"source": "none", "use": "fingerprint", "max_model_len": 40},
        "tokenizer": {"use": "bytes"},
        "executor": {"use": "delayed", "options": {"depth": depth}} if depth > 1 else {"use": "in-process"},
        "scheduler": {
            "max_num_seqs": 4,
            "max_num_batched_tokens": 16,
            "watermark": 0.0,
            "max_queued_tokens": 10**6,
            "preemption": "swap" if keeps else "recompute",
        },
        "block_allocator": {"block_size": 4, "num_blocks": 12, **memory},
    }


async def ask(client: Any, *, together: bool) -> Answers:
    """Half of the prompts begin alike. Every fifth request leaves after its first tokens, and its answer does not count."""
    rng, asking = Random(0), []
    begin = rng.choices(range(50), k=12)
    for number in range(NUM_REQUESTS):
        own = rng.choices(range(50), k=rng.randint(1, 24))
        prompt = Prompt(token_ids=tuple((begin + own)[:24] if number % 2 else own))
        params = SamplingParams(n=rng.choice((1, 1, 2)), max_tokens=rng.randint(3, 15), temperature=rng.choice((0.0, 1.0)), seed=number, ignore_eos=True)
        asking.append(_answer(client, prompt, params, priority=rng.choice((-1, 0, 0, 3)), leaves=number % 5 == 0))
    return list(await asyncio.gather(*asking)) if together else [await one for one in asking]


async def _answer(client: Any, prompt: Prompt, params: SamplingParams, *, priority: int, leaves: bool) -> tuple[tuple[int, ...], ...]:
    tokens: list[list[int]] = [[] for _ in range(params.n)]
    async with aclosing(client.generate(prompt, params, priority=priority)) as outputs:
        async for output in outputs:
            for sample in output.outputs:
                tokens[sample.index] += sample.token_ids
            if leaves:
                return ()
    return tuple(map(tuple, tokens))


@contextmanager
def _reports() -> Iterator[list[str]]:
    """What the engine says of its policy, here instead of in the log."""
    told: list[str] = []

    class Keeping(logging.Handler):
        def emit(self, record: logging.LogRecord) -> None:
            told.append(record.getMessage())

    keeping, log = Keeping(logging.WARNING), logging.getLogger("corekit.engine.planner")
    log.addHandler(keeping)
    try:
        yield told
    finally:
        log.removeHandler(keeping)
