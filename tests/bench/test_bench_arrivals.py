"""When requests of an open loop come, that their latencies count from then, and recordings as workloads."""

from __future__ import annotations

import asyncio
import json
import math
import time
from collections.abc import Sequence
from itertools import pairwise
from pathlib import Path

import pytest
from bench_rig import QUIET, invoked, serving

from corekit.bench.arrivals import Arrivals, mean_rate, poisson
from corekit.bench.errors import BenchUsage
from corekit.bench.load import open_loop
from corekit.bench.recording import Recording, read_recording
from corekit.bench.reenacted import AskedRecording, Reenacted
from corekit.bench.trace import Trace, figures
from corekit.bench.workload import Request

TRACES = Path(__file__).resolve().parents[3] / "shared" / "traces"
REQUEST = Request(token_ids=(1,), text=None, num_output_tokens=1)


def test_poisson_gaps_are_exponential_and_independent() -> None:
    """Mean, share beyond one and two means, and no memory of the gap before: those of any process but Poisson's fail one of them."""
    times = poisson(4.0, 40_001, seed=3)
    gaps = [later - earlier for earlier, later in pairwise(times)]
    assert times[0] == 0.0
    assert len(gaps) == 40_000
    assert min(gaps) >= 0
    mean = sum(gaps) / len(gaps)
    assert mean == pytest.approx(0.25, rel=0.02)
    for means in (0.5, 1.0, 2.0, 4.0):
        assert sum(gap > 0.25 * means for gap in gaps) / len(gaps) == pytest.approx(math.exp(-means), abs=0.008)
    covariance = sum((one - mean) * (other - mean) for one, other in pairwise(gaps)) / len(gaps)
    assert abs(covariance) < 0.02 * mean**2


def test_arrivals_are_functions_of_their_seed_and_repetition() -> None:
    arrivals = Arrivals(rate=2.0, seed=5)
    assert arrivals.schedule(50, 1) == arrivals.schedule(50, 1)
    assert arrivals.schedule(50, 1) != arrivals.schedule(50, 2)
    assert arrivals.schedule(50, 1)[:20] == arrivals.schedule(20, 1)  # type: ignore[index]
    assert Arrivals(rate=2.0, seed=6).schedule(50, 1) != arrivals.schedule(50, 1)
    assert poisson(1.0, 1, 0) == [0.0]
    assert Arrivals(concurrency=3).schedule(50, 1) is None
    assert Arrivals(times=(0.0, 1.0)).facts(2) == {"rate": 1.0, "arrivals": "recorded"}
    assert mean_rate([0.0, 0.0]) is None


def opened(ask_seconds: Sequence[float], times: Sequence[float]) -> list[Trace]:
    """Answers that hold up the whole event loop for so long, as a client without its processor does."""
    waits = iter(ask_seconds)

    async def ask(request: Request) -> Trace:
        sent = time.perf_counter()
        time.sleep(next(waits))
        return Trace(num_prompt_tokens=1, num_cached_tokens=0, num_output_tokens=1, sent=sent, arrivals=(time.perf_counter(),))

    outcomes = asyncio.run(open_loop(ask, [REQUEST] * len(times), times, lambda: None))
    return sorted((one for one in outcomes if isinstance(one, Trace)), key=lambda one: one.began)


def test_who_is_sent_late_has_waited_since_it_was_due() -> None:
    """One answer of 0.2 s holds up three that were due meanwhile: what they waited is theirs, though the client sent them only afterwards."""
    first, *held, last = opened([0.2, 0.0, 0.0, 0.0, 0.0], [0.0, 0.05, 0.1, 0.15, 0.4])
    for due, one in zip((0.05, 0.1, 0.15), held, strict=True):
        assert one.began == pytest.approx(first.began + due)
        assert one.arrivals[0] - one.sent < 0.1, "as the client alone would tell it"
        assert one.ttft >= 0.2 - due - 1e-6
        assert one.e2e == one.ttft
    samples = figures([first, *held, last]).samples
    assert max(samples["late"]) >= 0.15 - 1e-6
    assert len(samples["late"]) == 5


def test_nobody_is_sent_before_it_is_due() -> None:
    times = [0.0, 0.01, 0.01, 0.05, 0.08]
    traces = opened([0.0] * 5, times)
    for one in traces:
        assert one.due is not None
        assert one.sent >= one.due - 1e-6
    assert [one.began - traces[0].began for one in traces] == pytest.approx(times)


LINES = [
    {"timestamp": 7000, "input_length": 20, "output_length": 3, "hash_ids": [0, 1, 9]},
    {"timestamp": 5000, "input_length": 24, "output_length": 5, "hash_ids": [0, 1, 2]},
    {"timestamp": 6000, "input_length": 9, "output_length": 2, "hash_ids": [0]},
    {"timestamp": 5500, "input_length": 0, "output_length": 2},
    {"timestamp": 9000, "input_length": 4, "output_length": 8},
]


