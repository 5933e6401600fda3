"""How a part of slot `block_allocator` is put in a stack for its laws. Knows no law and no implementation."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import cached_property
from typing import Any, ClassVar, Final, TypeVar

from corekit.api import API_VERSION, BlockAllocator, BuildContext, Provider
from corekit.compose.catalog import Candidate, build_catalog
from corekit.compose.discovery import Plugin, discover
from corekit.compose.options import read_options

from .block_calls import BLOCK_SIZE, Calls, Clock, Journal
from .block_ledger import Ledger
from .kit import Kit
from .prefix_cache import PlainPrefixCache

NUM_BLOCKS = 12
C = TypeVar("C", bound=Calls)
CACHE: Final = Provider(
    name="kits-prefix-cache",
    api=API_VERSION,
    summary="the prefix cache that kits build layers over",
    build=lambda context, options: PlainPrefixCache(_inner(context), context.clock),
)


class StackKit(Kit):
    """A layer is built over `beneath`, and every law is asked of the whole stack.

    A layer over a stack that caches nothing is asked again over a prefix cache of the kit's own, which it has to pass on.
    """

    slot = "block_allocator"
    beneath: ClassVar[Sequence[Provider[Any] | str] | None] = None
    """The layers beneath, top to bottom, as TOML would name them. () for a bottom; None: free-list, unless the part refuses to stand on it."""
    abilities: ClassVar[frozenset[str]] = frozenset()
    """What the part over `beneath` offers, so that the laws of it are surely asked: prefix_cache, swap, eviction_sink, forgetting, audit; and of what
    a part need not do: retention, reservation (a key that stays on the device is parked without a copy), shared_slots (siblings
    park equal keys once)."""
    hides_prefix_cache: ClassVar[bool] = False
    """It does not mean to pass on the prefix cache of a layer beneath."""

    @property
    def passes_on(self) -> bool:
        """It is a layer over a stack that caches nothing, so that what it makes of a cache beneath shows over the kit's own."""
        return self.is_layer and not self.hides_prefix_cache and not self.ledger().caches

    def context(self) -> BuildContext:
        """Everything that a layer may count on: the pool, the journal and the layers beneath."""
        context = _empty()
        return replace(context, inner=self._beneath(context))

    @cached_property
    def layers(self) -> Sequence[Candidate]:
        """The whole stack, top to bottom. Looked for once: discovery reads every distribution that is installed."""
        own, free = super().candidate(), found("free-list")
        if self.beneath is None:
            return (own, free) if _stands(own, free, self.options) else (own,)
        return (own, *map(found, self.beneath))

    @property
    def is_layer(self) -> bool:
        """It has a layer beneath."""
        return len(self.layers) > 1

    def candidate(self) -> Candidate:
        """The part itself, on top."""
        return self.layers[0]

    def _beneath(self, context: BuildContext, *, cache: bool = False) -> BlockAllocator | None:
        inner: BlockAllocator | None = None
        for candidate in ((found(CACHE), *self.layers[1:]) if cache else self.layers[1:])[::-1]:
            inner = candidate.provider.build(replace(context, inner=inner), read_options(candidate, {}, lambda path: "the kit", {}))
        return inner

    def core(self, kind: type[C], num_blocks: int = NUM_BLOCKS, *, cache: bool = False) -> C:
        """A fresh stack with this part on top, and the core's side of it."""
        context = replace(self.context(), num_blocks=num_blocks, journal=(journal := Journal()), clock=(clock := Clock()))
        return kind(self.build(replace(context, inner=self._beneath(context, cache=cache))), journal, num_blocks, clock)

    def ledger(self, num_blocks: int = NUM_BLOCKS, *, cache: bool = False) -> Ledger:
        """For laws that ask one call after the other."""
        return self.core(Ledger, num_blocks, cache=cache)

    def everywhere(self, kind: type[C]) -> Iterator[Callable[[int], C]]:
        """Of every stack that the laws are asked of: (number of blocks) -> a fresh one."""
        yield lambda num_blocks: self.core(kind, num_blocks)
        if self.passes_on:
            yield lambda num_blocks: self.core(kind, num_blocks, cache=True)

    def makers(self) -> Iterator[Callable[[int], Ledger]]:
        yield from self.everywhere(Ledger)

    def caching(self) -> Iterator[Callable[[int], Ledger]]:
        """Those that cache prefixes."""
        for make in self.makers():
            if make(NUM_BLOCKS).caches:
                yield make


def found(part: Provider[Any] | str) -> Candidate:
    """A layer given as TOML would name it, or as an object."""
    if isinstance(part, str):
        return build_catalog(discover()).find("block_allocator", part, "the kit's beneath")
    return Candidate(slot="block_allocator", provider=part, plugin=Plugin(distribution="(kit)", version="", entry="kit", module=""))


def _empty() -> BuildContext:
    return BuildContext(num_blocks=NUM_BLOCKS, block_size=BLOCK_SIZE, bytes_per_block=1 << 20, journal=Journal(), max_num_seqs=8, max_model_len=256)


def _stands(own: Candidate, free: Candidate, options: Mapping[str, Any]) -> bool:
    """A bottom refuses a layer beneath it by ValueError, as it refuses a wrong stack in TOML. Whatever else is wrong, the laws will say."""
    context = replace(_empty(), inner=free.provider.build(_empty(), None))
    try:
        own.provider.build(context, read_options(own, options, lambda path: "the kit's options", {}))
    except ValueError:
        return False
    except Exception:
        return True
    return True


def _inner(context: BuildContext) -> BlockAllocator:
    assert context.inner is not None, "a prefix cache stands on another layer"
    return context.inner
