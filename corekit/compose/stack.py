"""Builds the allocator's layers, bottom up, and proves that none is disabled. Knows no layer by name."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from corekit.api import BlockAllocator, BuildContext

from .errors import ConfigError, ended, place_of
from .parts import Part


def build_stack(parts: Sequence[Part], context: BuildContext) -> BlockAllocator:
    """The top of the stack. Raises ConfigError when a layer does not stand on the one beneath it."""
    inner: BlockAllocator | None = None
    for part in reversed(parts):
        try:
            layer: BlockAllocator = part.build(replace(context, inner=inner))
        except ValueError as error:
            raise ConfigError(f"{part.place} = {[p.name for p in parts]}: {part.candidate}: {error}") from error
        _check_stands(part, layer, inner, [p.name for p in parts])
        inner = layer
    if inner is None:
        raise ConfigError("[block_allocator] stack: a stack needs at least one layer")
    return inner


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
