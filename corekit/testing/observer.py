"""Kit of slot `observer`: it takes whatever the engine tells, returns at once, and does not grow with what it heard."""

from __future__ import annotations

import asyncio
import gc
import socket
import sys
import threading
import time
import tracemalloc
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import aclosing
from copy import deepcopy
from dataclasses import replace
from functools import partial
from types import CodeType, FrameType
from typing import Any, ClassVar, get_args

from corekit.api import AllocatorStats, Durations, EngineClient, FinishReason, Observer, Prompt, RequestStats, SamplingParams, StepStats
from corekit.compose.assemble import assemble

from .cost import cost_of, growth
from .kit import Kit

_MAX_INSTRUCTIONS = 10_000
"""About a millisecond of Python: a step of a small model on a GPU takes ten."""
_NUM_STATS = 5_000
_MAX_GROWTH = 1 << 15
_BLOCKING: Mapping[str, frozenset[str]] = {
    "time": frozenset({"sleep"}),
    "builtins": frozenset({"print", "input"}),
    "posix": frozenset({"open", "write", "fsync", "fdatasync", "system", "rename", "replace"}),
    "io": frozenset({"open", "write", "writelines", "flush", "read", "readline"}),
    "socket": frozenset({"connect", "connect_ex", "send", "sendall", "sendto", "recv", "getaddrinfo"}),
    "posixsubprocess": frozenset({"fork_exec"}),
    "ssl": frozenset({"do_handshake", "read", "write"}),
    "select": frozenset({"select", "poll"}),
    "sqlite3": frozenset({"execute", "executemany", "executescript", "commit", "connect"}),
}
"""Module of a C function, or of the type that it belongs to, without underscores -> what of it can wait for the world."""
_WAITING: Mapping[CodeType, str] = {
    threading.Condition.wait.__code__: "threading.Condition.wait (a full queue waits there: use put_nowait)",
    threading.Thread.join.__code__: "threading.Thread.join",
}
"""The same of Python's own."""
_MEMORY = AllocatorStats(
    num_free=20,
    num_idle=9,
    num_evicted=4,
    residency=Durations(bounds=(0.5, 60.0), counts=(1, 2, 1), sum=80.0),
    reuse_gap=Durations(bounds=(1.0,), counts=(2, 3), sum=9.0),
)
_ENGINE: Mapping[str, Any] = {
    "model": {"source": "none", "use": "fingerprint", "max_model_len": 128},
    "scheduler": {"max_num_seqs": 4, "max_num_batched_tokens": 16},
    "block_allocator": {"num_blocks": 32, "block_size": 8, "stack": ["free-list"]},
    "engine": {"threads": 1},
    "frontend": [],
}


