"""The engine's own statistics as metrics, read when they are asked for. Keeps nothing."""

from __future__ import annotations

from collections.abc import Iterator

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric

from corekit.api import EngineClient, EngineStats

from .families import by
from .memory_metrics import device_memory, host_memory

_REASONS = ("stop", "length", "abort", "error")


def engine_counts(client: EngineClient) -> Iterator[Metric]:
    stats = client.stats()
    yield GaugeMetricFamily("corekit_engine_alive", "0: the engine is dead. 1 while it loads, too.", float(_is_alive(client)))
    yield GaugeMetricFamily("corekit_num_requests_running", "Requests that hold a seat.", stats.num_running)
    yield GaugeMetricFamily("corekit_num_requests_waiting", "Requests in the queue.", stats.num_waiting)
    deferred = min(stats.num_deferred, stats.num_waiting)
    reasons = {"capacity": stats.num_waiting - deferred, "deferred": deferred}
    yield by("corekit_num_requests_waiting_by_reason", "The same, by what they wait for: room, or something else.", "reason", reasons)
    used = 1 - stats.num_free_blocks / stats.num_blocks if stats.num_blocks else 0.0
    yield GaugeMetricFamily("corekit_kv_cache_usage_perc", "Share of KV blocks that requests use, 0 to 1; cached ones that nobody uses are free.", used)
    yield CounterMetricFamily("corekit_prompt_tokens", "Prompt tokens of accepted requests.", stats.num_prompt_tokens)
    yield CounterMetricFamily("corekit_generation_tokens", "Tokens generated.", stats.num_output_tokens)
    yield CounterMetricFamily("corekit_num_preemptions", "Times a request lost its blocks.", stats.num_preemptions)
    finished = {reason: stats.num_finished.get(reason, 0) for reason in _REASONS}
    yield by("corekit_request_success", "Requests that ended, by reason.", "finished_reason", finished, CounterMetricFamily)
    yield _cache(stats)
    yield from device_memory(stats)
    if stats.num_host_blocks:
        yield from host_memory(stats)


def _is_alive(client: EngineClient) -> bool:
    health = client.health()
    return health.state == "ready" or health.loading


def _cache(stats: EngineStats) -> Metric:
    sizes = {"block_size": stats.block_size, "num_blocks": stats.num_blocks, "num_host_blocks": stats.num_host_blocks}
    family = GaugeMetricFamily("corekit_cache_config_info", "Sizes of the KV cache, in its labels.", labels=list(sizes))
    family.add_metric(list(map(str, sizes.values())), 1)
    return family
