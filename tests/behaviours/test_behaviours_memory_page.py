"""What the page on KV memory says is so: its files are taken, its numbers are right, its metrics and its log line are there."""

from __future__ import annotations

import asyncio
import logging
import re
from pathlib import Path

import pytest
from corekit_openai_http import HttpOptions
from corekit_openai_http.drain import Drain
from corekit_openai_http.metrics import Meters
from memory_rig import ALL, memory, tell

import corekit
from corekit.api import AllocatorStats, EngineStats
from corekit.compose.assemble import assemble
from corekit.compose.config import load
from corekit.compose.load_log import _write

PAGE = (Path(corekit.__file__).resolve().parents[1] / "docs" / "kv-memory.md").read_text("utf-8")
FILES = dict(re.findall(r"As `([\w.]+)`:\n\n```toml\n(.*?)^```$", PAGE, re.DOTALL | re.MULTILINE))
STAND_IN = {"model": {"source": "none", "use": "fingerprint"}, "frontend": [], "block_allocator": {"num_blocks": 40}}


@pytest.mark.parametrize("name", FILES)
def test_a_file_of_the_page_makes_an_engine(name: str, tmp_path: Path) -> None:
    (tmp_path / name).write_text(FILES[name], "utf-8")
    small = {"options": {"cpu-swap": {"num_host_blocks": 8}}} if "cpu-swap" in FILES[name] else {}
    given = {**STAND_IN, "block_allocator": {**STAND_IN["block_allocator"], **small}}
    with assemble(load(tmp_path / name, environ={}, given=given), frontends=(), environ={}, progress=False) as assembly:
        assert tell_names(assembly.engine.scheduler.blocks.stack) == (["CpuSwap"] if small else []) + ["LruPrefix", "FreeList"]


def tell_names(layer: object) -> list[str]:
    return [] if layer is None else [type(layer).__name__, *tell_names(getattr(layer, "inner", None))]


def test_every_metric_of_the_page_is_served() -> None:
    with memory(stack=ALL, blocks=12) as assembly:
        tell(assembly, [range(40), range(1, 41)])

        async def page() -> str:
            meters = Meters(HttpOptions())
            meters.attach(assembly.client, Drain())
            return (await meters.page(""))[0].decode()

        served = asyncio.run(page())
    named = set(re.findall(r"`(corekit_\w+)`", PAGE))
    assert len(named) > 10
    assert [name for name in named if not re.search(rf"^{name}(_count|[ {{])", served, re.MULTILINE)] == []


def test_the_log_line_is_the_one_of_the_page(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)
    pool = {"num_running": 3, "num_waiting": 1, "num_blocks": 1000, "num_free_blocks": 286, "block_size": 16, "num_steps": 9, "num_cached_tokens": 0}
    none = {"num_prompt_tokens": 0, "num_output_tokens": 0, "num_preemptions": 0, "num_finished": {}}
    some = {"num_prompt_tokens": 8120, "num_output_tokens": 963, "num_preemptions": 2, "num_finished": {}, "num_prefix_queries": 1000, "num_prefix_hits": 382}
    host = {"num_host_blocks": 1000, "memory": AllocatorStats(num_host_used=500, num_host_cached=469), "num_swap_preemptions": 1}
    _write(EngineStats(**pool, **none), EngineStats(**pool, **some, **host), 10)
    (line,) = caplog.records
    assert f"```\n{line.getMessage()}\n```" in PAGE
    fields = re.findall(r"`(\w+)`", PAGE.partition("the same are fields: ")[2].partition(".")[0])
    assert len(fields) == 5
    assert all(hasattr(line, field) for field in fields)


def test_a_block_takes_what_the_page_says() -> None:
    size = 2 * 30 * 3 * 64 * 2 * 16
    assert f"a block of 16 tokens is {size // 1024} KiB, and a gibibyte holds {2**30 // size:,} of them, or {16 * (2**30 // size):,} tokens" in PAGE
