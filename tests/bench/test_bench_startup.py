"""`corekit bench startup`: a server in a process of its own, asked once. Nothing is asserted about how long it takes."""

from __future__ import annotations

import json
from itertools import pairwise
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from corekit.bench.errors import BenchError
from corekit.bench.startup import _check
from corekit.cli.bench import bench

SCRIPTED = ["none", "--set", "model.use=scripted", "--set", "block_allocator.num_blocks=64", "--set", 'plugins.import=["corekit_openai_http"]']
ONCE = ["--reps", "1", "--warmup", "0", "--max-foreign", "4096"]


def invoked(*arguments: str) -> Result:
    return CliRunner().invoke(bench, ["startup", *arguments], catch_exceptions=False)


def test_stages_come_in_order_and_memory_is_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What is measured is the installation: a checkout in the current folder may lack its native modules."""
    (tmp_path / "corekit.py").write_text("raise SystemExit('the current folder was imported')")
    monkeypatch.chdir(tmp_path)
    result = invoked(*SCRIPTED, *ONCE, "--tokens", "3", "--json", "-")
    assert result.exit_code == 0, result.output
    found = json.loads(result.stdout)
    assert found["bench"] == "startup"
    assert found["subject"]["output_tokens"] == 3
    (server, torch) = found["attempts"]
    stages = ["configured", "composed", "loaded", "listening", "first_byte", "last_byte"]
    times = [server[f"{stage}_seconds"] for stage in stages]
    assert times[0] > 0
    assert all(later > earlier - 0.1 for earlier, later in pairwise(times)), "lines and the port are read by two threads, so a little is allowed"
    assert server["peak_mib"] >= server["anonymous_mib"] > torch["anonymous_mib"] > 1
    assert server["cpu_seconds"] > torch["cpu_seconds"] > 0
    for name in (*(f"{stage}_seconds" for stage in stages), "mapped_mib", "only_torch_seconds", "only_torch_peak_mib"):
        assert found["spreads"][name]["median"] > 0
        assert name.replace("_", " ") in result.stderr


def test_a_server_that_does_not_start_says_why() -> None:
    result = invoked("none", "--set", "model.use=nonesuch", *ONCE)
    assert result.exit_code == 1
    assert "the process ended with code 3 before it was ready. Its last lines:" in result.stderr
    assert "no such provider" in result.stderr


def test_a_start_that_takes_too_long_is_ended() -> None:
    result = invoked(*SCRIPTED, *ONCE, "--timeout", "0.05")
    assert result.exit_code == 1
    assert "the start took longer than 0.05 s. Raise --timeout." in result.stderr


def test_an_answer_of_another_length_is_no_measurement() -> None:
    event = b'data: {"choices": [], "usage": {"completion_tokens": 2}}\n\ndata: [DONE]\n\n'
    _check(200, event, 2)
    with pytest.raises(BenchError, match=r"asked for 3 tokens and got 2"):
        _check(200, event, 3)
    with pytest.raises(BenchError, match=r"answered 503: busy"):
        _check(503, b"busy", 3)
