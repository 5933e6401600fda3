"""`corekit bench prefix` from its command line to its table and JSON, on a model without weights. Nothing is asserted about times."""

from __future__ import annotations

import asyncio
import io
import json
from contextlib import ExitStack
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from corekit.bench.errors import BenchError
from corekit.bench.first_token import FirstToken, Prompts
from corekit.bench.loss import Distinct, Engines
from corekit.bench.progress import Progress
from corekit.bench.stacks import Stacks
from corekit.bench.statistics import median_interval
from corekit.bench.verbs import Configure
from corekit.cli.bench import bench
from corekit.cli.common import read
from corekit.compose.assemble import assemble

SMALL = ["none", "--set", "model.use=fingerprint", "--set", "tokenizer.use=bytes", "--quick", "--max-foreign", "4096"]
LAYERS = ["--set", 'plugins.import=["corekit_cpu_swap", "corekit_lru_prefix"]', "--set", 'block_allocator.stack=["lru-prefix", "free-list"]']


def invoked(*args: object, code: int = 0) -> Result:
    result = CliRunner().invoke(bench, [str(arg) for arg in args], catch_exceptions=False)
    assert result.exit_code == code, result.output
    return result


def test_every_part(tmp_path: Path) -> None:
    out = tmp_path / "result.json"
    result = invoked("prefix", *SMALL, *LAYERS, "--shared", 64, "--pairs", 2, "--json", out)
    found = json.loads(out.read_bytes())
    assert (found["bench"], found["subject"]["parts"], found["target"]["stack"]) == ("prefix", "replay, ttft, loss", "lru-prefix over free-list")
    replay, ttft, loss = found["sections"].values()
    unlimited, *limited = replay
    assert [row["pool"] for row in replay] == ["unlimited", "1 %", "5 %", "20 %"]
    assert unlimited["hit_ratio"] == unlimited["optimum"]
    for row in limited:
        assert row["hit_ratio"] <= row["optimum"] <= row["optimum_of_both"] <= unlimited["optimum"]
        assert row["hit_ratio"] <= row["hit_ratio_with_host"] <= row["optimum_of_both"]
        assert row["host_blocks"] == 2 * row["blocks"]
    assert [row["figure"] for row in ttft] == ["TTFT without a hit, ms", "TTFT with a hit, ms", "without / with"]
    for row in [*ttft, *loss]:
        assert row["pairs"] == 2
        assert row["low"] <= row["median"] <= row["high"]
        assert row["low"] > 0 or row["figure"].endswith("more")
    assert [attempt["part"] for attempt in found["attempts"]] == ["replay", "ttft", "ttft", "loss", "loss"]
    for words in ("hit ratio with host", "without / with", "CPU time, with / without", "5 kept of 5"):
        assert words in result.stdout


def test_a_trace_of_ones_own(tmp_path: Path) -> None:
    trace = tmp_path / "mine.jsonl"
    trace.write_text('{"hash_ids": [1, 2, 3]}\n{"hash_ids": [1, 2, 4]}\n')
    found = json.loads(invoked("prefix", *SMALL, *LAYERS, "--only", "replay", "--trace", trace, "--pool", 75, "--host", 0, "--json", "-").stdout)
    (rows,) = found["sections"].values()
    assert [(row["pool"], row["blocks"], row["hit_ratio"], row["host_blocks"]) for row in rows] == [("unlimited", 4, 1 / 3, None), ("75 %", 3, 1 / 3, None)]
    assert "have the same name" in invoked("prefix", *SMALL, *LAYERS, "--only", "replay", "--trace", trace, "--trace", trace, code=2).stderr


@pytest.mark.parametrize(
    ("args", "code", "says"),
    [
        (["--set", 'block_allocator.stack=["free-list"]'], 2, "free-list caches no prefixes"),
        ([*LAYERS, "--only", "ttft", "--shared", "100000"], 2, "--shared 100000"),
        ([*LAYERS, "--pool", "0"], 2, "--pool"),
        ([*LAYERS, "--only", "nothing"], 2, "--only"),
        ([*LAYERS, "--trace", "none.jsonl"], 2, "none.jsonl"),
    ],
)
def test_what_cannot_be_measured(args: list[str], code: int, says: str) -> None:
    assert says in invoked("prefix", *SMALL, *args, code=code).stderr


def configured(*stack: str) -> Configure:
    overrides = ("model.use=fingerprint", "tokenizer.use=bytes", *LAYERS[1::2][:1], f"block_allocator.stack={json.dumps(stack)}")
    return lambda given: read("none", overrides, given)


def test_a_hit_that_is_none_is_no_measurement() -> None:
    prompts = Prompts(num_shared=64, num_own=8, seed=1)
    configure = configured("free-list")

    async def run() -> None:
        with assemble(configure(prompts.settings(16)), frontends=(), environ={}) as assembly:
            asking = FirstToken(assembly.client, prompts, Progress(io.StringIO()), 16)
            await asking.prime()
            await asking.pair(1, "")

    with pytest.raises(BenchError, match="was to find 64 tokens in the prefix cache and found 0"):
        asyncio.run(run())


def test_a_hit_in_a_workload_without_hits_is_no_measurement() -> None:
    workload = Distinct(num_requests=2, num_prompt_tokens=40, num_output_tokens=4, seed=1)
    configure = configured("lru-prefix", "free-list")

    async def run(*numbers: int) -> None:
        with ExitStack() as undo:
            engines = Engines(undo, configure, Stacks(configure), workload, Progress(io.StringIO()))
            for number in numbers:
                layered, bottom = await engines.pair(number, "")
                assert min(layered.wall, layered.planning, bottom.wall, bottom.planning) > 0

    asyncio.run(run(1, 2, 3))
    with pytest.raises(BenchError, match="64 tokens were cached, in a workload without hits"):
        asyncio.run(run(1, 1))


def test_the_interval_of_a_median() -> None:
    seven = median_interval([7, 1, 2, 3, 4, 5, 6])
    assert (seven.num_samples, seven.low, seven.median, seven.high) == (7, 1, 4, 7)
    assert seven.confidence == pytest.approx(1 - 2 / 2**7)
    nine = median_interval(range(9))
    assert (nine.low, nine.high) == (1, 7)
    assert nine.confidence == pytest.approx(1 - 2 * (1 + 9) / 2**9)
    assert (median_interval([3]).low, median_interval([3]).confidence) == (3, 0.0)
    for n in range(6, 60):
        one = median_interval(range(n))
        assert one.confidence >= 0.95
        assert one.low + one.high == n - 1, "as far from either end"
