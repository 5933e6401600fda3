"""The kit on our own layers, and on right layers of the tests' own."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest
from counting_layer import COUNTING, block
from host_layer import HostLayer

from corekit.api import Provider
from corekit.compose.composition import find_catalog
from corekit.compose.config import load
from corekit.testing import BlockAllocatorKit
from corekit.testing.prefix_cache import PlainPrefixCache

CACHE = Provider(name="plain-cache", api=1, summary="keeps what was given back findable", build=lambda context, options: PlainPrefixCache(context.inner))
HOST = Provider(name="host", api=1, summary="parks blocks on the host", build=lambda context, options: HostLayer(context.inner, context.journal, 6))


class TestFreeList(BlockAllocatorKit):
    provider = "free-list"


class TestCounting(BlockAllocatorKit):
    provider = COUNTING


class TestPrefixCache(BlockAllocatorKit):
    provider = CACHE
    abilities = frozenset({"prefix_cache", "eviction_sink", "audit"})


class TestHostOverFreeList(BlockAllocatorKit):
    provider = HOST
    abilities = frozenset({"swap"})


class TestHostOverCache(BlockAllocatorKit):
    provider = HOST
    beneath = (CACHE, "free-list")
    abilities = frozenset({"swap", "prefix_cache"})


def test_the_page_shows_how_to_use_the_layer(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "counting.py").write_text(block("counting.py"), "utf-8")
    (tmp_path / "counting.toml").write_text(block("counting.toml"), "utf-8")
    monkeypatch.syspath_prepend(str(tmp_path))
    config = load(tmp_path / "counting.toml", environ={})
    assert find_catalog(config).find("block_allocator", "counting", "here").plugin.module == "counting"
    assert config.block_allocator.stack == ("counting", "free-list")
    monkeypatch.delitem(sys.modules, "counting")
