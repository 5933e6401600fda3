"""Bundled plugin: the prefix cache `lru-prefix`, a layer of the allocator stack. Importing this entry point loads nothing else."""

from __future__ import annotations

from collections.abc import Sequence

from corekit.api import API_VERSION, BlockAllocator, BuildContext, Provider, SupportsPrefixCache, SupportsSwap, hookimpl

from .options import LruPrefixOptions

__all__ = ["LruPrefixOptions", "corekit_register_block_allocators"]

_ORDER = 'As in [block_allocator] stack = ["cpu-swap", "lru-prefix", "free-list"]'


def _build(context: BuildContext, options: LruPrefixOptions | None) -> BlockAllocator:
    from .layer import LruPrefix

    inner = context.inner
    if inner is None:
        raise ValueError(
            "lru-prefix is the last of the stack, and has no blocks of its own: it keeps those of the layer beneath it. "
            f"Put a bottom, such as free-list, last. {_ORDER}"
        )
    if isinstance(inner, SupportsSwap) and inner.num_host_blocks:
        raise ValueError(
            f"lru-prefix stands on {type(inner).__name__}, which parks blocks on the host: from there it would see neither what is cached nor what is "
            f"evicted, and the engine would not see that it can park. Put the layer that swaps above lru-prefix. {_ORDER}"
        )
    if isinstance(inner, SupportsPrefixCache) and inner.prefix_cache:
        raise ValueError(
            f"lru-prefix stands on {type(inner).__name__}, which has a prefix cache already: nothing would be published there, so it would be disabled. "
            f"Take one of the two out. {_ORDER}"
        )
    return LruPrefix(inner, options or LruPrefixOptions(), clock=context.clock, seed=context.seed)


@hookimpl
def corekit_register_block_allocators() -> Sequence[Provider[BlockAllocator]]:
    return (
        Provider(
            name="lru-prefix",
            api=API_VERSION,
            summary="prefix cache: full blocks stay findable until their room is needed, the least recently used goes first",
            build=_build,
            options=LruPrefixOptions,
        ),
    )
