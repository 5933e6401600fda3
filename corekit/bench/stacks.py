"""The allocator layers that a configuration chooses, stacked anew over pools of any size. Knows composition; no model and no step."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from corekit.api import API_VERSION, BlockAllocator, BlockRef, Provider, SupportsPrefixCache

from .errors import BenchUsage

if TYPE_CHECKING:
    from corekit.compose.config import Config
    from corekit.compose.parts import Part

SWAP = "cpu-swap"
"""The layer that adds a host tier."""
NO_MODEL: Mapping[str, Any] = {
    "model.source": "none",
    "model.use": "scripted",
    "model.dtype": "auto",
    "model.max_model_len": 0,
    "tokenizer.use": "bytes",
    "block_allocator.kv_dtype": "auto",
}
"""What a configuration needs so that its layers can be built without its model."""
NO_HOST: Mapping[str, Any] = {"scheduler.preemption": "auto"}
"""What a configuration needs so that its layers can be taken without the host tier."""
NOMINAL_BYTES = 4096
"""Of a block, where there is no pool."""


class CountedCopies:
    """A journal that nobody executes: it counts blocks by direction."""

    def __init__(self) -> None:
        self.num_to_host = 0
        self.num_to_device = 0

    def copy(self, source: BlockRef, target: BlockRef) -> None:
        self.num_to_host += target.on_host
        self.num_to_device += source.on_host and not target.on_host


class Stacks:
    """Invariant: `device` are the configured layers but the host tier, in their order; `bottom` is the last of them alone."""

    def __init__(self, configure: Callable[[Mapping[str, Any]], Config]) -> None:
        from corekit.compose.composition import compose
        from corekit.compose.surroundings import environment

        config = configure(NO_MODEL)
        given: dict[str, Any] = {"frontend": (), "observer": (), "logits_processor": ()}
        self._composition = compose(config, given=given, environ=(environ := environment()), clock=time.monotonic, progress=False)
        self._environ = environ
        self.device = tuple(part for part in self._composition.chosen["block_allocator"] if part.name != SWAP)
        self.bottom = self.device[-1:]

    @property
    def block_size(self) -> int:
        return self._composition.context.block_size

    def check_caches(self) -> None:
        """Raises BenchUsage where nothing can be found because nothing is kept."""
        stack, _ = self.build(self.device, 1)
        if not (isinstance(stack, SupportsPrefixCache) and stack.prefix_cache):
            raise BenchUsage(
                f"[block_allocator] stack: {names(self.device)} caches no prefixes, so there is nothing to measure. "
                'Put a prefix cache over it, as in --set block_allocator.stack=["lru-prefix", "free-list"].'
            )

    def over_host(self, layers: Sequence[Part], num_host_blocks: int) -> tuple[Part, ...]:
        """The layers below a host tier of so many blocks, otherwise as configured."""
        from corekit.compose.parts import Wish, settle

        composition, config = self._composition, self._composition.config
        raw = {**config.block_allocator.options.get(SWAP, {}), "num_host_blocks": num_host_blocks}
        wish = Wish(slot="block_allocator", name=SWAP, place="the host tier", options_path=("block_allocator", "options", SWAP), raw=raw)
        part = settle(wish, composition.catalog, config, self._environ, composition.context)
        assert part is not None
        return (part, *layers)

    def build(self, layers: Sequence[Part], num_blocks: int) -> tuple[BlockAllocator, CountedCopies]:
        from corekit.compose.stack import build_stack

        journal = CountedCopies()
        context = replace(self._composition.context, num_blocks=num_blocks, bytes_per_block=NOMINAL_BYTES, journal=journal)
        return build_stack(layers, context), journal

    def provider(self, layers: Sequence[Part]) -> Provider[BlockAllocator]:
        """The layers as one part, for an engine that is given it."""
        from corekit.compose.stack import build_stack

        return Provider(name="-".join(p.name for p in layers), api=API_VERSION, summary="layers", build=lambda context, options: build_stack(layers, context))


def names(layers: Sequence[Part]) -> str:
    """Top to bottom."""
    return " over ".join(part.name for part in layers)
