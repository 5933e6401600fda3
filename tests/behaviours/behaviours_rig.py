"""A whole engine, assembled from tables and objects, with the end that every case must have; and the same behind HTTP.

`fingerprint` with 128 ids answers in ASCII and depends on every cached position; `scripted` answers what a test wrote down.
"""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Awaitable, Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import httpx
from corekit_openai_http import HttpOptions
from corekit_openai_http.frontend import OpenAiHttp

from corekit.api import Prompt, SamplingParams, TokenLogprob
from corekit.builtin.fcfs import Fcfs
from corekit.builtin.fingerprint import solo
from corekit.builtin.options import FingerprintOptions
from corekit.compose.assemble import assemble
from corekit.compose.assembly import Assembly

EXECUTORS = ("in-process", "delayed")
ASCII = FingerprintOptions(vocab_size=128)


def tables(executor: str, *, model: str, seats: int, budget: int, blocks: int, block_size: int, max_model_len: int, options: dict[str, Any]) -> dict[str, Any]:
    return {
        "model": {"source": "none", "use": model, "max_model_len": max_model_len, "options": options},
        "tokenizer": {"use": "bytes"},
        "engine": {"device": "cpu", "threads": 1},
        "executor": {"use": executor},
        "attention_backend": {"use": "torch", "options": {"poison": True}},
        "scheduler": {"max_num_seqs": seats, "max_num_batched_tokens": budget, "watermark": 0},
        "block_allocator": {"num_blocks": blocks, "block_size": block_size, "stack": ["free-list"]},
    }


def build(
    executor: str = "in-process",
    *,
    model: str = "fingerprint",
    seats: int = 8,
    budget: int = 32,
    blocks: int = 128,
    block_size: int = 4,
    max_model_len: int = 512,
    parts: dict[str, Any] | None = None,
    **options: Any,
) -> Assembly:
    if model == "fingerprint":
        options = {"vocab_size": ASCII.vocab_size, **options}
    config = tables(executor, model=model, seats=seats, budget=budget, blocks=blocks, block_size=block_size, max_model_len=max_model_len, options=options)
    for slot in parts or {}:
        if slot != "observers":
            config.pop(slot, None) if slot != "block_allocator" else config[slot].pop("stack")
    return assemble(config, frontends=(), environ={}, progress=False, **(parts or {}))


def at_rest(assembly: Assembly, seconds: float = 10.0) -> bool:
    return eventually(lambda: assembly.engine.idle and not assembly.engine.audit(), seconds)


def check_end(assembly: Assembly) -> None:
    """Nothing runs or waits, every block is free."""
    assert at_rest(assembly), assembly.engine.audit()
    stats = assembly.client.stats()
    assert (stats.num_running, stats.num_waiting, stats.num_free_blocks) == (0, 0, stats.num_blocks)


@contextmanager
def engine(executor: str = "in-process", **given: Any) -> Iterator[Assembly]:
    """On leaving: the common end, and a plain request is answered."""
    with build(executor, **given) as assembly:
        yield assembly
        check_end(assembly)
        (plain,) = run(assembly, [Job("z", SamplingParams(temperature=0, max_tokens=1, ignore_eos=True))])
        assert (len(plain[0].ids), plain[0].reason) == (1, "length")
        check_end(assembly)


@contextmanager
def served(executor: str = "in-process", **given: Any) -> Iterator[tuple[httpx.Client, Assembly]]:
    """The same behind the real HTTP server on a free port."""
    with engine(executor, **given) as assembly:
        frontend = OpenAiHttp(HttpOptions(port=0))
        loops: list[tuple[asyncio.AbstractEventLoop, asyncio.Task[None]]] = []

        async def serve() -> None:
            task = asyncio.create_task(frontend.serve(assembly.client))
            loops.append((asyncio.get_running_loop(), task))
            await asyncio.wait({task})

        thread = threading.Thread(target=lambda: asyncio.run(serve()), name="behaviours-http")
        thread.start()
        try:
            assert eventually(lambda: bool(loops) and frontend.address is not None)
            with httpx.Client(base_url=frontend.address or "", timeout=20, verify=False) as http:
                yield http, assembly
        finally:
            loops[0][0].call_soon_threadsafe(loops[0][1].cancel)
            thread.join(20)
        assert not thread.is_alive()


