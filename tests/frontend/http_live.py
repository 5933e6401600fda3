"""A frontend on a free port in a thread of its own, and a small engine client whose answers, speed and faults a test sets.

Knows the contract only.
"""

from __future__ import annotations

import asyncio
import threading
import time
from collections import Counter
from collections.abc import AsyncGenerator, Callable, Mapping, Sequence
from dataclasses import dataclass, field
from types import TracebackType
from typing import Any

import httpx
from corekit_openai_http import HttpOptions
from corekit_openai_http.frontend import OpenAiHttp

from corekit.api import (
    ChatPrompt,
    CompletionOutput,
    EngineClient,
    EngineStats,
    FinishReason,
    Health,
    InvalidRequest,
    ModelFacts,
    Prompt,
    RequestOutput,
    SamplingParams,
    TokenLogprob,
)

MODEL = "tiny"


class Utf8Decoder:
    def __init__(self) -> None:
        self._pending = b""

    def push(self, token_id: int) -> str:
        self._pending += bytes([token_id])
        try:
            text = self._pending.decode()
        except UnicodeDecodeError:
            return ""
        self._pending = b""
        return text

    def finish(self) -> str:
        return self._pending.decode("utf-8", "replace")


class ByteTokenizer:
    vocab_size = 256
    eos_token_ids = (0,)
    has_chat_template = True

    def encode(self, text: str, *, add_special: bool = True) -> Sequence[int]:
        return list(text.encode())

    def apply_chat_template(self, messages: Sequence[Mapping[str, Any]], *, tools: Any = None, **options: Any) -> ChatPrompt:
        text = "".join(f"<{message['role']}>{message['content']}" for message in messages)
        return ChatPrompt(text=text, token_ids=tuple(text.encode()))

    def token_bytes(self, token_id: int) -> bytes:
        return bytes([token_id])

    def start_decoding(self, prompt_tail: Sequence[int] = (), *, skip_special_tokens: bool = True) -> Utf8Decoder:
        return Utf8Decoder()


@dataclass
class PlainClient:
    """Answers every prompt with `reply`, sample i with `reply` and its number. `alive` holds the requests it works on."""

    reply: str = "hello"
    step_seconds: float = 0.0
    fail_at: int | None = None
    error: Exception | None = None
    dead: str = ""
    logprob: float = -0.5
    reason: FinishReason = "stop"
    """Of an answer that `max_tokens` did not end."""
    alive: set[str] = field(default_factory=set)
    seen: list[tuple[str, Prompt, SamplingParams]] = field(default_factory=list)
    priorities: list[int] = field(default_factory=list)
    num_aborted: int = 0
    tokenizer: ByteTokenizer = field(default_factory=ByteTokenizer)
    model: ModelFacts = field(
        default_factory=lambda: ModelFacts(
            name=MODEL, aliases=("other/alias",), source="none", max_model_len=512, vocab_size=256, supports_logprobs=True, created=1
        )
    )

    async def generate(
        self, prompt: Prompt, params: SamplingParams, *, request_id: str | None = None, priority: int = 0, tenant: str = "", deadline: float | None = None
    ) -> AsyncGenerator[RequestOutput, None]:
        assert request_id is not None
        assert request_id not in self.alive, "ids must differ"
        if self.fail_at == 0 and self.error is not None:
            raise self.error
        ids = prompt.token_ids
        if ids is None:
            ids = tuple(prompt.text.encode()) if prompt.text is not None else self.tokenizer.apply_chat_template(prompt.messages or ()).token_ids
        if any(not 0 <= token_id < 256 for token_id in ids):
            raise InvalidRequest(f"prompt holds an id outside the vocabulary of 256: {max(ids)}", field="prompt")
        self.seen.append((request_id, prompt, params))
        self.priorities.append(priority)
        self.alive.add(request_id)
        done = False
        try:
            async for output in self._news(request_id, len(ids), params):
                yield output
            done = True
        finally:
            self.alive.discard(request_id)
            self.num_aborted += not done

    async def _news(self, request_id: str, num_prompt_tokens: int, params: SamplingParams) -> AsyncGenerator[RequestOutput, None]:
        replies = [(self.reply + (str(sample) if params.n > 1 else "")).encode() for sample in range(params.n)]
        limit = params.max_tokens or 64
        decoders = [self.tokenizer.start_decoding() for _ in replies]
        for at in range(max(map(len, replies)) + 1):
            await asyncio.sleep(self.step_seconds)
            if self.fail_at is not None and at == self.fail_at and self.error is not None:
                raise self.error
            outputs = []
            for sample, reply in enumerate(replies):
                if at >= min(len(reply), limit):
                    continue
                last = at + 1 == min(len(reply), limit)
                text = decoders[sample].push(reply[at]) + (decoders[sample].finish() if last else "")
                top = tuple((token_id, self.logprob - rank) for rank, token_id in enumerate((reply[at], 65, 66, 67, 68, 69)[: params.logprobs or 0]))
                outputs.append(
                    CompletionOutput(
                        index=sample,
                        text=text,
                        token_ids=(reply[at],),
                        logprobs=None if params.logprobs is None else (TokenLogprob(reply[at], self.logprob, top),),
                        finish_reason=("length" if len(reply) > limit else self.reason) if last else None,
                    )
                )
            if outputs:
                finished = at + 1 >= min(max(map(len, replies)), limit)
                yield RequestOutput(
                    request_id=request_id, prompt=None, num_prompt_tokens=num_prompt_tokens, num_cached_tokens=1, outputs=tuple(outputs), finished=finished
                )

    def abort(self, request_id: str) -> bool:
        return False

    def stats(self) -> EngineStats:
        return EngineStats(
            num_running=len(self.alive),
            num_waiting=0,
            num_blocks=8,
            num_free_blocks=6,
            block_size=16,
            num_prompt_tokens=11,
            num_output_tokens=22,
            num_cached_tokens=0,
            num_preemptions=3,
            num_finished={"stop": 4, "length": 5},
            num_steps=9,
        )

    def health(self) -> Health:
        return Health(state="dead", reason=self.dead) if self.dead else Health(state="ready")


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
