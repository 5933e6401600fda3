"""A whole server for the tests of this folder: an engine with a model that answers what was written down, behind real HTTP on a free port.

Knows no test. Requests go over sockets; the engine is at hand for the looks that only its owner has.
"""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Callable, Coroutine, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from functools import partial
from typing import Any

import httpx
from corekit_openai_http import HttpOptions
from corekit_openai_http.frontend import OpenAiHttp

from corekit.api import EngineClient, TokenDecoder
from corekit.builtin.bytes_tokenizer import BytesTokenizer
from corekit.builtin.text_decoder import Utf8Decoder
from corekit.compose.assemble import assemble
from corekit.compose.assembly import Assembly

MODEL = "scripted"
PIECES: tuple[bytes, ...] = ("世".encode()[:2], "世".encode()[2:] + b"!", b" beta", b"ga gam", b"ma", "é\n\n".encode(), b"Obs", b"<|im_end|>", b"")
"""Tokens beyond the bytes: halves of characters, ends that are beginnings of stops, a control token's text, a token without text."""
FIRST_PIECE = 257
CONTROL = FIRST_PIECE + PIECES.index(b"<|im_end|>")


class PiecesTokenizer(BytesTokenizer):
    """The bytes, and `PIECES` after them, which only a model writes."""

    @property
    def vocab_size(self) -> int:
        return FIRST_PIECE + len(PIECES)

    def token_bytes(self, token_id: int) -> bytes:
        return PIECES[token_id - FIRST_PIECE] if FIRST_PIECE <= token_id < self.vocab_size else super().token_bytes(token_id)

    def start_decoding(self, prompt_tail: Sequence[int] = (), *, skip_special_tokens: bool = True) -> TokenDecoder:
        return Utf8Decoder(self.token_bytes, hidden=(CONTROL,) if skip_special_tokens else ())


@dataclass
class Server:
    url: str
    assembly: Assembly
    http: httpx.Client
    loop: asyncio.AbstractEventLoop

    def audit(self) -> list[str]:
        return self.assembly.engine.audit()

    def at_rest(self, seconds: float = 10.0) -> bool:
        """Nothing runs or waits and every block is accounted for."""
        return eventually(lambda: self.assembly.engine.idle and not self.audit(), seconds)

    def check_end(self) -> None:
        assert self.at_rest(), self.audit()
        stats = self.assembly.client.stats()
        assert (stats.num_running, stats.num_waiting) == (0, 0)
        answer = self.http.post("/v1/completions", json={"model": MODEL, "prompt": "Q", "temperature": 0, "max_tokens": 4})
        assert answer.status_code == 200, answer.text
        assert answer.json()["usage"]["completion_tokens"] in range(1, 5)


def tables(**given: Any) -> dict[str, Any]:
    """model, seats, budget, blocks, block_size, max_model_len, queue; what is left are the model's own options."""
    scheduler = {"max_num_seqs": given.pop("seats", 16), "max_num_batched_tokens": given.pop("budget", 64), "watermark": 0}
    scheduler["max_queued_requests"] = given.pop("queue", 256)
    return {
        "block_allocator": {"num_blocks": given.pop("blocks", 256), "block_size": given.pop("block_size", 4)},
        "scheduler": scheduler,
        "tokenizer": {"use": "bytes"},
        "engine": {"device": "cpu", "threads": 1, "log_stats": False},
        "executor": {"use": given.pop("executor", "in-process")},
        "model": {"source": "none", "use": given.pop("model", MODEL), "max_model_len": given.pop("max_model_len", 512), "options": given},
    }


@contextmanager
def running(config: dict[str, Any], *, http: dict[str, Any] | None = None, tokenizer: object = None, headers: dict[str, str] | None = None) -> Iterator[Server]:
    """An engine and its HTTP frontend, from entering to leaving. `http`: options of the frontend; `headers`: of the client at hand."""
    frontend = _frontend(http)
    with (
        assemble(config, tokenizer=tokenizer, frontends=(frontend,), progress=False) as assembly,
        _serving(frontend, assembly.serve) as (url, loop),
        httpx.Client(base_url=url, timeout=30, headers=headers) as client,
    ):
        yield Server(url, assembly, client, loop)


def served(
    *, http: dict[str, Any] | None = None, tokenizer: object = None, headers: dict[str, str] | None = None, **given: Any
) -> AbstractContextManager[Server]:
    """The same with a model without weights; `given` as in `tables`."""
    config = tables(**given)
    if tokenizer is not None:
        config.pop("tokenizer")
    return running(config, http=http, tokenizer=tokenizer, headers=headers)


@contextmanager
def fronted(client: EngineClient, **http: Any) -> Iterator[str]:
    """The frontend before a client whose faults a test sets."""
    frontend = _frontend(http)
    with _serving(frontend, partial(frontend.serve, client)) as (url, _):
        yield url


def _frontend(options: dict[str, Any] | None) -> OpenAiHttp:
    return OpenAiHttp(HttpOptions(**{"port": 0, "shutdown_seconds": 0.2, **(options or {})}))


@contextmanager
def _serving(frontend: OpenAiHttp, serve: Callable[[], Coroutine[Any, Any, None]]) -> Iterator[tuple[str, asyncio.AbstractEventLoop]]:
    frontend.bind()
    loop = asyncio.new_event_loop()
    task = loop.create_task(serve())
    thread = threading.Thread(target=_run, args=(loop, task), name="conformance-http")
    url = frontend.address or ""
    thread.start()
    try:
        yield url, loop
    finally:
        loop.call_soon_threadsafe(task.cancel)
        thread.join(20)
    assert not thread.is_alive()


def _run(loop: asyncio.AbstractEventLoop, serving: asyncio.Task[None]) -> None:
    asyncio.set_event_loop(loop)
    loop.run_until_complete(asyncio.wait({serving}))
    loop.run_until_complete(loop.shutdown_default_executor())
    loop.close()


def eventually(holds: Callable[[], object], seconds: float = 10.0) -> bool:
    end = time.monotonic() + seconds
    while not holds():
        if time.monotonic() > end:
            return False
        time.sleep(0.002)
    return True
