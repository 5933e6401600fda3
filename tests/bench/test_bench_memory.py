"""`corekit bench memory` from its command line to its table and JSON, on models without weights. Nothing is asserted about times."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result

from corekit.api import EngineStats
from corekit.bench.answered import Answered, Tokens, compared
from corekit.bench.errors import BenchError, BenchUsage
from corekit.bench.lengths import log_normal, read_lengths
from corekit.cli.bench import bench

SMALL = ["none", "--set", "model.use=fingerprint", "--set", "tokenizer.use=bytes", "--quick", "--max-foreign", "4096"]
LAYERS = ["--set", 'plugins.import=["corekit_cpu_swap", "corekit_lru_prefix"]', "--set", 'block_allocator.stack=["lru-prefix", "free-list"]']
HEAD = "TIMESTAMP,ContextTokens,GeneratedTokens\n"


def invoked(*args: object, code: int = 0) -> Result:
    result = CliRunner().invoke(bench, [str(arg) for arg in args], catch_exceptions=False)
    assert result.exit_code == code, result.output
    return result


def sections(*args: object) -> list[list[dict[str, Any]]]:
    return list(json.loads(invoked("memory", *SMALL, *args, "--json", "-").stdout)["sections"].values())


def test_samples_share_the_prompt() -> None:
    ((one, ten),) = sections(*LAYERS, "--only", "samples")
    assert (one["n"], one["peak_blocks"], one["of_one"]) == (1, 21, 1.0), "320 tokens of a prompt and 7 of an answer, in blocks of 16"
    assert (ten["n"], ten["peak_blocks"], ten["blocks_if_nothing_were_shared"]) == (10, 30, 210)


def test_waste_of_blocks_beside_reservations() -> None:
    ((blocks, reserved, known),) = sections(*LAYERS, "--only", "waste")
    assert 0 < blocks["waste_per_sequence"] < blocks["most_waste"] <= 15
    assert 0.95 < blocks["utilisation"] < 1
    assert reserved["utilisation"] < known["utilisation"] < blocks["utilisation"]
    assert reserved["running"] < blocks["running"]


def test_waste_of_given_lengths(tmp_path: Path) -> None:
    path = tmp_path / "lengths.csv"
    path.write_text(HEAD + "2023-11-16 18:15:46.68,30,3\n2023-11-16 18:15:47.68,0,5\n")
    ((blocks, reserved, known),) = sections("--set", 'block_allocator.stack=["free-list"]', "--only", "waste", "--lengths", path)
    assert (blocks["most_waste"], blocks["running"], blocks["preemptions"]) == (2, 1.0, 0)
    assert blocks["utilisation"] == pytest.approx((30 / 32 + 31 / 32) / 2)
    assert reserved["utilisation"] == known["utilisation"] == pytest.approx((30 / 33 + 31 / 33) / 2)
    path.write_text(HEAD + ",30,1\n")
    assert "answers of one token" in invoked("memory", *SMALL, "--only", "waste", "--lengths", path, code=1).stderr


def test_what_is_preempted_comes_back() -> None:
    for rows in sections(*LAYERS, "--only", "pressure"):
        free, *pressed = rows
        assert (free["preemption"], free["preemptions"]) == ("no pressure", 0)
        assert [row["preemption"] for row in pressed] == ["recompute", "swap", "auto"] * 2
        for row in pressed:
            assert row["preemptions"] > 0
            assert row["same_answers"] == "4 of 4"
            if row["preemption"] == "swap":
                assert row["swapped"] == row["preemptions"]
                assert row["tokens_computed"] == free["tokens_computed"]
                assert row["MiB_to_host"] > 0 < row["MiB_to_device"]
            if row["preemption"] == "recompute":
                assert (row["swapped"], row["MiB_to_host"]) == (0, 0)
                assert row["tokens_computed"] > free["tokens_computed"]


def test_answers_that_differ_are_seen() -> None:
    def round_of(*tokens: tuple[int, ...], num_preemptions: int = 0) -> Answered:
        before = EngineStats(
            num_running=0,
            num_waiting=0,
            num_blocks=8,
            num_free_blocks=8,
            block_size=16,
            num_prompt_tokens=0,
            num_output_tokens=0,
            num_cached_tokens=0,
            num_preemptions=5,
            num_finished={},
            num_steps=0,
        )
        after = replace(before, num_preemptions=5 + num_preemptions)
        return Answered(tokens=tuple(tokens), seconds=1.0, cpu=1.0, steps=(), before=before, after=after)

    expected: Tokens = ((1, 2), (3, 4))
    free, same, other = round_of(*expected), round_of(*expected, num_preemptions=2), round_of((1, 2), (3, 5), num_preemptions=2)
    assert compared("none", [free], [free], pressed=False, exact=True)["same_answers"] == "2 of 2"
    row = compared("swap", [same, same], [free, free], pressed=True, exact=True)
    assert (row["same_answers"], row["preemptions"]) == ("4 of 4", 4)
    assert compared("swap", [other], [free], pressed=True, exact=False)["same_answers"] == "1 of 2"
    with pytest.raises(BenchError, match="swap: 1 of 2 answers differ"):
        compared("swap", [other], [free], pressed=True, exact=True)
    with pytest.raises(BenchError, match="swap: nothing was preempted"):
        compared("swap", [free], [free], pressed=True, exact=True)


def test_cost_per_block() -> None:
    (rows,) = sections(*LAYERS, "--only", "cost")
    assert [row["operation"] for row in rows] == ["find", "take (evicting)", "publish", "give"]
    assert all(row["ratio"] == row["4,096_blocks,_ns"] / row["512_blocks,_ns"] > 0 for row in rows)
    (rows,) = sections("--set", 'block_allocator.stack=["free-list"]', "--only", "cost")
    assert [row["operation"] for row in rows] == ["take", "give"]


@pytest.mark.parametrize(
    ("content", "says"),
    [
        ("TIMESTAMP,ContextTokens\n", "names no column GeneratedTokens"),
        (HEAD, "no request with a prompt and an answer"),
        (HEAD + "x,5,5\nx,5,-5\n", "line 3: GeneratedTokens must be a number of tokens, got '-5'"),
        (HEAD + "x,5\n", "line 2: GeneratedTokens must be a number of tokens, got None"),
        (HEAD + "x,65535,1\n", "line 2: has 65535 . 1 tokens, the limit is 65535"),
    ],
)
def test_lengths_that_cannot_be_read_say_where(tmp_path: Path, content: str, says: str) -> None:
    path = tmp_path / "lengths.csv"
    path.write_text(content)
    with pytest.raises(BenchUsage, match=says):
        read_lengths(path, 100)


def test_built_in_lengths_are_like_those_of_chats() -> None:
    lengths = log_normal(2000, 1)
    prompts, answers = (sorted(pair[at] for pair in lengths.pairs) for at in (0, 1))
    assert 950 < prompts[1000] < 1090 and 3500 < prompts[1980] < 4800
    assert 115 < answers[1000] < 145 and answers[-1] <= 1000
    assert lengths.pairs == log_normal(2000, 1).pairs != log_normal(2000, 2).pairs
