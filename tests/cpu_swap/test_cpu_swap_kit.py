"""The kit of the slot on `cpu-swap`: over a bottom and over the prefix cache, and its widest laws with other host pools."""

from __future__ import annotations

from typing import Any

import pytest
from kit_mutants import subject

from corekit.testing import BlockAllocatorKit


class TestOverFreeList(BlockAllocatorKit):
    provider = "cpu-swap"
    options = {"num_host_blocks": 8}  # noqa: RUF012
    abilities = frozenset({"swap", "audit"})


class TestOverPrefixCache(BlockAllocatorKit):
    provider = "cpu-swap"
    options = {"num_host_blocks": 8}  # noqa: RUF012
    beneath = ("lru-prefix", "free-list")
    abilities = frozenset({"swap", "prefix_cache", "retention", "reservation", "shared_slots", "forgetting", "audit"})


@pytest.mark.parametrize(
    "options",
    [{"swap_space_gib": 0.0}, {"num_host_blocks": 2}, {"num_host_blocks": 64}, {"num_host_blocks": 8, "cache_share": 0.0}],
    ids=["no host blocks", "fewer than a request has", "more than the device has", "parked requests alone"],
)
@pytest.mark.parametrize("law", ["test_every_request_reads_its_own_tokens", "test_everything_is_back_at_the_end", "test_the_engine_answers_the_same"])
def test_with_other_host_pools(law: str, options: dict[str, Any]) -> None:
    getattr(subject(BlockAllocatorKit, "cpu-swap", options, beneath=("lru-prefix", "free-list"), abilities=frozenset({"prefix_cache"})), law)()
