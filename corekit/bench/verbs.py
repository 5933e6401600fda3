"""The benchmarks of engines and of servers, each from its options to its result. Knows composition and the engine's client; knows no command line."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, TextIO

from .arrivals import Arrivals
from .ask import ask_engine, check_fits, vocab_size
from .errors import BenchUsage
from .http_client import Server
from .machine import CpuMeter, is_local, listening_process
from .measure import Effort
from .outputs import NO_OUTPUTS, Outputs
from .planning import InstantExecutor, Planning, Population, StepWindow
from .progress import Progress
from .reenacted import AskedRecording, Reenacted
from .result import Result
from .serving import Loading, summarise
from .steps import StepLog
from .synthetic import synthetic
from .workload import Workload, load, prompts_as

if TYPE_CHECKING:
    from corekit.compose.config import Config

Prompts = Literal["ids", "text"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Asked:
    """Which workload: one of a file, or a built-in one."""

    file: Path | None
    name: str | None
    """None: the only one of the file, else `default`."""
    default: str
    seed: int
    prompts: Prompts | None
    """None: ids where there are any."""

    def workload(self, vocab_size: int | None) -> Workload:
        """`vocab_size`: of the model that is asked, None where it is not known."""
        if self.file is not None:
            return prompts_as(load(self.file, self.name, self.default), self.prompts)
        if self.prompts == "ids" and vocab_size is None:
            raise BenchUsage(
                "--prompts ids: the built-in workloads draw ids from a vocabulary, and this server's is not known. Add --vocab-size, or send text."
            )
        return synthetic(self.name or self.default, seed=self.seed, vocab_size=None if self.prompts == "text" else vocab_size)


Configure = Callable[[Mapping[str, Any]], "Config"]
"""The configuration that the user asked for, with values (dotted keys) that the benchmark insists on."""

UNLIMITED_QUEUE: Mapping[str, int] = {"scheduler.max_queued_requests": 10**6, "scheduler.max_queued_tokens": 2**40}
"""A workload is sent whole; how much a server would queue is not what is measured."""


def bench_client(
    bench: Literal["latency", "throughput"],
    configure: Configure,
    asked: Asked,
    concurrency: int | None,
    effort: Effort,
    err: TextIO,
    outputs: Outputs = NO_OUTPUTS,
) -> Result:
    """An engine in this process, through its client. latency: one request at a time."""
    from corekit.compose.assemble import assemble

    outputs.check()
    steps, timeline = StepLog(), outputs.timeline()
    with assemble(configure(UNLIMITED_QUEUE), frontends=(), observers=(steps, timeline) if timeline else (steps,)) as assembly:
        client = assembly.client
        workload = asked.workload(vocab_size(client))
        check_fits(client, workload)
        progress = Progress(err)
        loading = Loading(
            ask=ask_engine(client, progress.advance),
            workload=workload,
            arrivals=Arrivals(concurrency=1 if bench == "latency" else concurrency or workload.concurrency),
            effort=effort,
            progress=progress,
            steps=steps,
        )
        attempts = asyncio.run(loading.run())
        result = summarise(bench, loading, attempts, {"engine": assembly.summary()})
    outputs.write(result, attempts, timeline)
    return result


def bench_server(
    server: Server,
    asked: Asked | AskedRecording,
    num_ids: int | None,
    arrivals: Arrivals,
    effort: Effort,
    err: TextIO,
    server_pid: int | None,
    outputs: Outputs = NO_OUTPUTS,
) -> Result:
    """A server at a URL; on this machine its processor time counts as ours. `num_ids`: its vocabulary, None where it is not known.

    A recording brings its own arrivals.
    """
    outputs.check()
    workload = asked.workload(num_ids)
    if isinstance(workload, Reenacted):
        arrivals = Arrivals(times=workload.recording.times)
    elif arrivals.rate is None and arrivals.concurrency is None:
        arrivals = replace(arrivals, concurrency=workload.concurrency)
    host, port, _ = server.address
    pid = server_pid or (listening_process(port) if is_local(host) else None)
    unknown = is_local(host) and pid is None

    async def run() -> Result:
        told = server if server.model else replace(server, model=await server.first_model())
        loading = Loading(
            ask=told.ask,
            workload=workload,
            arrivals=arrivals,
            effort=effort,
            progress=Progress(err),
            tolerant=True,
            meter=(lambda: CpuMeter(judge=False)) if unknown else lambda: CpuMeter(*([pid] if pid else [])),
            remarks=workload.remarks if isinstance(workload, Reenacted) else (),
        )
        attempts = await loading.run()
        result = summarise("serve", loading, attempts, {"server": f"{server.url}, model {told.model}" + (f", process {pid}" if pid else "")})
        outputs.write(result, attempts)
        return result

    return asyncio.run(run())


def bench_engine(configure: Configure, population: Population, effort: Effort, err: TextIO) -> Result:
    """The cost of planning and committing, with an executor that costs nothing."""
    from corekit.compose.assemble import assemble

    window = StepWindow()
    block_size = configure({}).block_allocator.block_size
    assembly = assemble(configure(population.settings(effort, block_size)), executor=InstantExecutor(window.gate), frontends=(), observers=(window,))
    try:  # not `with`: the population must be there before the engine's thread starts
        return asyncio.run(Planning(assembly, window, population, effort, Progress(err)).run())
    finally:
        assembly.close()
