"""What the drivers beside this file share: which workloads and repetitions, a quiet machine before each, and the rows they append.

A row is one repetition of one workload by one engine, one line of JSON. Any other driver may append rows of the same form:
`engine`, `precision`, `workload`, `rep`, and the figures of `_figures` below. Knows no engine.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import statistics
import sys
import time
from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from corekit.bench.errors import BenchError, BenchUsage
from corekit.bench.load import Ask, closed_loop
from corekit.bench.machine import CpuMeter
from corekit.bench.synthetic import NAMES, synthetic
from corekit.bench.trace import Trace
from corekit.bench.workload import Workload, load, prompts_as

QUIET = 0.15
"""Cores that others may use when a repetition begins."""


def arguments(summary: str) -> argparse.ArgumentParser:
    """A parser with the options that every driver has."""
    parser = argparse.ArgumentParser(description=summary, formatter_class=argparse.ArgumentDefaultsHelpFormatter)
    parser.add_argument("--workload", type=Path, help="JSON file of workloads, as `corekit bench --workload` reads it; without it the built-in ones")
    parser.add_argument("--seed", type=int, default=20261130, help="seed of the built-in workloads")
    parser.add_argument("--only", default=",".join(NAMES), help="names of workloads, separated by commas")
    parser.add_argument("--reps", default="1,2,3", help="which repetitions, separated by commas; 0 warms up before the first workload, always")
    parser.add_argument("--results", type=Path, default=Path("results.jsonl"), help="file that rows are appended to")
    parser.add_argument("--patience", type=float, default=60.0, help="seconds to wait for a quiet machine before each repetition; 0: do not look")
    parser.add_argument("--precision", help="what the row calls the precision; without it what the driver knows")
    return parser


@dataclass(frozen=True, slots=True, kw_only=True)
class Driver:
    """How one engine is asked, and what its rows are called."""

    engine: str
    precision: str
    ask: Ask
    about: Mapping[str, Any] = field(default_factory=dict)
    """More keys of each row: versions, settings. `args` tells settings of one engine apart."""
    processes: Sequence[int] = ()
    """Servers that are measured, so that their processor time is not foreign."""


Connect = Callable[[], Awaitable[Driver]]


def workloads(options: argparse.Namespace, vocab_size: int | None, kind: str | None) -> list[Workload]:
    """kind: "ids" or "text", where the engine takes only one of them."""
    names = options.only.split(",")
    if options.workload is None:
        return [synthetic(name, seed=options.seed, vocab_size=None if kind == "text" else vocab_size) for name in names]
    return [prompts_as(load(options.workload, name), kind) for name in names]


def repetitions(options: argparse.Namespace) -> list[int]:
    found = options.reps.split(",")
    if not all(text.isdecimal() and 1 <= int(text) <= 10**6 for text in found):
        raise BenchUsage(f"--reps {options.reps}: must be numbers from 1 to 1000000, separated by commas, as in --reps 1,2,3.")
    return [int(text) for text in found]


async def run(driver: Driver, chosen: Sequence[Workload], reps: Sequence[int], options: argparse.Namespace) -> None:
    """Every repetition of every workload, a row for each as soon as it is there."""
    await closed_loop(driver.ask, chosen[0].repetition(0), chosen[0].concurrency, lambda: None)
    for workload in chosen:
        for rep in reps:
            before = await _quiet(driver, options.patience)
            figures = await _measured(driver, workload, rep)
            row = {
                "t": time.strftime("%H:%M:%S"),
                "engine": driver.engine,
                "precision": options.precision or driver.precision,
                "workload": workload.name,
                "rep": rep,
                "before": before,
                **figures,
                **driver.about,
            }
            _append(options.results, {key: round(value, 4) if isinstance(value, float) else value for key, value in row.items()})


async def _measured(driver: Driver, workload: Workload, rep: int) -> dict[str, Any]:
    requests = workload.repetition(rep)
    meter = CpuMeter(*driver.processes)
    outcomes = await closed_loop(driver.ask, requests, workload.concurrency, lambda: None)
    cpu = meter.read()
    traces = [outcome for outcome in outcomes if isinstance(outcome, Trace)]
    for outcome in outcomes:
        if isinstance(outcome, BenchError):
            raise outcome
    return {
        **dict(_figures(traces, single=workload.concurrency == 1)),
        "foreign": cpu.foreign_cores,
        "own_cpu": None if cpu.own_cores is None else cpu.own_cores * cpu.seconds,
    }


def _figures(traces: Sequence[Trace], *, single: bool) -> Iterator[tuple[str, Any]]:
    """Seconds from the first request to the last token, counts, rates over them, time to first token; of one request at a time, decoding alone."""
    seconds = max(trace.arrivals[-1] for trace in traces) - min(trace.sent for trace in traces)
    out, prompt = sum(trace.num_output_tokens for trace in traces), sum(trace.num_prompt_tokens for trace in traces)
    yield from {"sec": seconds, "out": out, "want": out, "prompt": prompt, "out_tps": out / seconds, "total_tps": (out + prompt) / seconds}.items()
    yield "cached", sum(trace.num_cached_tokens for trace in traces)
    yield "ttft_mean", statistics.mean(trace.ttft for trace in traces)
    yield "ttft_max", max(trace.ttft for trace in traces)
    decodes = [1 / trace.tpot for trace in traces if trace.tpot]
    if single and decodes:
        yield "decode_tps", statistics.mean(decodes)


async def _quiet(driver: Driver, patience: float) -> float | None:
    """Cores that others use, once they are few or patience has run out; None where it is not known, or nobody waits."""
    end = time.monotonic() + patience
    while patience > 0:
        meter = CpuMeter(*driver.processes)
        await asyncio.sleep(1.0)
        foreign = meter.read().foreign_cores
        if foreign is None or foreign < QUIET or time.monotonic() > end:
            return foreign
    return None


def _append(path: Path, row: Mapping[str, Any]) -> None:
    line = json.dumps(row)
    try:
        with path.open("a", encoding="utf-8") as file:
            file.write(line + "\n")
            file.flush()
            os.fsync(file.fileno())
    except OSError as error:
        raise BenchError(f"--results {path}: cannot be written ({error.strerror}). The row was: {line}") from None
    print(line, flush=True)


def told(main: Callable[[], None]) -> int:
    """The exit code of a driver; what is expected to go wrong is one message."""
    from corekit.api import CorekitError

    try:
        main()
    except CorekitError as error:
        print(f"{Path(sys.argv[0]).name}: {error}", file=sys.stderr)
        return 2 if isinstance(error, BenchUsage) else 1
    return 0
