"""Builds, to throw it away, what needs no weights and is otherwise built after them, so that its faults are known before.

The pool of a CPU is counted from the memory that is free before the weights, so the start may make it smaller, never larger; that
of a GPU is known only as it was asked for. The executor, whose workers load weights, is not built.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace

from corekit.api import BuildContext
from corekit.engine.blocks import CopyJournal

from .composition import Composition
from .errors import ConfigError
from .memory import size_pool
from .stack import build_stack, check_swap


def rehearse(composition: Composition) -> None:
    """Raises ConfigError with every fault of the attention backend, the allocator's layers and the policy."""
    context, num_blocks = composition.context, composition.config.block_allocator.num_blocks
    context = replace(context, num_blocks=num_blocks or context.max_num_seqs * -(-context.max_model_len // context.block_size), journal=CopyJournal())
    problems: list[str] = []
    with _collected(problems):
        backend = composition.one("attention_backend").build(context)
        context = replace(context, bytes_per_block=backend.bytes_per_block(context.kv_dtype))
        with _collected(problems):
            if context.device == "cpu":
                context = replace(context, num_blocks=_blocks_of_a_cpu(composition, context))
            parts = composition.chosen["block_allocator"]
            check_swap(composition.config, parts, build_stack(parts, context))
    with _collected(problems):
        composition.one("scheduler_policy").build(context)
    if problems:
        raise ConfigError(problems)


def _blocks_of_a_cpu(composition: Composition, context: BuildContext) -> int:
    from corekit.worker.worker import available_memory

    table = composition.config.block_allocator
    return size_pool(
        device=context.device,
        free_memory=available_memory(),
        bytes_per_block=context.bytes_per_block or 0,
        block_size=context.block_size,
        num_blocks=table.num_blocks,
        memory_utilization=table.memory_utilization,
        max_num_seqs=context.max_num_seqs,
        max_model_len=context.max_model_len,
    ).num_blocks


@contextmanager
def _collected(problems: list[str]) -> Iterator[None]:
    try:
        yield
    except ConfigError as error:
        problems += error.problems
