"""The timeline of an engine: what the observer's kit asks, and a Chrome trace whose spans are where the steps and requests were."""

from __future__ import annotations

import asyncio
import json
from collections import defaultdict
from contextlib import aclosing
from itertools import pairwise
from pathlib import Path
from time import perf_counter
from typing import Any, ClassVar

import pytest
from bench_rig import FINGERPRINT, QUIET, invoked, serving

from corekit.api import Prompt, Provider, SamplingParams
from corekit.bench.chrome_trace import ChromeTrace
from corekit.bench.errors import BenchError
from corekit.bench.timeline import Stretch, Timeline
from corekit.compose.assemble import assemble
from corekit.testing import ObserverKit

PHASES = ("plan", "submit", "collect", "commit")


class TestTimeline(ObserverKit):
    provider: ClassVar[Provider[Any]] = Provider(
        name="timeline", api=1, summary="remembers steps and requests", build=lambda context, options: Timeline(max_steps=500, max_requests=500)
    )


class Read:
    """A trace as its reader sees it. Reading checks what every one must keep: spans of a track are nested or apart."""

    def __init__(self, content: bytes) -> None:
        found = json.loads(content)
        assert set(found) == {"traceEvents", "displayTimeUnit", "otherData"}
        self.about = found["otherData"]
        self.groups = {event["pid"]: event["args"]["name"] for event in found["traceEvents"] if event["name"] == "process_name"}
        names = {(event["pid"], event["tid"]): event["args"]["name"] for event in found["traceEvents"] if event["name"] == "thread_name"}
        self.tracks: dict[tuple[str, str], list[dict[str, Any]]] = {(self.groups[pid], name): [] for (pid, _), name in names.items()}
        self.counters: dict[str, list[dict[str, Any]]] = defaultdict(list)
        for event in found["traceEvents"]:
            assert event["ph"] in "MXC"
            if event["ph"] == "X":
                self.tracks[self.groups[event["pid"]], names[event["pid"], event["tid"]]].append(event)
            elif event["ph"] == "C":
                self.counters[event["name"]].append(event)
        for track in self.tracks.values():
            self._check(track)

    @staticmethod
    def _check(track: list[dict[str, Any]]) -> None:
        open_until: list[float] = []
        for event in sorted(track, key=lambda event: (event["ts"], -event["dur"])):
            assert event["ts"] >= 0
            assert event["dur"] >= 0
            while open_until and open_until[-1] <= event["ts"]:
                open_until.pop()
            ended = round(event["ts"] + event["dur"], 3)
            assert not open_until or ended <= open_until[-1], f"{event} is half within another"
            open_until.append(ended)

    def of(self, group: str) -> dict[str, list[dict[str, Any]]]:
        return {track: spans for (one, track), spans in self.tracks.items() if one == group}


async def ask(client: Any, count: int) -> None:
    async def one(at: int) -> None:
        params = SamplingParams(temperature=0, max_tokens=6, ignore_eos=True, n=1 + at % 2)
        async with aclosing(client.generate(Prompt(text="a prompt" * (1 + at)), params, request_id=f"r{at}")) as news:
            async for _ in news:
                if at == 2:
                    return

    await asyncio.gather(*(one(at) for at in range(count)))


