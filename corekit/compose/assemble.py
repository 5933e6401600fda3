"""From a composition to a running engine: weights, memory, allocator stack, scheduler, client. The only caller of constructors.

Knows what belongs together and in which order; nothing of what a step is.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import replace
from typing import Any

from corekit.api import BlockAllocator, Executor, Frontend, KvPlan, SchedulerPolicy, SupportsBind, SupportsSwap
from corekit.engine.blocks import CopyJournal
from corekit.engine.client import Client
from corekit.engine.collector import Collector
from corekit.engine.engine import Engine
from corekit.engine.limits import Limits
from corekit.engine.scheduler import Scheduler

from .assembly import NOTHING_TO_SERVE, Assembly
from .catalog import Catalog
from .composition import Composition, compose
from .config import Config
from .errors import BindError, ConfigError
from .keys import key_chain
from .memory import Pool, size_pool
from .ranks import RankFactory
from .stack import build_stack, check_swap
from .surroundings import step_limits


def assemble(
    config: Config | Mapping[str, Any] | None = None,
    *,
    tokenizer: object = None,
    scheduler_policy: object = None,
    block_allocator: object = None,
    attention_backend: object = None,
    sampler: object = None,
    model: object = None,
    executor: object = None,
    frontends: Sequence[object] | None = None,
    logits_processors: Sequence[object] | None = None,
    observers: Sequence[object] | None = None,
    http_routes: Sequence[object] | None = None,
    catalog: Catalog | None = None,
    environ: Mapping[str, str] | None = None,
    clock: Callable[[], float] = time.monotonic,
    progress: bool = True,
) -> Assembly:
    """A whole engine. config: checked, or tables as in TOML, or nothing for the demo model.

    Each part may be given as a component, or as a `corekit.api.Provider` that is built like an installed one; it then
    rules over the configuration. environ: variables to read instead of the process's own.
    """
    given = {
        "tokenizer": tokenizer,
        "scheduler_policy": scheduler_policy,
        "block_allocator": block_allocator,
        "attention_backend": attention_backend,
        "sampler": sampler,
        "model": model,
        "executor": executor,
        "frontend": frontends,
        "logits_processor": logits_processors,
        "observer": observers,
        "http_route": http_routes,
    }
    return finish(compose(config, given=given, catalog=catalog, environ=environ, clock=clock, progress=progress))


def finish(composition: Composition) -> Assembly:
    """Load weights and build what needs them. The frontends' client becomes that of the engine."""
    context, config = composition.context, composition.config
    factory = RankFactory(
        context=context,
        model=composition.one("model"),
        attention_backend=composition.one("attention_backend"),
        sampler=composition.one("sampler"),
        ready=(composition.model, composition.sampler),
    )
    with ExitStack() as undo:
        executor: Executor = composition.one("executor").build(replace(context, worker=factory))
        undo.callback(executor.shutdown)
        _check_in_flight(config, executor)
        pool, stack, journal = _memory(composition, executor)
        scheduler = _scheduler(composition, executor, pool, stack, journal)
        engine = Engine(scheduler, executor, observers=composition.observers, clock=context.clock)
        client = _client(composition, engine, pool)
        undo.pop_all()
    composition.client.become(client)
    return Assembly(composition=composition, engine=engine, executor=executor, client=client, frontends=composition.frontends, pool=pool)


def bind(frontends: Sequence[Frontend]) -> None:
    """Take the frontends' addresses, so that a busy port costs no loading. Raises BindError, and ConfigError where there is none."""
    if not frontends:
        raise ConfigError(NOTHING_TO_SERVE)
    for frontend in frontends:
        if isinstance(frontend, SupportsBind):
            try:
                frontend.bind()
            except OSError as error:
                raise BindError(error.strerror or str(error)) from error


def _check_in_flight(config: Config, executor: Executor) -> None:
    asked = config.engine.max_in_flight
    if asked not in (0, executor.max_in_flight):
        raise ConfigError(
            f"{config.place('engine', 'max_in_flight')} = {asked}: the executor {config.executor.use!r} keeps {executor.max_in_flight} in flight. "
            "Leave it at 0, or change the executor or its options."
        )


def _memory(composition: Composition, executor: Executor) -> tuple[Pool, BlockAllocator, CopyJournal]:
    """Count blocks, build the stack, allocate the pools."""
    context, table, journal = composition.context, composition.config.block_allocator, CopyJournal()
    parts = composition.chosen["block_allocator"]
    bytes_per_block = executor.bytes_per_block(context.kv_dtype)
    pool = size_pool(
        device=context.device,
        free_memory=executor.free_memory(),
        bytes_per_block=bytes_per_block,
        block_size=context.block_size,
        num_blocks=table.num_blocks,
        memory_utilization=table.memory_utilization,
        max_num_seqs=context.max_num_seqs,
        max_model_len=context.max_model_len,
    )
    stack = build_stack(parts, replace(context, bytes_per_block=bytes_per_block, num_blocks=pool.num_blocks, journal=journal))
    if (there := stack.available) != pool.num_blocks:
        raise ConfigError(f"{parts[0].place}: the stack offers {there} blocks, the pool has {pool.num_blocks}. Give both the same number of blocks.")
    check_swap(composition.config, parts, stack)
    pool = replace(pool, num_host_blocks=stack.num_host_blocks if isinstance(stack, SupportsSwap) else 0)
    executor.allocate_kv(
        KvPlan(
            num_blocks=pool.num_blocks,
            num_host_blocks=pool.num_host_blocks,
            block_size=pool.block_size,
            kv_dtype=context.kv_dtype,
            layers=composition.spec.layers,
        )
    )
    return pool, stack, journal


def _scheduler(composition: Composition, executor: Executor, pool: Pool, stack: BlockAllocator, journal: CopyJournal) -> Scheduler:
    context, table = composition.context, composition.config.scheduler
    step = step_limits(composition.config, context.device)
    context = replace(context, num_blocks=pool.num_blocks)
    policy: SchedulerPolicy = composition.one("scheduler_policy").build(context)
    fallback: SchedulerPolicy = composition.fallback.build(context)
    limits = Limits(
        num_blocks=pool.num_blocks,
        block_size=pool.block_size,
        max_num_seqs=table.max_num_seqs,
        max_num_batched_tokens=step.max_num_batched_tokens,
        max_model_len=context.max_model_len,
        long_prefill_token_threshold=step.long_prefill_token_threshold,
        watermark_blocks=int(table.watermark * pool.num_blocks),
        max_draft_tokens=executor.max_draft_tokens,
        vocab_size=composition.spec.vocab_size,
        preemption=None if table.preemption == "auto" else table.preemption,
        bytes_per_block=pool.bytes_per_block,
    )
    keys = key_chain(composition.config, context)
    return Scheduler(stack=stack, journal=journal, policy=policy, fallback=fallback, limits=limits, clock=context.clock, keys=keys)


def _client(composition: Composition, engine: Engine, pool: Pool) -> Client:
    context, table = composition.context, composition.config.scheduler
    facts = replace(composition.client.model, max_model_len=pool.largest_context)  # what is promised must fit
    return Client(
        engine,
        tokenizer=composition.tokenizer,
        eos_token_ids=tuple(dict.fromkeys((*composition.tokenizer.eos_token_ids, *composition.spec.eos_token_ids))),
        model=facts,
        max_queued_requests=table.max_queued_requests,
        max_queued_tokens=table.max_queued_tokens,
        seed=context.seed,
        processors=composition.processors,
        clock=context.clock,
        collector=Collector(),
    )
