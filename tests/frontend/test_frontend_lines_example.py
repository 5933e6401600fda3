"""The example of docs/slots/frontend.md and its kit, as they stand there; and what bad peers do to it."""

from __future__ import annotations

import asyncio
import re
import socket
import sys
from importlib import import_module
from pathlib import Path
from typing import Any

import pytest
import tomli
from kit_mutants import breaks, laws

from corekit.testing.fake_client import FakeClient

PAGE = (Path(__file__).parents[2] / "docs/slots/frontend.md").read_text("utf-8")


def blocks(language: str) -> list[str]:
    return re.findall(rf"^```{language}\n(.*?)^```$", PAGE, re.DOTALL | re.MULTILINE)


@pytest.fixture
def port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


@pytest.fixture
def example(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    """The page's module and its test file, importable."""
    for name, text in zip(("lines", "test_lines"), blocks("python"), strict=True):
        (tmp_path / f"{name}.py").write_text(text)
        monkeypatch.delitem(sys.modules, name, raising=False)
    monkeypatch.syspath_prepend(tmp_path)
    (toml,) = blocks("toml")
    tables = tomli.loads(toml)
    assert tables["plugins"]["import"] == ["lines"]
    module = import_module("lines")
    assert [table["use"] for table in tables["frontend"]] == [provider.name for provider in module.corekit_register_frontends()]
    assert module.LinesOptions().port == 8001
    return module


def test_the_example_passes_its_kit(example: Any, port: int) -> None:
    page = import_module("test_lines").TestLines
    kit = type("TestLines", (page,), {"options": {"port": port}})()
    assert not [f"{law}: {message}" for law in laws(kit) if (message := breaks(kit, law))]


async def lines(port: int, *sent: bytes) -> list[bytes]:
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    answers = []
    for line in sent:
        writer.write(line)
        answers.append(await asyncio.wait_for(reader.readline(), 10))
    writer.close()
    return answers


def test_bad_peers(example: Any, port: int, caplog: pytest.LogCaptureFixture) -> None:
    async def converse() -> None:
        client = FakeClient()
        serving = asyncio.create_task(example.Lines(example.LinesOptions(port=port)).serve(client))
        while not serving.done() and await asyncio.to_thread(socket.socket().connect_ex, ("127.0.0.1", port)):
            await asyncio.sleep(0.01)
        assert await lines(port, b"hi\r\n", b"\xff?\n") == [b"hello\n", b"hello\n"]
        assert [prompt.text for _, prompt, _ in client.seen] == ["hi", "\ufffd?"]
        assert all(params.temperature == 0 for _, _, params in client.seen)
        assert await lines(port, b"x" * 100_000) == [b""]
        idle = await asyncio.open_connection("127.0.0.1", port)
        serving.cancel()
        await asyncio.wait({serving}, timeout=5)
        assert serving.cancelled(), "an idle connection does not hold it up"
        idle[1].close()

    asyncio.run(converse())
    assert not caplog.records