class ObserverKit(Kit):
    """`num_kept`: the most steps or requests that it remembers; what it takes in memory must not grow beyond them."""

    slot = "observer"
    num_kept: ClassVar[int] = 1000

    def test_any_step_is_taken(self) -> None:
        """Counts and times of nothing, and very large ones, with a prefix cache and without: nothing raises."""
        self._takes(_any_steps())

    def test_any_request_is_taken(self) -> None:
        """Times that never came (None), every finish reason, no tokens, before any step was heard of: nothing raises."""
        self._takes(_any_requests())

    def _takes(self, stats_of: Iterable[StepStats | RequestStats]) -> None:
        observer: Observer = self.build()
        for stats in stats_of:
            try:
                _tell(observer, stats)
            except Exception as fault:
                raise AssertionError(f"it raises {type(fault).__name__}: {fault} on {stats}; the engine would drop it") from fault

    def test_nothing_is_returned(self) -> None:
        """Both are plain methods that return None: nobody awaits what a coroutine would do."""
        observer: Observer = self.build()
        for stats in _any_stats():
            got: Any = _tell(observer, stats)
            if asyncio.iscoroutine(got):
                got.close()
            assert got is None, f"it returns {got!r} on {type(stats).__name__}, expected None"

    def test_stats_stay_as_they_were(self) -> None:
        """The stats belong to all observers: none changes them, by whatever road."""
        observer: Observer = self.build()
        for stats in _any_stats():
            before = deepcopy(stats)
            _tell(observer, stats)
            assert stats == before, f"it turned {before} into {stats}; the next observer hears that"

    def test_it_returns_at_once(self) -> None:
        """On the engine's thread it neither waits for a disk, a network or a clock, nor works for long: the next step waits for it."""
        observer: Observer = self.build()
        for stats in (_step(0), _request(0)):
            _tell(observer, stats)  # what is done once, at the first call, is forgiven
        for number in range(1, 200):
            for stats in (_step(number), _request(number)):
                found = _blocking(partial(_tell, observer, stats))
                assert not found, f"{_method(stats)} calls {found[0]}, which can wait: hand it to a thread of its own, through a queue"
        for stats in (_step(200), _request(200)):
            cost = cost_of(partial(_tell, observer, stats))
            assert cost.num_instructions <= _MAX_INSTRUCTIONS, (
                f"{_method(stats)} executes {cost.num_instructions} instructions, the kit allows {_MAX_INSTRUCTIONS}: leave the work to a thread of its own"
            )

    def test_the_cost_does_not_grow(self) -> None:
        """The thousandth step costs what an early one did."""
        observer: Observer = self.build()
        grown = growth([partial(_tell, observer, stats) for stats in (_step(1), _request(1))], num_rounds=1000)
        assert not grown, f"it works the more the more it has heard ({grown})"

    def test_memory_is_bounded(self) -> None:
        """Thousands more steps and requests, beyond those that it may remember, take no more memory."""
        observer: Observer = self.build()

        def hear(first: int, count: int) -> None:
            for number in range(first, first + count):
                _tell(observer, _step(number))
                _tell(observer, _request(number))

        tracemalloc.start()
        try:
            hear(0, max(self.num_kept, 100))
            before = _settled_memory(0)
            hear(self.num_kept, _NUM_STATS)
            grown = _settled_memory(before + _MAX_GROWTH) - before
        finally:
            tracemalloc.stop()
        assert grown <= _MAX_GROWTH, f"after {_NUM_STATS} more steps and requests it holds {grown} bytes more. If it remembers many: num_kept"

    def test_it_hears_a_whole_engine(self) -> None:
        """In an engine, on the engine's thread, it hears every step and every request once, those that are aborted too, and is not dropped."""
        ears = _Ears(self.build())
        with assemble(_ENGINE, environ={}, observers=[ears], progress=False) as assembly:
            asked = asyncio.run(_ask(assembly.client))
        assert not ears.faults, f"on the engine's thread it raises {ears.faults[0]!r}: what is bound to the thread that built it does not work there"
        heard = Counter(stats.request_id for stats in ears.heard if isinstance(stats, RequestStats))
        assert heard == Counter(asked), f"of the requests {sorted(asked)} it heard {dict(heard)}"
        numbers = [stats.number for stats in ears.heard if isinstance(stats, StepStats)]
        assert numbers, "it heard of no step"
        assert len(set(numbers)) == len(numbers), f"it heard of a step twice: {numbers}"
        assert ears.threads.isdisjoint({threading.get_ident()}), "it was called on the thread of the caller"


class _Ears:
    """Stands between the engine and the observer, and notes what passes."""

    def __init__(self, observer: Observer) -> None:
        self._observer = observer
        self.heard: list[StepStats | RequestStats] = []
        self.faults: list[Exception] = []
        self.threads: set[int] = set()

    def on_step(self, stats: StepStats) -> None:
        self._hear(stats)

    def on_request(self, stats: RequestStats) -> None:
        self._hear(stats)

    def _hear(self, stats: StepStats | RequestStats) -> None:
        self.heard.append(stats)
        self.threads.add(threading.get_ident())
        try:
            _tell(self._observer, stats)
        except Exception as fault:
            self.faults.append(fault)


async def _ask(client: EngineClient) -> list[str]:
    """Greedy, drawn, several samples, and one that its caller leaves."""
    asked = {
        "greedy": SamplingParams(temperature=0, max_tokens=5),
        "drawn": SamplingParams(seed=1, max_tokens=9),
        "three": SamplingParams(n=3, seed=2, max_tokens=4),
        "left": SamplingParams(temperature=0, max_tokens=60, ignore_eos=True),
    }

    async def one(request_id: str, params: SamplingParams) -> None:
        async with aclosing(client.generate(Prompt(text="some prompt"), params, request_id=request_id)) as news:
            async for _ in news:
                if request_id == "left":
                    return

    await asyncio.gather(*(one(request_id, params) for request_id, params in asked.items()))
    return list(asked)


