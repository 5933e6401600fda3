"""The corridor that architecture.md draws is the way that a request takes through the files."""

from __future__ import annotations

import asyncio
import re
import sys
import threading
from pathlib import Path
from types import FrameType
from typing import Any

import corekit
from corekit import SamplingParams, assemble
from corekit.api import Prompt

ROOT = Path(corekit.__file__).parent
TABLES = {"model": {"source": "none", "use": "fingerprint"}, "tokenizer": {"use": "bytes"}, "block_allocator": {"num_blocks": 8}}


def drawn() -> list[str]:
    """room/file, as they stand in the drawing from top to bottom."""
    text = (Path(__file__).resolve().parents[2] / "docs" / "architecture.md").read_text("utf-8")
    (drawing,) = re.findall(r"^```\n( caller's event loop.*?)^```$", text, re.DOTALL | re.MULTILINE)
    return re.findall(r"\b(?:engine|worker)/\w+", drawing)


def walked() -> list[str]:
    """Every call into a file of corekit while one request gets its only token, from whichever thread."""
    calls: list[str] = []

    def note(frame: FrameType, event: str, argument: Any) -> None:
        if event == "call" and (path := Path(frame.f_code.co_filename)).is_relative_to(ROOT):
            calls.append(path.relative_to(ROOT).with_suffix("").as_posix())

    async def ask(assembly: Any) -> None:
        async for _ in assembly.client.generate(Prompt(text="hello"), SamplingParams(max_tokens=1)):
            pass

    async def main() -> None:
        with assemble(TABLES, environ={}, frontends=[]) as assembly:
            await ask(assembly)  # whatever happens once
            while not assembly.engine.idle:
                await asyncio.sleep(0.01)
            calls.clear()
            sys.setprofile(note)
            try:
                await ask(assembly)
            finally:
                sys.setprofile(None)

    threading.setprofile(note)  # for the engine's thread, which is not there yet
    try:
        asyncio.run(main())
    finally:
        threading.setprofile(None)  # type: ignore[arg-type]
    return calls


def astray(files: list[str], calls: list[str]) -> str:
    """The first of the files that is not called after those before it; "" when all are."""
    at = 0
    for file in files:
        if file not in calls[at:]:
            return file
        at = calls.index(file, at) + 1
    return ""


def test_a_request_walks_as_drawn() -> None:
    """The drawing, read from top to bottom, is in the order of the calls: one request, one token, one step."""
    files, calls = drawn(), walked()
    assert len(files) > 12
    assert astray(files, calls) == ""
    for turned in (["engine/planner", "engine/door"], ["worker/outcome", "worker/runner"], ["worker/rows", "engine/constraints"]):
        assert astray(turned, calls), f"the other way round is walked too: {turned}"
