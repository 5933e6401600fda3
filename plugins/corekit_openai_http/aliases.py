"""The same metrics under the names that vLLM gives them, for dashboards, autoscalers and gateways that look for those. Knows names alone."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from prometheus_client.core import Metric

_PREFIX, _VLLM = "corekit_", "vllm:"
_SAME = frozenset(
    {
        "cache_config_info",
        "e2e_request_latency_seconds",
        "generation_tokens",
        "inter_token_latency_seconds",
        "iteration_tokens_total",
        "kv_block_idle_before_evict_seconds",
        "kv_block_lifetime_seconds",
        "kv_block_reuse_gap_seconds",
        "kv_cache_usage_perc",
        "num_preemptions",
        "num_requests_running",
        "num_requests_waiting",
        "num_requests_waiting_by_reason",
        "prefix_cache_hits",
        "prefix_cache_queries",
        "prompt_tokens",
        "request_decode_time_seconds",
        "request_generation_tokens",
        "request_inference_time_seconds",
        "request_max_num_generation_tokens",
        "request_params_max_tokens",
        "request_params_n",
        "request_prefill_time_seconds",
        "request_prompt_tokens",
        "request_queue_time_seconds",
        "request_success",
        "request_time_per_output_token_seconds",
        "time_to_first_token_seconds",
    }
)
"""Names of today. Those of counters stand without `_total`, which is written with their samples."""

_OLDER: Mapping[str, str] = {
    "cpu_cache_usage_perc": "cpu_cache_usage_perc",
    "inter_token_latency_seconds": "time_per_output_token_seconds",
    "kv_cache_usage_perc": "gpu_cache_usage_perc",
    "prefix_cache_hits": "gpu_prefix_cache_hits",
    "prefix_cache_queries": "gpu_prefix_cache_queries",
}
"""Our name -> one that vLLM once had."""

_LABELS: Mapping[str, str] = {"num_blocks": "num_gpu_blocks", "num_host_blocks": "num_cpu_blocks"}


def vllm_aliases(family: Metric) -> Iterator[Metric]:
    """The names that a family has there: today's, then an older one, which its text calls deprecated."""
    name = family.name.removeprefix(_PREFIX)
    if name in _SAME:
        yield _renamed(family, _VLLM + name, family.documentation)
    if name in _OLDER:
        today = family.name + ("_total" if family.type == "counter" else "")
        yield _renamed(family, _VLLM + _OLDER[name], f"Deprecated: an older name of {today}. {family.documentation}")


def _renamed(family: Metric, name: str, meaning: str) -> Metric:
    renamed = Metric(name, meaning, family.type)
    for sample in family.samples:
        labels = {_LABELS.get(label, label): value for label, value in sample.labels.items()}
        renamed.samples.append(sample._replace(name=name + sample.name[len(family.name) :], labels={**labels, "engine": "0"}))
    return renamed
