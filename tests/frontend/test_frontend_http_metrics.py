"""What /metrics says of KV memory: states that add up, tokens where blocks were counted, and no host where there is none."""

from __future__ import annotations

import re
from collections import defaultdict
from dataclasses import replace
from pathlib import Path

import pytest
from http_live import Live, PlainClient
from prometheus_client.parser import text_string_to_metric_families

from corekit.api import AllocatorStats, Durations, EngineStats

PAGE = (Path(__file__).parents[2] / "docs/http.md").read_text("utf-8")
COUNTS = PlainClient().counts
HOST = {"corekit_host_kv_blocks", "corekit_cpu_cache_usage_perc", "corekit_swap_refusals", "corekit_kv_copied_bytes"}
TIMES = {"corekit_kv_block_lifetime_seconds", "corekit_kv_block_idle_before_evict_seconds", "corekit_kv_block_reuse_gap_seconds"}


def page(counts: EngineStats) -> str:
    with Live(PlainClient(counts=counts)) as live:
        text = live.http.get("/metrics").text
    return str(text)


def families(counts: EngineStats) -> set[str]:
    return {family.name for family in text_string_to_metric_families(page(counts))}


def numbers(counts: EngineStats) -> dict[tuple[str, ...], float]:
    """By name and values of the labels but the model's."""
    samples = [sample for family in text_string_to_metric_families(page(counts)) for sample in family.samples]
    found = {(sample.name, *(value for label, value in sample.labels.items() if label != "model_name")): sample.value for sample in samples}
    return defaultdict(lambda: float("nan"), found)


def test_blocks_by_state() -> None:
    found = numbers(COUNTS)
    assert [found["corekit_kv_blocks", state] for state in ("used", "idle", "free")] == [2, 2, 4]
    assert found[("corekit_kv_cache_usage_perc",)] == 0.25, "cached blocks that nobody uses are not used"
    assert found[("corekit_kv_blocks_retained",)] == 1
    assert [found["corekit_host_kv_blocks", state] for state in ("parked", "cached", "free")] == [2, 3, 5]
    assert found[("corekit_cpu_cache_usage_perc",)] == 0.2


@pytest.mark.parametrize("num_idle", [0, 3, 6, 8])
def test_states_add_up_to_the_pool_however_old_the_layers_counts_are(num_idle: int) -> None:
    found = numbers(replace(COUNTS, memory=AllocatorStats(num_idle=num_idle)))
    states = [found["corekit_kv_blocks", state] for state in ("used", "idle", "free")]
    assert sum(states) == COUNTS.num_blocks
    assert min(states) >= 0
    assert states[0] == 2


def test_the_prefix_cache_is_counted_in_tokens() -> None:
    found = numbers(COUNTS)
    assert found[("corekit_prefix_cache_queries_total",)] == 48
    assert found[("corekit_prefix_cache_hits_total",)] == 32
    assert found[("corekit_prefix_cache_evictions_total",)] == 7 * 16


def test_preemptions_by_mode_add_up_to_the_plain_count() -> None:
    found = numbers(COUNTS)
    modes = [found["corekit_num_preemptions_by_mode_total", mode] for mode in ("recompute", "swap")]
    assert modes == [1, 2]
    assert found[("corekit_num_preemptions_total",)] == sum(modes)
    assert found[("corekit_swap_refusals_total",)] == 1
    assert [found["corekit_kv_copied_bytes_total", way] for way in ("to_host", "to_device")] == [4096, 2048]


def test_times_are_histograms() -> None:
    found = numbers(COUNTS)
    name = "corekit_kv_block_lifetime_seconds"
    assert [found[f"{name}_bucket", le] for le in ("1.0", "60.0", "+Inf")] == [1, 3, 7]
    assert (found[(f"{name}_count",)], found[(f"{name}_sum",)]) == (7, 500)
    assert found[("corekit_kv_block_reuse_gap_seconds_count",)] == 0


def test_what_is_not_there_has_no_metric() -> None:
    everything = families(COUNTS)
    assert everything >= HOST | TIMES
    assert families(replace(COUNTS, num_host_blocks=0)) == everything - HOST
    assert families(replace(COUNTS, memory=replace(COUNTS.memory, residency=Durations()))) == everything - {"corekit_kv_block_lifetime_seconds"}
    bare = EngineStats(
        num_running=0,
        num_waiting=0,
        num_blocks=0,
        num_free_blocks=0,
        block_size=16,
        num_prompt_tokens=0,
        num_output_tokens=0,
        num_cached_tokens=0,
        num_preemptions=0,
        num_finished={},
        num_steps=0,
    )
    assert families(bare) == everything - HOST - TIMES


def test_the_page_has_every_metric() -> None:
    """With its type and labels, as it is called in the text form."""
    listed = {name: (kind, labels) for name, kind, labels in re.findall(r"^\| `(\w+)` \| (\w+) \| (.*?) \| .+ \|$", PAGE, re.MULTILINE)}
    with Live(PlainClient()) as live:
        live.http.get("/health")
        parsed = list(text_string_to_metric_families(live.http.get("/metrics").text))
    found = {}
    for family in (family for family in parsed if not family.name.startswith("process_")):
        labels = {label: None for sample in family.samples for label in sample.labels if label != "le"}
        assert (labels.pop("model_name", "none") is None) is family.name.startswith("corekit_")
        found[family.name + ("_total" if family.type == "counter" else "")] = (family.type, ", ".join(f"`{label}`" for label in labels) or "-")
    assert listed == found