def eventually(holds: Callable[[], object], seconds: float = 10.0) -> bool:
    end = time.monotonic() + seconds
    while not holds():
        if time.monotonic() > end:
            return False
        time.sleep(0.002)
    return True


async def until(holds: Callable[[], object]) -> None:
    end = time.monotonic() + 20
    while not holds():
        assert time.monotonic() < end, "it never came to that"
        await asyncio.sleep(0.001)


@dataclass(frozen=True)
class Job:
    prompt: str | Sequence[int]
    params: SamplingParams

    @property
    def as_prompt(self) -> Prompt:
        return Prompt(text=self.prompt) if isinstance(self.prompt, str) else Prompt(token_ids=tuple(self.prompt))


@dataclass
class Answer:
    """One sample, as a caller of the stream puts it together."""

    ids: list[int] = field(default_factory=list)
    text: str = ""
    logprobs: list[TokenLogprob] = field(default_factory=list)
    prompt_logprobs: list[TokenLogprob | None] = field(default_factory=list)
    reason: str | None = None
    stop_reason: str | int | None = None
    num_prompt_tokens: int = 0


async def ask(assembly: Assembly, job: Job, **more: Any) -> list[Answer]:
    answers = [Answer() for _ in range(job.params.n)]
    async for output in assembly.client.generate(job.as_prompt, job.params, **more):
        for piece in output.outputs:
            answer = answers[piece.index]
            assert answer.reason is None, "news after the end"
            answer.ids += piece.token_ids
            answer.text += piece.text
            answer.logprobs += piece.logprobs or ()
            answer.reason, answer.stop_reason = piece.finish_reason, piece.stop_reason
            answer.num_prompt_tokens = output.num_prompt_tokens
        answers[0].prompt_logprobs += output.prompt_logprobs or ()
    return answers


def run(assembly: Assembly, jobs: Sequence[Job], before: Callable[[], Awaitable[None]] | None = None) -> list[list[Answer]]:
    """All at once; `before` runs beside them."""

    async def main() -> list[list[Answer]]:
        beside = [asyncio.ensure_future(before())] if before else []
        answers = await asyncio.wait_for(asyncio.gather(*(ask(assembly, job) for job in jobs)), 30)
        await asyncio.gather(*beside)
        return list(answers)

    return asyncio.run(main())


def greedy(prompt: str | Sequence[int], max_tokens: int) -> list[int]:
    """What `fingerprint` answers alone, by its own plain definition."""
    return list(solo(prompt.encode() if isinstance(prompt, str) else prompt, max_tokens=max_tokens, options=ASCII))


class Gated:
    """First come first served behind a gate; in plan number `at` since `arm`, it preempts.

    "all": everyone, before anything is planned. "after": everyone, after all were scheduled in the same step. "some": every
    other one, after that.
    """

    def __init__(self) -> None:
        self.gate = threading.Event()
        self.num_plans = 0
        self.at = -1
        self.how = "all"
        self.num_preempted = 0
        self._fcfs = Fcfs()

    def arm(self, at: int = -1, how: str = "all") -> None:
        self.gate.clear()
        self.num_plans, self.num_preempted, self.at, self.how = 0, 0, at, how

    def plan(self, step: Any) -> None:
        assert self.gate.wait(20)
        number, self.num_plans = self.num_plans, self.num_plans + 1
        if number != self.at:
            return self._fcfs.plan(step)
        if self.how != "all":
            self._fcfs.plan(step)
        for request in list(step.resident)[:: 2 if self.how == "some" else 1]:
            step.preempt(request)
            self.num_preempted += 1
        return None


def run_gated(assembly: Assembly, policy: Gated, jobs: Sequence[Job]) -> list[list[Answer]]:
    """All jobs stand in the queue before the first step is planned."""

    async def open_gate() -> None:
        await until(lambda: assembly.client.stats().num_waiting == len(jobs))
        policy.gate.set()

    answers = run(assembly, jobs, open_gate)
    check_end(assembly)
    return answers
