"""The example of docs/slots/frontend.md, as it stands there: serves, survives bad peers, aborts for those that leave, ends when cancelled."""

from __future__ import annotations

import asyncio
import re
import socket
from importlib import import_module
from pathlib import Path
from typing import Any

import pytest
import tomli
from http_live import PlainClient

from corekit.api import EngineDead

PAGE = (Path(__file__).parents[2] / "docs/slots/frontend.md").read_text("utf-8")


def block(language: str) -> str:
    (found,) = re.findall(rf"^```{language}\n(.*?)^```$", PAGE, re.DOTALL | re.MULTILINE)
    return str(found)


def build(module: Any, port: int) -> Any:
    """The frontend, by way of its provider."""
    (provider,) = module.corekit_register_frontends()
    (chosen,) = tomli.loads(block("toml"))["frontend"]
    assert chosen["use"] == provider.name
    assert provider.options().port == 8001
    return provider.build(None, provider.options(port=port))


async def lines(port: int, *sent: bytes) -> list[bytes]:
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    answers = []
    for line in sent:
        writer.write(line)
        answers.append(await asyncio.wait_for(reader.readline(), 10))
    writer.close()
    return answers


@pytest.fixture
def port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


async def converse(client: PlainClient, frontend: Any, port: int) -> None:
    serving = asyncio.create_task(frontend.serve(client))
    for _ in range(500):
        await asyncio.sleep(0.01)
        if serving.done() or not await asyncio.to_thread(socket.socket().connect_ex, ("127.0.0.1", port)):
            break
    assert not serving.done()
    assert await lines(port, b"hi\r\n", b"\xff?\n") == [b"hello\n", b"hello\n"]
    assert [prompt.text for _, prompt, _ in client.seen] == ["hi", "\ufffd?"]
    assert all(params.temperature == 0 for _, _, params in client.seen)
    assert await lines(port, b"x" * 100_000) == [b""]
    client.error, client.fail_at = EngineDead("gone"), 0
    assert await lines(port, b"hi\n") == [b"error: gone\n"]
    client.fail_at, client.reply, client.step_seconds = None, "x" * 60, 0.01
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    writer.write(b"hi\n")
    await reader.readexactly(3)
    assert client.alive
    writer.transport.abort()
    for _ in range(40):
        await asyncio.sleep(0.01)
        if not client.alive:
            break
    assert not client.alive, "a closed connection aborts its request"
    assert client.num_aborted == 1
    idle = await asyncio.open_connection("127.0.0.1", port)
    await asyncio.sleep(0.05)
    serving.cancel()
    await asyncio.wait({serving}, timeout=5)
    assert serving.cancelled(), "an idle connection does not hold it up"
    idle[1].close()


def test_the_example_serves(port: int, caplog: pytest.LogCaptureFixture, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (module,) = tomli.loads(block("toml"))["plugins"]["import"]
    (tmp_path / f"{module}.py").write_text(block("python"))
    monkeypatch.syspath_prepend(tmp_path)
    client = PlainClient()
    generate = client.generate
    count = iter(range(100))
    client.generate = lambda prompt, params: generate(prompt, params, request_id=str(next(count)))  # type: ignore[assignment, method-assign]
    asyncio.run(converse(client, build(import_module(module), port), port))
    assert not caplog.records
