"""Metrics of KV memory, from the engine's own counts. Tokens are tokens of the prefix cache; knows no layer of the allocator stack."""

from __future__ import annotations

from collections.abc import Iterator

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric

from corekit.api import EngineStats

from .families import by, durations


def device_memory(stats: EngineStats) -> Iterator[Metric]:
    memory = stats.memory
    # They were read a moment apart: what is not used is split by what was idle then, so that the states always add up to the pool.
    idle = min(memory.num_idle, stats.num_free_blocks)
    states = {"used": stats.num_blocks - stats.num_free_blocks, "idle": idle, "free": stats.num_free_blocks - idle}
    yield by("corekit_kv_blocks", "KV blocks: used by requests, idle (cached, and given away when space is needed), or free.", "state", states)
    yield GaugeMetricFamily("corekit_kv_blocks_retained", "KV blocks that are kept longer because a request asked for it.", memory.num_retained)
    yield CounterMetricFamily("corekit_prefix_cache_queries", "Prompt tokens looked for in the prefix cache.", stats.num_prefix_queries)
    yield CounterMetricFamily("corekit_prefix_cache_hits", "Prompt tokens found in the prefix cache.", stats.num_prefix_hits)
    yield CounterMetricFamily("corekit_prefix_cache_evictions", "Tokens that left the prefix cache.", memory.num_evicted * stats.block_size)
    modes = {"recompute": stats.num_preemptions - stats.num_swap_preemptions, "swap": stats.num_swap_preemptions}
    yield by("corekit_num_preemptions_by_mode", "Times a request lost its blocks, by what became of them.", "mode", modes, CounterMetricFamily)
    yield from durations("corekit_kv_block_lifetime_seconds", "From when a block was cached to its eviction (a sample).", memory.residency)
    yield from durations("corekit_kv_block_idle_before_evict_seconds", "From a block's last use to its eviction (a sample).", memory.idle_before_evict)
    yield from durations("corekit_kv_block_reuse_gap_seconds", "From one use of a cached block to the next (a sample).", memory.reuse_gap)


def host_memory(stats: EngineStats) -> Iterator[Metric]:
    """For an engine that has swap space."""
    total, used, cached = stats.num_host_blocks, stats.memory.num_host_used, stats.memory.num_host_cached
    states = {"parked": used - cached, "cached": cached, "free": total - used}
    yield by("corekit_host_kv_blocks", "KV blocks of the swap space: of parked requests, cached (given away when space is needed), or free.", "state", states)
    yield GaugeMetricFamily("corekit_cpu_cache_usage_perc", "Share of the swap space that parked requests use, 0 to 1.", (used - cached) / total)
    yield CounterMetricFamily("corekit_swap_refusals", "Preemptions that had to recompute because the swap space was full.", stats.num_swap_refusals)
    directions = {"to_host": stats.num_bytes_to_host, "to_device": stats.num_bytes_to_device}
    yield by("corekit_kv_copied_bytes", "Bytes of KV blocks copied between device and host.", "direction", directions, CounterMetricFamily)
