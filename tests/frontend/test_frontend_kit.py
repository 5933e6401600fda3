"""The kit of frontends on the bundled one, on a small one, and on broken ones. The example of the docs has a file of its own."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Mapping
from typing import Any

import corekit_openai_http
import httpx
import pytest
from frontend_mutants import MUTANTS, Right, provider_of
from kit_mutants import breaks

from corekit.api import EngineClient, Frontend, SupportsBind
from corekit.compose.contract import differences
from corekit.testing import FrontendKit
from corekit.testing.fake_client import FakeClient

(HTTP,) = corekit_openai_http.corekit_register_frontends()


class TestOpenAiHttp(FrontendKit):
    """Answers in one piece."""

    provider = HTTP
    options: Mapping[str, Any] = {"port": 0, "shutdown_seconds": 0.1}

    async def ask(self, frontend: Frontend, text: str) -> str:
        assert isinstance(frontend, SupportsBind)
        body = {"model": "fake", "prompt": text}
        async with httpx.AsyncClient(base_url=str(frontend.address), timeout=20, verify=False) as http:
            answer = (await http.post("/v1/completions", json=body)).raise_for_status().json()
        return str(answer["choices"][0]["text"])

    def options_at(self, address: str) -> Mapping[str, Any]:
        return {"port": int(address.rpartition(":")[2])}


class TestOpenAiHttpStream(TestOpenAiHttp):
    async def ask(self, frontend: Frontend, text: str) -> str:
        assert isinstance(frontend, SupportsBind)
        body = {"model": "fake", "messages": [{"role": "user", "content": text}], "stream": True}
        said = ""
        async with (
            httpx.AsyncClient(base_url=str(frontend.address), timeout=20, verify=False) as http,
            http.stream("POST", "/v1/chat/completions", json=body) as answer,
        ):
            answer.raise_for_status()
            async for line in answer.aiter_lines():
                if line.startswith("data: {"):
                    said += json.loads(line.removeprefix("data: "))["choices"][0]["delta"].get("content") or ""
        return said


class LinesKit(FrontendKit):
    """For frontends that take a prompt a line."""

    def options_at(self, address: str) -> Mapping[str, Any]:
        return {"port": int(address.rpartition(":")[2])}

    async def ask(self, frontend: Frontend, text: str) -> str:
        reader, writer = await asyncio.open_connection("127.0.0.1", self.port_of(frontend))
        try:
            writer.write(f"{text}\n".encode())
            line = (await reader.readline()).decode()
        finally:
            writer.close()
        if line.startswith("error: ") or not line.endswith("\n"):
            raise ConnectionError(line)
        return line.rstrip("\n")

    def port_of(self, frontend: Frontend) -> int:
        assert isinstance(frontend, SupportsBind)
        return int(str(frontend.address).rpartition(":")[2])


class TestLines(LinesKit):
    provider = provider_of(Right)


@pytest.mark.parametrize("mutant", MUTANTS, ids=lambda mutant: mutant.__name__)
@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning", "ignore::ResourceWarning")
def test_a_broken_frontend_breaks_its_law(mutant: type[Right]) -> None:
    kit = type("Broken", (LinesKit,), {"provider": provider_of(mutant), "seconds": 0.5})()
    assert breaks(kit, MUTANTS[mutant])


def test_every_mutant_has_a_law_of_its_own() -> None:
    assert len(set(MUTANTS.values())) == len(MUTANTS) >= 4


def test_the_fake_client_is_a_client() -> None:
    assert not list(differences(FakeClient(), EngineClient))