def written(folder: Path, *lines: object, name: str = "some.jsonl") -> Path:
    path = folder / name
    path.write_text("\n".join(line if isinstance(line, str) else json.dumps(line) for line in lines) + "\n")
    return path


def shape(recording: Recording) -> list[tuple[float, int, int, tuple[int, ...]]]:
    return [(one.time, one.num_prompt_tokens, one.num_output_tokens, one.block_ids) for one in recording.requests]


def test_json_lines_are_read_in_the_order_of_their_times(tmp_path: Path) -> None:
    recording = read_recording(written(tmp_path, *LINES), 10, block_tokens=8)
    assert shape(recording) == [(0.0, 24, 5, (0, 1, 2)), (1.0, 9, 2, (0,)), (2.0, 20, 3, (0, 1, 9)), (4.0, 4, 8, ())]
    assert shape(read_recording(written(tmp_path, *LINES), 2, block_tokens=8)) == shape(recording)[:2]


def test_csv_is_read_with_dates_or_seconds(tmp_path: Path) -> None:
    head = "TIMESTAMP,ContextTokens,GeneratedTokens"
    dated = written(tmp_path, head, "2023-11-16 18:17:04.2500000,5,6\r", "2023-11-16 18:17:03.5000000,3,4\r", "2023-11-16 18:17:03.7,3,0\r", name="a.csv")
    assert shape(read_recording(dated, 10, 512)) == [(0.0, 3, 4, ()), (0.75, 5, 6, ())]
    zoned = written(tmp_path, head, "2024-05-10 00:00:01+01:00,5,6", "2024-05-09 23:00:00Z,3,4", name="b.csv")
    assert shape(read_recording(zoned, 10, 512)) == [(0.0, 3, 4, ()), (1.0, 5, 6, ())]
    assert shape(read_recording(written(tmp_path, head, "10.5,3,4", "12,5,6", name="c.csv"), 10, 512)) == [(0.0, 3, 4, ()), (1.5, 5, 6, ())]


@pytest.mark.parametrize(
    ("lines", "says"),
    [
        (['{"timestamp": 0, "input_length": 5}'], r"line 1: Object missing required field .output_length"),
        (['{"timestamp": 1e999, "input_length": 5, "output_length": 1}'], "line 1: .*out of range|line 1: the time must be finite"),
        (['{"timestamp": 0, "input_length": -5, "output_length": 1}'], r"line 1: a length must be a number of tokens from 0 to 10000000, got -5"),
        (['{"timestamp": 0, "input_length": 20, "output_length": 1, "hash_ids": [1]}'], r"line 1: has 1 hash_ids for 20 tokens, .* blocks of 8 tokens"),
        (["{", "x"], "line 1: .*Expected lines of"),
        (["TIMESTAMP,ContextTokens", "1,2"], "names no column GeneratedTokens"),
        (["TIMESTAMP,ContextTokens,GeneratedTokens", "yesterday,2,3"], "line 2: TIMESTAMP must be a time in ISO 8601 or in seconds, got 'yesterday'"),
        (["TIMESTAMP,ContextTokens,GeneratedTokens", "nan,2,3"], "line 2: the time must be finite"),
        (["TIMESTAMP,ContextTokens,GeneratedTokens", "1,2,many"], "line 2: GeneratedTokens must be a number of tokens, got 'many'"),
        (["TIMESTAMP,ContextTokens,GeneratedTokens", "1,0,3"], "has no request with a prompt and an answer"),
        ([""], "names no column TIMESTAMP"),
    ],
)
def test_what_is_no_recording(tmp_path: Path, lines: list[str], says: str) -> None:
    with pytest.raises(BenchUsage, match=says):
        read_recording(written(tmp_path, *lines), 10, block_tokens=8)


def test_a_recording_that_is_not_there(tmp_path: Path) -> None:
    with pytest.raises(BenchUsage, match="cannot be read: No such file"):
        read_recording(tmp_path / "none.csv", 10, block_tokens=8)


def test_a_recording_can_be_faster_shorter_and_clipped(tmp_path: Path) -> None:
    recording = read_recording(written(tmp_path, *LINES), 10, block_tokens=8)
    assert recording.faster(4.0).times == (0.0, 0.25, 0.5, 1.0)
    assert mean_rate(recording.at_rate(6.0).times) == pytest.approx(6.0)
    short = recording.shorter(4)
    assert (short.block_tokens, shape(short)) == (2, [(0.0, 6, 1, (0, 1, 2)), (1.0, 2, 1, (0,)), (2.0, 5, 1, (0, 1, 9)), (4.0, 1, 2, ())])
    clipped, num_clipped = recording.clipped(10)
    assert num_clipped == 4
    assert [(one.num_prompt_tokens, one.num_output_tokens) for one in clipped.requests] == [(5, 5), (8, 2), (7, 3), (2, 8)]
    assert recording.clipped(2)[0].requests[0].num_prompt_tokens == recording.clipped(2)[0].requests[0].num_output_tokens == 1
    with pytest.raises(BenchUsage, match="came at one moment"):
        read_recording(written(tmp_path, LINES[0], LINES[0]), 10, block_tokens=8).at_rate(2.0)


