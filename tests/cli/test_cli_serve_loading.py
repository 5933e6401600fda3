"""`corekit serve` while its model loads: the port is open, every route says what it knows, a signal ends it at once and a failure in order."""

from __future__ import annotations

import json
import signal
import socket
import time
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from urllib.error import HTTPError

import pytest
from cli_process import SCRIPTED, Running, environment, running, write

NO_PROXY = urllib.request.build_opener(urllib.request.ProxyHandler({}))
PLUGIN = """
import os, pathlib, time, torch
from corekit.api import Provider, hookimpl
from corekit.builtin.scripted import Scripted

class Slow(Scripted):
    def load(self, weights, shard):
        print("weights are being loaded", flush=True)
        while not os.path.exists(GATE):
            torch.empty(1 << 20).fill_(1.0)  # in native code most of the time, as those are that really load
        text = pathlib.Path(GATE).read_text()
        if text:
            raise ValueError(text)
        super().load(weights, shard)

@hookimpl
def corekit_register_models():
    return (Provider(name="slow", api=1, summary="loads for as long as a test wants", build=lambda context, options: Slow()),)
"""


@contextmanager
def loading(folder: Path, gate: Path) -> Iterator[tuple[Running, str]]:
    """A server whose weights are being loaded, until there is a file `gate`, and its address; what that file says is the fault."""
    (folder / "slow_to_load.py").write_text(f"GATE = {str(gate)!r}\n{PLUGIN}")
    text = SCRIPTED.replace('"scripted"', '"slow"').replace('["corekit_openai_http"]', '["corekit_openai_http", "slow_to_load"]')
    port = _free_port()
    with running("serve", write(folder, text), "--port", str(port), PYTHONPATH=f"{folder}:{environment().get('PYTHONPATH', '')}") as server:
        server.wait_for("weights are being loaded")
        yield server, f"http://127.0.0.1:{port}"


def _free_port() -> int:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        return int(free.getsockname()[1])


def get(url: str, body: bytes | None = None) -> tuple[int, dict[str, object], dict[str, str]]:
    request = urllib.request.Request(url, body, {"content-type": "application/json"})
    try:
        with NO_PROXY.open(request, timeout=30) as answer:
            return answer.status, json.load(answer), dict(answer.headers)
    except HTTPError as error:
        return error.code, json.load(error)["error"], dict(error.headers)


def test_the_port_is_open_before_weights_load(tmp_path: Path) -> None:
    gate = tmp_path / "gate"
    with loading(tmp_path, gate) as (server, address):
        for path, body in (("/health", None), ("/ready", None), ("/v1/completions", b"{"), ("/v1/chat/completions", b"no JSON")):
            status, error, headers = get(address + path, body)
            assert (status, error["code"]) == (503, "loading"), path
            assert headers["retry-after"] == "1"
            assert headers["x-should-retry"] == "true"
        assert get(address + "/version")[0] == 200
        status, models, _ = get(address + "/v1/models")
        assert status == 200
        name = models["data"][0]["id"]  # type: ignore[index]
        gate.touch()
        server.wait_for("listening on")
        assert get(address + "/ready")[0] == 200
        assert get(address + "/v1/completions", json.dumps({"model": name, "prompt": "a"}).encode())[0] == 200
        server.process.send_signal(signal.SIGTERM)
        assert server.end() == 0


def test_a_signal_ends_it_at_once_though_a_thread_is_in_native_code(tmp_path: Path) -> None:
    with loading(tmp_path, tmp_path / "never") as (server, _):
        began = time.monotonic()
        server.process.send_signal(signal.SIGTERM)
        assert server.end() == 0
        assert time.monotonic() - began < 5.0
        assert [line for line in server.lines if "Traceback" in line or "terminate" in line] == []


@pytest.mark.ci
def test_a_load_that_fails_is_exit_code_4_and_one_message(tmp_path: Path) -> None:
    gate = tmp_path / "gate"
    with loading(tmp_path, gate) as (server, _):
        (tmp_path / "ready").write_text("a block of these weights is damaged")
        (tmp_path / "ready").rename(gate)
        assert server.end() == 4
        said = [line for line in server.lines if "damaged" in line]
        assert len(said) == 1
        assert said[0].startswith("corekit: ")
        assert "Traceback" not in server.text