@pytest.mark.parametrize(("executor", "most"), [("in-process", 1), ("delayed", 2)])
def test_an_engine_of_ones_own(executor: str, most: int, tmp_path: Path) -> None:
    timeline = Timeline()
    began = perf_counter()
    config = {"model": {"source": "none", "use": "fingerprint"}, "tokenizer": {"use": "bytes"}, "executor": {"use": executor}}
    with assemble(config | {"block_allocator": {"num_blocks": 40}}, frontends=(), observers=(timeline,), environ={}) as assembly:
        asyncio.run(ask(assembly.client, 5))
    took = perf_counter() - began
    timeline.write(tmp_path / "trace.json", [Stretch("all", began, began + took)])
    assert [path.name for path in tmp_path.iterdir()] == ["trace.json"]
    read = Read((tmp_path / "trace.json").read_bytes())

    steps = read.of("steps")
    assert len(steps) == most, "a track for each step in flight"
    spans = [span for track in steps.values() for span in track]
    whole = {span["name"]: span for span in spans if span["name"].startswith("step ")}
    assert len(whole) == read.about["steps"] > 6
    assert {phase: sum(span["name"] == phase for span in spans) for phase in PHASES} == dict.fromkeys(PHASES, len(whole))
    assert sum(span["args"]["output_tokens"] for span in whole.values()) >= 6 * 5
    assert max(span["ts"] + span["dur"] for span in spans) <= 1e6 * took

    assert sorted(read.of("requests")) == [f"r{at}" for at in range(5)]
    for name, track in read.of("requests").items():
        kinds = [span["name"] for span in track]
        if name != "r2":  # its caller left it; how far it came by then depends
            assert kinds == [name, "queued", "prefill", "decode"]
            assert track[0]["args"]["finish_reason"] == "length"
            assert sum(span["dur"] for span in track[1:]) == pytest.approx(track[0]["dur"], abs=0.01)
    assert max(event["args"]["running"] for event in read.counters["requests"]) >= 2
    used = [event["args"]["blocks"] for event in read.counters["blocks in use"]]
    assert 0 < max(used) <= 40
    assert len(used) == len(whole)
    (stretch,) = read.of("benchmark")["repetitions"]
    assert (stretch["name"], stretch["ts"]) == ("all", 0)


def test_what_is_forgotten_is_counted() -> None:
    timeline = Timeline(max_steps=3, max_requests=2)
    config = {"model": {"source": "none", "use": "fingerprint"}, "tokenizer": {"use": "bytes"}, "block_allocator": {"num_blocks": 40}}
    with assemble(config, frontends=(), observers=(timeline,), environ={}) as assembly:
        asyncio.run(ask(assembly.client, 5))
    about = Read(timeline.encoded()).about
    assert (about["steps"], about["requests"], about["requests_forgotten"]) == (3, 2, 3)
    assert about["steps_forgotten"] > 0
    with pytest.raises(ValueError, match="max_steps must be an integer from 1"):
        Timeline(max_steps=0)


def test_half_a_trace_is_never_there(tmp_path: Path) -> None:
    (tmp_path / "taken").mkdir()
    for path in (tmp_path / "none" / "trace.json", tmp_path / "taken"):
        with pytest.raises(BenchError, match="cannot be written there"):
            Timeline().write(path)
    assert [path.name for path in tmp_path.iterdir()] == ["taken"]
    assert Read(Timeline().encoded()).about["steps"] == 0


def test_touching_spans_do_not_overlap_after_rounding() -> None:
    trace = ChromeTrace()
    track = trace.track("group", "track")
    moments = [1000.0 + at * 1.23456789e-7 for at in range(500)]
    for earlier, later in pairwise(moments):
        track.span("x", earlier, later)
    Read(trace.encoded({}))


def test_throughput_and_serve_write_traces(tmp_path: Path) -> None:
    out = tmp_path / "trace.json"
    work = tmp_path / "work.json"
    work.write_text(json.dumps({"mine": {"reps": [[{"ids": [rep, 2, 3], "text": "abc", "out": 5}] * 3 for rep in range(3)]}}))
    common = ["--workload", work, "--reps", 2, "--trace", out, *QUIET]
    invoked("throughput", *FINGERPRINT, *common)
    read = Read(out.read_bytes())
    assert [span["name"] for span in read.of("benchmark")["repetitions"]] == ["repetition 1/2", "repetition 2/2"]
    assert (len(read.of("requests")), read.about["requests"]) == (9, 9), "the warm-up is there too"
    with serving() as url:
        invoked("serve", "--url", url, "--api-key", "secret", "--rate", 100, *common)
    read = Read(out.read_bytes())
    assert "steps" not in read.groups.values(), "nothing is known of another process's"
    assert len(read.of("requests")) == 6
    for track in read.of("requests").values():
        assert [span["name"] for span in track][1:] == ["due, not sent", "waiting", "decode"]
    in_flight = [event["args"]["requests"] for event in read.counters["in flight"]]
    assert in_flight[-1] == 0
    assert 1 <= max(in_flight) <= 3
