"""The program of the benchmarks page runs as it stands, with a model without weights in the place of the demo."""

from __future__ import annotations

import asyncio
import json
import runpy
from pathlib import Path

import pytest
from page_files import write


def test_the_traced_engine_leaves_its_trace(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    stand_in = {"MODEL__SOURCE": "none", "MODEL__USE": "scripted", "MODEL__OPTIONS__TEXTS": '["Paris."]', "TOKENIZER__USE": "bytes"}
    for name, value in {**stand_in, "BLOCK_ALLOCATOR__NUM_BLOCKS": "64"}.items():
        monkeypatch.setenv(f"COREKIT__{name}", value)
    monkeypatch.chdir(write("benchmarks.md", tmp_path))
    asyncio.run(runpy.run_path("traced.py")["main"]())
    assert "Paris" in capsys.readouterr().out
    events = json.loads((tmp_path / "trace.json").read_bytes())["traceEvents"]
    assert {"step 0", "plan", "submit", "collect", "commit", "queued", "prefill", "decode"} <= {event["name"] for event in events}