def _tell(observer: Observer, stats: StepStats | RequestStats) -> Any:
    hear: Callable[[Any], Any] = getattr(observer, _method(stats))
    return hear(stats)


def _method(stats: StepStats | RequestStats) -> str:
    return "on_step" if isinstance(stats, StepStats) else "on_request"


def _step(number: int, count: int = 3, seconds: float = 0.001, memory: AllocatorStats = _MEMORY) -> StepStats:
    return StepStats(
        number=number,
        num_rows=count,
        num_tokens=count,
        num_output_tokens=count,
        num_preempted=count,
        num_running=count,
        num_waiting=count,
        num_free_blocks=count,
        plan_seconds=seconds,
        submit_seconds=seconds,
        collect_seconds=seconds,
        commit_seconds=seconds,
        num_swapped=count,
        num_copies=count,
        memory=memory,
    )


def _request(
    number: int, reason: FinishReason = "stop", count: int = 3, queue: float | None = 0.001, first: float | None = 0.002, total: float = 0.003
) -> RequestStats:
    return RequestStats(
        request_id=f"request-{number}",
        finish_reason=reason,
        num_samples=1 + count,
        num_prompt_tokens=1 + count,
        num_output_tokens=count,
        num_cached_tokens=0,
        num_preemptions=count,
        queue_seconds=queue,
        first_token_seconds=first,
        total_seconds=total,
    )


def _any_requests() -> Iterator[RequestStats]:
    number = 0
    for reason in get_args(FinishReason):
        for queue, first, total in ((None, None, 0.0), (0.0, None, 0.0), (0.0, 0.0, 0.0), (0.5, 0.75, 1.0), (0.1, 3600.0, 86400.0)):
            for count in (0, 1, 1 << 40):
                yield _request(number, reason, count, queue, first, total)
                number += 1


def _any_steps() -> Iterator[StepStats]:
    number = 0
    for count in (0, 1, 1 << 40):
        for seconds in (0.0, 1e-9, 3600.0):
            seen = Durations(bounds=(0.5, 60.0), counts=(count, 0, count), sum=seconds)
            some = AllocatorStats(num_free=count, num_idle=count, num_host_used=count, num_host_cached=count, num_evicted=count, num_retained=count)
            for memory in (AllocatorStats(), some, replace(some, residency=seen, idle_before_evict=seen, reuse_gap=seen)):
                yield _step(number, count, seconds, memory)
                number += 1


def _any_stats() -> Iterator[StepStats | RequestStats]:
    yield from _any_requests()
    yield from _any_steps()


def _settled_memory(enough: int) -> int:
    """Bytes in use, as soon as they are few enough, or once a thread of the observer's own has had its time."""
    end = time.monotonic() + 2.0
    last = -1
    while True:
        now, _ = tracemalloc.get_traced_memory()
        if now <= enough or now == last or time.monotonic() > end:
            break
        last = now
        time.sleep(0.02)
    if 0 < enough < now:  # what is left may be garbage
        gc.collect()
        now, _ = tracemalloc.get_traced_memory()
    return now


def _blocking(call: Callable[[], object]) -> Sequence[str]:
    """Functions that can wait and that the call calls on this thread."""
    found: list[str] = []

    def profile(frame: FrameType, event: str, function: Any) -> None:
        if event == "call" and frame.f_code in _WAITING:
            found.append(_WAITING[frame.f_code])
        elif event == "c_call":
            owner = getattr(function, "__self__", None)
            module = (function.__module__ or type(owner).__module__).lstrip("_")
            if function.__name__ in _BLOCKING.get(module, ()) and not _never_waits(owner):
                found.append(f"{module}.{function.__name__}")

    before = sys.getprofile()
    sys.setprofile(profile)
    try:
        call()
    finally:
        sys.setprofile(before)
    return found


def _never_waits(owner: Any) -> bool:
    """A file in memory, or a socket that was told not to: an event loop is woken by one, from whatever thread."""
    return type(owner).__name__ in ("StringIO", "BytesIO") or (isinstance(owner, socket.SocketType) and owner.gettimeout() == 0)
