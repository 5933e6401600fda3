"""Repetitions, disturbance, load loops and the arithmetic of traces. No assertion is about how long anything took."""

from __future__ import annotations

import asyncio
import gc
import io
import os
import socket
import subprocess
import sys
import threading
import time
from collections.abc import AsyncIterator, Callable, Iterator

import pytest

from corekit.api import CompletionOutput, Overloaded, Prompt, RequestOutput, SamplingParams, StepInput, StepStats
from corekit.bench.ask import ask_engine
from corekit.bench.errors import BenchError
from corekit.bench.load import closed_loop, open_loop
from corekit.bench.machine import SHORTEST, CpuMeter, CpuUse, is_local, listening_process, machine_facts
from corekit.bench.measure import Effort, measure
from corekit.bench.planning import InstantExecutor, StepWindow, collector_pauses
from corekit.bench.progress import PATIENCE, Progress
from corekit.bench.result import noise_remarks
from corekit.bench.steps import StepLog, step_samples
from corekit.bench.trace import Trace, figures
from corekit.bench.workload import Request


class ScriptedMeter:
    """Foreign cores as told, one reading after the other."""

    def __init__(self, foreign: Iterator[float | None]) -> None:
        self._foreign = foreign

    def read(self) -> CpuUse:
        return CpuUse(seconds=1.0, own_cores=1.0, foreign_cores=next(self._foreign))


def measured(effort: Effort, *foreign: float | None) -> tuple[list[int], list[tuple[int, bool, bool]]]:
    ran: list[int] = []
    readings = iter(foreign)

    async def run(number: int, label: str) -> str:
        ran.append(number)
        return label

    attempts = asyncio.run(measure(run, effort, lambda: ScriptedMeter(readings)))  # type: ignore[arg-type, return-value]
    assert next(readings, "all used") == "all used"
    return ran, [(one.number, one.noisy, one.kept) for one in attempts]


def test_a_quiet_machine_is_measured_once() -> None:
    assert measured(Effort(warmup=1, reps=3), 0.0, 0.3, 0.1) == ([0, 1, 2, 3], [(1, False, True), (2, False, True), (3, False, True)])


def test_repetition_0_is_never_measured() -> None:
    assert measured(Effort(warmup=0, reps=1), 0.0)[0] == [1]
    assert measured(Effort(warmup=3, reps=1), 0.0)[0] == [0, 1, 2, 3]


def test_a_disturbed_repetition_is_measured_again_with_other_prompts() -> None:
    ran, attempts = measured(Effort(warmup=1, reps=2, retries=2), 0.9, 0.1, 0.2)
    assert ran == [0, 1, 2, 3]
    assert attempts == [(1, True, False), (2, False, True), (3, False, True)]


def test_after_the_last_retry_the_least_disturbed_is_kept_and_marked() -> None:
    assert measured(Effort(warmup=0, reps=1, retries=2), 0.9, 0.4, 0.6)[1] == [(1, True, False), (2, True, True), (3, True, False)]
    assert measured(Effort(warmup=0, reps=1, retries=0), 0.9)[1] == [(1, True, True)]


def test_unknown_disturbance_is_not_judged_but_said() -> None:
    async def run(number: int, label: str) -> None: ...

    effort = Effort(warmup=0, reps=1)
    attempts = asyncio.run(measure(run, effort, lambda: ScriptedMeter(iter([None]))))  # type: ignore[arg-type, return-value]
    assert [one.noisy for one in attempts] == [False]
    assert "not known" in noise_remarks(attempts, effort.max_foreign)[0]


@pytest.mark.slow
@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="reads /proc")
def test_own_children_are_not_foreign_and_others_are() -> None:
    burn = "import time\nend = time.time() + 30\nwhile time.time() < end: pass"
    with subprocess.Popen([sys.executable, "-c", burn]) as child:
        try:
            meter = CpuMeter()
            time.sleep(2 * SHORTEST)
            use = meter.read()
        finally:
            child.kill()
    assert use.own_cores is not None
    assert use.own_cores > 0
    assert use.foreign_cores is not None
    # The same process, in nobody's tree but its own, is foreign to another's measurement: here to that of the child itself.
    meter = CpuMeter()
    meter._roots = (os.getppid() + 10**7,)
    meter._own = 0.0
    end = time.perf_counter() + 2 * SHORTEST
    while time.perf_counter() < end:
        pass
    foreign = meter.read().foreign_cores
    assert foreign is not None
    assert foreign > 0


