"""A frontend on a free port in a thread of its own, over an engine client whose answers, speed and faults a test sets."""

from __future__ import annotations

import asyncio
import threading
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from types import TracebackType
from typing import Any

import httpx
from corekit_openai_http import HttpOptions
from corekit_openai_http.frontend import OpenAiHttp

from corekit.api import EngineClient, ModelFacts, Tokenizer
from corekit.testing.fake_client import FakeClient, bytes_tokenizer

MODEL = "tiny"
TOKENIZER = bytes_tokenizer()
MODEL_FACTS = ModelFacts(name=MODEL, aliases=("other/alias",), source="none", max_model_len=512, vocab_size=256, supports_logprobs=True, created=1)


def everything(*, max_model_len: int, num_blocks: int) -> dict[str, Any]:
    """Tables of an engine that has all there is to be counted: a prefix cache, and swap space beneath."""
    return {
        "model": {"source": "none", "use": "scripted", "max_model_len": max_model_len},
        "tokenizer": {"use": "bytes"},
        "block_allocator": {
            "num_blocks": num_blocks,
            "block_size": 4,
            "stack": ["cpu-swap", "lru-prefix", "free-list"],
            "options": {"cpu-swap": {"num_host_blocks": 8}},
        },
        "engine": {"threads": 1},
    }


@dataclass
class PlainClient(FakeClient):
    """With the names that the tests of HTTP use."""

    tokenizer: Tokenizer = TOKENIZER
    model: ModelFacts = MODEL_FACTS


class Live:
    """A frontend that serves `client` from entering to leaving, in a thread. `stop` cancels it and waits for its end."""

    def __init__(self, client: EngineClient, **options: Any) -> None:
        self.frontend = OpenAiHttp(HttpOptions(**{"port": 0, **options}))
        self.responses: Counter[int] = Counter()
        self._client = client
        self._ready = threading.Event()
        self._thread = threading.Thread(target=lambda: asyncio.run(self._main()), name="frontend-under-test")
        self.error: BaseException | None = None

    async def _main(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._task = asyncio.create_task(self.frontend.serve(self._client))
        self._task.add_done_callback(lambda task: self._ready.set())
        await asyncio.sleep(0)
        self.url = self.frontend.address or ""
        self._ready.set()
        await asyncio.wait({self._task})
        self.error = self._task.exception() if not self._task.cancelled() else asyncio.CancelledError()

    def __enter__(self) -> Live:
        self._thread.start()
        assert self._ready.wait(10)
        if self.error is not None:
            raise self.error
        self.http = httpx.Client(base_url=self.url, timeout=20, verify=False)
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self.http.close()
        self.stop()
        if kind is None:
            assert self.error is None, self.error

    def cancel(self) -> None:
        self._loop.call_soon_threadsafe(self._task.cancel)

    def stop(self) -> None:
        if self._thread.is_alive():
            self.cancel()
            self._thread.join(20)
        assert not self._thread.is_alive()


def eventually(holds: Callable[[], bool], seconds: float = 5.0) -> bool:
    end = time.monotonic() + seconds
    while not holds():
        if time.monotonic() > end:
            return False
        time.sleep(0.005)
    return True


def events(text: str) -> list[str]:
    """The data of each event of a stream, comments left out; anything else is an error."""
    assert text.endswith("\n\n")
    found = [block for block in text.split("\n\n") if block and not block.startswith(":")]
    assert all(block.startswith("data: ") and "\n" not in block for block in found), text
    return [block.removeprefix("data: ") for block in found]


def check_error(response: httpx.Response) -> dict[str, Any]:
    """The error object of an answer, which must have OpenAI's form."""
    assert response.headers["content-type"] == "application/json"
    body = response.json()
    assert set(body) == {"error"}
    assert set(body["error"]) == {"message", "type", "param", "code"}
    assert isinstance(body["error"]["message"], str)
    assert not body["error"]["message"].endswith(".") or body["error"]["message"].endswith("..."), "messages end without a full stop"
    assert response.headers["x-request-id"]
    return dict(body["error"])
