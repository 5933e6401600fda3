"""Bundled plugin: the swap space `cpu-swap`, a layer of the allocator stack. This module is its entry point; it imports no torch."""

from __future__ import annotations

from collections.abc import Sequence

from corekit.api import API_VERSION, BlockAllocator, BuildContext, Provider, SupportsSwap, hookimpl

from .options import CpuSwapOptions

__all__ = ["CpuSwapOptions", "corekit_register_block_allocators"]


def _build(context: BuildContext, options: CpuSwapOptions | None) -> BlockAllocator:
    from .layer import CpuSwap
    from .memory import available_memory, size_swap

    options = options or CpuSwapOptions()
    if context.inner is None:
        raise ValueError('it stands on another layer and is at the bottom here. Put one beneath it, as in stack = ["cpu-swap", "free-list"]')
    if isinstance(context.inner, SupportsSwap) and context.inner.num_host_blocks:
        raise ValueError("a layer beneath it swaps already, and both would use the same host blocks. Keep one of the two in the stack")
    if context.journal is None:
        raise ValueError("it copies through the journal, and there is none in this context. Build it as part of a stack")
    shared = (context.num_blocks + 1) * (context.bytes_per_block or 0) if context.device == "cpu" and context.num_blocks else 0  # block 0 takes memory too
    num_slots = size_swap(options, context.bytes_per_block, available_memory(), pool=shared)
    return CpuSwap(context.inner, context.journal, num_slots=num_slots, max_cached=int(options.cache_share * num_slots))


@hookimpl
def corekit_register_block_allocators() -> Sequence[Provider[BlockAllocator]]:
    return (
        Provider(
            name="cpu-swap",
            api=API_VERSION,
            summary="parks preempted requests in the host's memory, and keeps there what a prefix cache evicts",
            build=_build,
            options=CpuSwapOptions,
        ),
    )