def test_a_moment_is_too_short_to_judge() -> None:
    assert CpuMeter().read().foreign_cores is None


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="reads /proc")
def test_the_process_behind_a_port() -> None:
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        port = listener.getsockname()[1]
        assert listening_process(port) is None
        listener.listen()
        assert listening_process(port) == os.getpid()
    assert is_local("localhost")
    assert is_local("127.0.0.3")
    assert not is_local("example.org")


def test_machine_facts() -> None:
    facts = machine_facts()
    assert facts["cores"] >= 1
    assert facts["versions"]["python"]


def trace(sent: float, *arrivals: float, out: int = 0) -> Trace:
    return Trace(num_prompt_tokens=10, num_cached_tokens=4, num_output_tokens=out or len(arrivals), sent=sent, arrivals=arrivals)


def test_latencies_by_definition() -> None:
    one = trace(1.0, 1.5, 1.75, 2.5, out=5)  # two deliveries held several tokens
    assert one.ttft == 0.5
    assert one.e2e == 1.5
    assert one.tpot == (1.5 - 0.5) / 4
    assert one.itl == [0.25, 0.75]
    assert trace(1.0, 2.0).tpot is None
    assert trace(1.0, 2.0).itl == []


def test_figures_of_a_repetition() -> None:
    found = figures([trace(1.0, 2.0, 3.0), BenchError("refused"), trace(2.0, 4.0, 5.0)])
    assert (found.num_requests, found.num_failed, found.num_prompt_tokens, found.num_cached_tokens, found.num_output_tokens) == (2, 1, 20, 8, 4)
    assert found.seconds == 4.0
    assert found.rates() == {"seconds": 4.0, "requests_per_second": 0.5, "output_tokens_per_second": 1.0, "total_tokens_per_second": 6.0}
    assert found.samples == {"ttft": [1.0, 2.0], "tpot": [1.0, 1.0], "itl": [1.0, 1.0], "e2e": [2.0, 3.0]}
    with pytest.raises(BenchError, match=r"all 1 requests failed.*refused"):
        figures([BenchError("refused")])


class Echo:
    """Answers after a few turns of the loop; keeps how many were in flight."""

    def __init__(self) -> None:
        self.order: list[int] = []
        self.in_flight = self.most = 0

    async def ask(self, request: Request) -> Trace:
        self.in_flight += 1
        self.most = max(self.most, self.in_flight)
        self.order.append(request.num_output_tokens)
        for _ in range(1 + request.num_output_tokens % 4):
            await asyncio.sleep(0)
        self.in_flight -= 1
        if request.num_output_tokens == 3:
            raise BenchError("three")
        return trace(0.0, 1.0)


REQUESTS = [Request(token_ids=(1,), text=None, num_output_tokens=n) for n in range(1, 12)]


@pytest.mark.parametrize("concurrency", [1, 3, 11, 40])
def test_a_closed_loop_keeps_its_number_in_flight(concurrency: int) -> None:
    echo, answered = Echo(), [0]

    def count() -> None:
        answered[0] += 1

    outcomes = asyncio.run(closed_loop(echo.ask, REQUESTS, concurrency, count))
    assert echo.most == min(concurrency, len(REQUESTS))
    assert echo.order == [request.num_output_tokens for request in REQUESTS]
    assert answered == [11]
    assert sum(isinstance(outcome, BenchError) for outcome in outcomes) == 1


def test_an_open_loop_sends_everything_in_order_whatever_comes_back() -> None:
    echo = Echo()
    outcomes = asyncio.run(open_loop(echo.ask, REQUESTS, [0.0002 * at for at in range(len(REQUESTS))], lambda: None))
    assert echo.order == [request.num_output_tokens for request in REQUESTS]
    assert len(outcomes) == 11


