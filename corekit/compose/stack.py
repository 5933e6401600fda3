"""Builds the allocator's layers, bottom up, and proves that none is disabled. Knows abilities, and no layer by name."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace

from corekit.api import BlockAllocator, BuildContext, SupportsEvictionSink, SupportsPrefixCache, SupportsSwap

from .config import Config
from .errors import ConfigError, ended, place_of
from .parts import Part


def caches(layer: BlockAllocator) -> bool:
    return isinstance(layer, SupportsPrefixCache) and layer.prefix_cache


def swaps(layer: BlockAllocator) -> bool:
    return isinstance(layer, SupportsSwap) and layer.num_host_blocks > 0


ABILITIES: Mapping[str, Callable[[BlockAllocator], bool]] = {"the prefix cache": caches, "the swap space": swaps}
"""What the core looks for at the top of the stack alone, so that every layer above the one that has it must pass it on."""


def build_stack(parts: Sequence[Part], context: BuildContext) -> BlockAllocator:
    """The top of the stack. Raises ConfigError when a layer does not stand on the one beneath it."""
    inner: BlockAllocator | None = None
    names = [part.name for part in parts]
    owners: dict[str, int] = {}
    """Ability -> where the lowest layer that has it stands."""
    sink: int | None = None
    """Where the last layer stands that tells of evictions."""
    for at, part in reversed(list(enumerate(parts))):
        try:
            layer: BlockAllocator = part.build(replace(context, inner=inner))
        except ValueError as error:
            raise ConfigError(f"{part.place} = {names}: {part.candidate}: {error}") from error
        _check_stands(part, layer, inner, names)
        if isinstance(layer, SupportsEvictionSink):
            sink = at
        elif sink is not None and swaps(layer) and inner is not None and not swaps(inner) and not isinstance(inner, SupportsEvictionSink):
            raise ConfigError(_hidden(parts[at + 1], "the eviction sink", names, at + 1, sink))
        for ability, has in ABILITIES.items():
            if has(layer):
                owners.setdefault(ability, at)
            elif ability in owners:
                raise ConfigError(_hidden(part, ability, names, at, owners[ability]))
        inner = layer
    if inner is None:
        raise ConfigError("[block_allocator] stack: a stack needs at least one layer")
    return inner


def check_swap(config: Config, parts: Sequence[Part], stack: BlockAllocator) -> None:
    """Raises ConfigError where victims are to be parked, and `stack`, which was built of parts, cannot park anybody."""
    if config.scheduler.preemption != "swap" or swaps(stack):
        return
    if isinstance(stack, SupportsSwap):
        lack, step = "has swap space without a single block", "Make it larger, as in [block_allocator.options.cpu-swap] swap_space_gib = 4"
    else:
        lack, step = "has no swap space", 'Put a layer on top that has, as in [block_allocator] stack = ["cpu-swap", "lru-prefix", "free-list"]'
    where, names = config.place("scheduler", "preemption"), [part.name for part in parts]
    raise ConfigError(f"{where} = 'swap': the stack {names} {lack}, so nobody could be parked. {step}; or leave preemption at 'auto'.")


def _hidden(part: Part, ability: str, names: Sequence[str], at: int, owner: int) -> str:
    order = [*names[:at], *names[at + 1 : -1], names[at], names[-1]]  # over the bottom alone it can hide nothing
    advice = f"Put it beneath: {order}" if owner + 1 < len(names) else "Leave it out: it cannot stand beneath a bottom"
    said = f"{part.place} = {list(names)}: {part.candidate} hides {ability} of {names[owner]} beneath it, which would be disabled. {advice}"
    return f"{said}. A layer that passes it on has to show its members: what __getattr__ answers is not seen"


def _check_stands(part: Part, layer: BlockAllocator, inner: BlockAllocator | None, names: Sequence[str]) -> None:
    """Take one block and give it back: it must come out of the layer beneath, and the bottom must have it itself."""
    before = inner.available if inner is not None else 0
    said = f"{part.place} = {list(names)}: {part.candidate}"
    try:
        taken = layer.take(1)
        reached = inner is None or inner.available < before
        if taken is not None:
            layer.give(taken)
    except Exception as error:
        where, advice = (
            ("stands at the bottom of the stack", "If it needs a layer beneath it, put free-list last")
            if inner is None
            else ("stands on another", "If it is a bottom, such as free-list, put it last")
        )
        what = ended(f"{type(error).__name__}: {error}{place_of(error, __file__)}")
        raise ConfigError(f"{said} {where} and raised, when one block was taken and given back, {what} {advice}") from error
    if taken is None:
        raise ConfigError(f"{said} has no block to give while none is used. Give the pool more memory, or set [block_allocator] num_blocks")
    if not reached:
        raise ConfigError(f"{said} takes no block from the layer beneath it, which would be disabled. Put it last")