@pytest.mark.parametrize("vocab_size", [1000, None])
def test_prompts_share_what_the_recording_shares_and_no_more(tmp_path: Path, vocab_size: int | None) -> None:
    workload = Reenacted(recording=read_recording(written(tmp_path, *LINES), 10, block_tokens=8), seed=1, vocab_size=vocab_size)

    def prompts(number: int) -> list[list[object]]:
        return [list(one.token_ids) if one.token_ids is not None else list((one.text or "").split()) for one in workload.repetition(number)]

    whole, second, third, fourth = prompts(1)
    assert [len(prompt) for prompt in prompts(1)] == [24, 9, 20, 4]
    assert whole[:8] == second[:8] == third[:8]
    assert whole[:16] == third[:16]
    assert whole[16:20] != third[16:20]
    assert whole[8:16] != whole[:8]
    assert fourth != whole[:4]
    assert prompts(1) == prompts(1)
    assert all(one[:8] != other[:8] for one, other in zip(prompts(1), prompts(2), strict=True)), "another repetition finds nothing in a cache"
    assert all(isinstance(token, str) or (isinstance(token, int) and 0 <= token < 1000) for prompt in prompts(1) for token in prompt)


def test_more_prompts_than_can_be_made_are_refused(tmp_path: Path) -> None:
    path = written(tmp_path, *[{"timestamp": 0, "input_length": 10_000_000, "output_length": 1}] * 11)
    with pytest.raises(BenchUsage, match="its prompts have 110,000,000 tokens, at most 100,000,000 are made"):
        AskedRecording(file=path, seed=0).workload(100)
    assert AskedRecording(file=path, seed=0, shorten=1000).workload(100).num_requests == 11


@pytest.mark.parametrize(("name", "rate"), [("mooncake-conversation.jsonl", 3.4), ("azure-2023-code.csv", 2.6)])
def test_published_traces(name: str, rate: float) -> None:
    if not (TRACES / name).exists():
        pytest.skip(f"needs traces: {TRACES / name}")
    recording = read_recording(TRACES / name, 10**6, 512)
    assert mean_rate(recording.times) == pytest.approx(rate, abs=0.05)
    assert list(recording.times) == sorted(recording.times)


def test_a_server_is_sent_a_recording(tmp_path: Path) -> None:
    """Shared blocks are found in the server's prefix cache, as often as they are shared and never from one repetition to the next."""
    lines = [{"timestamp": 400 * at, "input_length": 40, "output_length": 2, "hash_ids": [0, 1, 10 + at]} for at in range(4)]
    path = written(tmp_path, *lines)
    with serving() as url:
        common = ["serve", "--url", url, "--api-key", "secret", "--arrivals", path, "--block-tokens", 16, "--vocab-size", 200, *QUIET, "--json", "-"]
        result = invoked(*common, "--reps", 2, "--speedup", 8)
        found = json.loads(result.stdout)
        assert found["subject"]["rate"] == 20.0
        assert found["subject"]["arrivals"] == "recorded"
        assert "sent late, ms" in result.stderr
        for attempt in found["attempts"]:
            assert (attempt["num_requests"], attempt["num_prompt_tokens"], attempt["num_output_tokens"]) == (4, 160, 8)
            assert attempt["num_cached_tokens"] == 3 * 32
            assert attempt["seconds"] >= 0.15, "the last was due then"
        words = [arg for arg in common if arg not in ("--vocab-size", 200)]
        clipped = json.loads(invoked(*words, "--reps", 1, "--warmup", 0, "--rate", 100, "--longest", 20, "--max-requests", 3).stdout)
        assert clipped["subject"]["requests"] == 3
        assert "3 of 3 recorded requests were clipped to 20 tokens" in clipped["remarks"]


@pytest.mark.parametrize(
    ("args", "says"),
    [
        (["--concurrency", "2"], "--arrivals and --concurrency exclude each other"),
        (["--name", "W1"], "--arrivals and --name exclude each other"),
        (["--rate", "2", "--speedup", "2"], "--rate and --speedup exclude each other"),
        (["--prompts", "ids"], "--prompts ids: ids are drawn from a vocabulary"),
        (["--block-tokens", "7"], "which is no number of blocks of 7 tokens"),
        (["--longest", "1"], "--longest"),
    ],
)
def test_what_cannot_be_replayed(tmp_path: Path, args: list[str], says: str) -> None:
    path = written(tmp_path, {"timestamp": 0, "input_length": 512, "output_length": 2, "hash_ids": [0]})
    assert says in invoked("serve", "--arrivals", path, *args, code=2).stderr


def test_options_of_a_recording_need_one() -> None:
    assert "--shorten belongs to recorded requests: add --arrivals FILE" in invoked("serve", "--shorten", "2", code=2).stderr