def test_progress_speaks_only_after_a_while() -> None:
    out = io.StringIO()
    progress = Progress(out)
    progress.begin("W2 repetition 1/3", 3, "requests answered")
    progress.advance()
    assert out.getvalue() == ""
    progress._spoke -= PATIENCE
    progress.advance()
    assert out.getvalue().startswith("W2 repetition 1/3: 2 of 3 requests answered")
    progress.advance()
    assert out.getvalue().count("\n") == 1


class Answering:
    """An engine's client that answers with the given numbers of tokens, whatever it is asked."""

    def __init__(self, num_prompt_tokens: int, *deliveries: int, fault: Exception | None = None) -> None:
        self.num_prompt_tokens, self.deliveries, self.fault = num_prompt_tokens, deliveries, fault
        self.asked: list[tuple[Prompt, SamplingParams]] = []

    async def generate(self, prompt: Prompt, params: SamplingParams) -> AsyncIterator[RequestOutput]:
        self.asked.append((prompt, params))
        for number in self.deliveries:
            output = CompletionOutput(index=0, text="", token_ids=(7,) * number)
            yield RequestOutput(request_id="r", prompt=None, num_prompt_tokens=self.num_prompt_tokens, num_cached_tokens=1, outputs=(output,), finished=False)
        if self.fault:
            raise self.fault


def answered(client: Answering, request: Request = REQUESTS[4], heard: Callable[[int], None] = lambda count: None) -> Trace:
    return asyncio.run(ask_engine(client, heard)(request))  # type: ignore[arg-type, unused-ignore]


def test_an_engine_is_asked_for_exact_counts() -> None:
    client = Answering(1, 1, 0, 3, 1)
    heard: list[int] = []
    found = answered(client, heard=heard.append)
    assert heard == [1, 3, 1]
    assert (found.num_prompt_tokens, found.num_cached_tokens, found.num_output_tokens, len(found.arrivals)) == (1, 1, 5, 3)
    ((prompt, params),) = client.asked
    assert (prompt.token_ids, params.max_tokens, params.temperature, params.ignore_eos) == ((1,), 5, 0.0, True)


@pytest.mark.parametrize(
    ("client", "says"),
    [
        (Answering(1, 1, 3), "asked for 5 tokens and got 4"),
        (Answering(1, 1, 5), "asked for 5 tokens and got 6"),
        (Answering(2, 5), "a prompt of 1 ids was counted as 2"),
        (Answering(1, 2, fault=Overloaded("full")), "Overloaded: full"),
    ],
)
def test_an_engine_that_miscounts_or_refuses_is_an_error(client: Answering, says: str) -> None:
    with pytest.raises(BenchError, match=says):
        answered(client)


def step(number: int, **changes: int) -> StepStats:
    counts = {"num_rows": 2, "num_tokens": 2, "num_output_tokens": 2, "num_preempted": 0, "num_running": 2, "num_waiting": 3, "num_free_blocks": 9}
    return StepStats(number=number, **{**counts, **changes}, plan_seconds=0.25, submit_seconds=0.5, collect_seconds=1.0, commit_seconds=2.0)


def test_steps_are_taken_once_and_summed_by_phase() -> None:
    log = StepLog()
    for number in range(3):
        log.on_step(step(number))
    assert step_samples(log.take()) == {"plan": [0.25] * 3, "submit": [0.5] * 3, "collect": [1.0] * 3, "commit": [2.0] * 3, "in_all": [3.75] * 3}
    assert log.take() == []


def test_a_window_keeps_its_steps_and_closes_the_gate() -> None:
    window = StepWindow()
    executor = InstantExecutor(window.gate)

    def steps() -> None:
        for number in range(9):
            executor.submit(StepInput(number=number, rows=()))
            executor.collect()
            window.on_step(step(number))

    thread = threading.Thread(target=steps, daemon=True)
    thread.start()
    assert [stats.number for stats, _, _ in window.fill(4, lambda done: None)] == [0, 1, 2, 3]
    assert not window.gate.is_set()
    assert [stats.number for stats, _, _ in window.fill(3, lambda done: None)] == [4, 5, 6]
    window.gate.set()
    thread.join(10)
    assert not thread.is_alive()


def test_collections_are_heard_while_watched() -> None:
    with collector_pauses() as pauses:
        gc.collect(0)
        gc.collect(2)
    gc.collect(0)
    assert [generation for generation, _ in pauses if generation != 1] == [0, 2]
