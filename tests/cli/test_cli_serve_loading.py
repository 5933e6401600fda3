"""`corekit serve` at both ends of its life: while its model loads, when that fails, and when its engine dies."""

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

    def forward(self, inputs, attend):
        if os.path.exists(GATE + ".fatal"):
            raise SystemExit("no fault of a request")
        time.sleep(0.02)
        return super().forward(inputs, attend)

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


@pytest.mark.ci
def test_an_engine_that_dies_is_told_to_every_client_and_ends_the_process_with_exit_code_1(tmp_path: Path) -> None:
    gate = tmp_path / "gate"
    gate.touch()
    with loading(tmp_path, gate) as (server, address):
        server.wait_for("listening on")
        asked = {"model": get(address + "/v1/models")[1]["data"][0]["id"], "prompt": "a", "max_tokens": 400, "ignore_eos": True}  # type: ignore[index]
        request = urllib.request.Request(f"{address}/v1/completions", json.dumps({**asked, "stream": True}).encode(), {"content-type": "application/json"})
        streams = [NO_PROXY.open(request, timeout=30) for _ in range(4)]
        assert all(stream.readline().startswith(b"data: {") for stream in streams)
        gate.with_name("gate.fatal").touch()
        began = time.monotonic()
        for stream in streams:
            text = stream.read().decode()
            assert '"code":"engine_dead"' in text.rstrip().rpartition("\n\n")[2]
            assert "[DONE]" not in text
        assert time.monotonic() - began < 1.5
        assert server.end() == 1
        assert len([line for line in server.lines if line.startswith("corekit: the engine's loop failed: SystemExit")]) == 1
