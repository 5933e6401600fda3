"""The drivers and the table of `examples/benchmarks`: rows from a whole engine and from a whole server, and the commands of its page."""

from __future__ import annotations

import importlib
import json
import re
import shlex
import sys
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
from bench_rig import FINGERPRINT, QUIET, invoked, serving

FOLDER = Path(__file__).resolve().parents[2] / "examples" / "benchmarks"
SETTINGS = ["--source", "none", "--model", "fingerprint", "--set", "tokenizer.use=bytes", "--set", "block_allocator.num_blocks=64"]


@pytest.fixture
def drivers(monkeypatch: pytest.MonkeyPatch) -> Iterator[dict[str, ModuleType]]:
    monkeypatch.syspath_prepend(str(FOLDER))
    names = [path.stem for path in FOLDER.glob("*.py")]
    try:
        yield {name: importlib.import_module(name) for name in names}
    finally:
        for name in names:
            sys.modules.pop(name, None)


@pytest.fixture
def workload(tmp_path: Path) -> Path:
    def reps(*shape: tuple[int, int]) -> dict[str, Any]:
        return {"reps": [[{"ids": [rep, *range(1, length)], "text": "x" * length, "out": out} for length, out in shape] for rep in range(3)]}

    path = tmp_path / "workload.json"
    path.write_text(json.dumps({"W1": reps((5, 40)), "W2": reps((5, 4), (20, 1), (3, 9)), "W3": reps(*[(20, 2)] * 10)}))
    return path


def ran(main: Any, monkeypatch: pytest.MonkeyPatch, module: ModuleType, *args: object) -> int:
    monkeypatch.setattr(sys, "argv", ["driver.py", *map(str, args)])
    return int(module.told(main))


def test_corekit_in_this_process(drivers: dict[str, ModuleType], workload: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    results = tmp_path / "results.jsonl"
    common = ["--workload", workload, "--patience", 0, "--results", results, *SETTINGS]
    rows = drivers["peer_rows"]
    assert ran(drivers["peer_corekit"].main, monkeypatch, rows, *common, "--reps", "1,2", "--threads", 1) == 0
    found = [json.loads(line) for line in results.read_text().splitlines()]
    assert [(row["workload"], row["rep"]) for row in found] == [(name, rep) for name in ("W1", "W2", "W3") for rep in (1, 2)]
    for row in found:
        assert (row["engine"], row["precision"], row["threads"]) == ("corekit", "float64", 1)
        assert "model=fingerprint" in row["args"]
        assert row["sec"] > 0
        assert row["out"] == row["want"] == {"W1": 40, "W2": 14, "W3": 20}[row["workload"]]
        assert row["prompt"] == {"W1": 5, "W2": 28, "W3": 200}[row["workload"]]
        assert row["out_tps"] == pytest.approx(row["out"] / row["sec"], rel=0.01)
        assert row["ttft_mean"] <= row["ttft_max"] <= row["sec"]
        assert ("decode_tps" in row) == (row["workload"] == "W1")
    assert ran(drivers["peer_corekit"].main, monkeypatch, rows, *common, "--only", "W1", "--reps", "1", "--precision", "exact") == 0
    assert json.loads(results.read_text().splitlines()[-1])["precision"] == "exact", "rows are appended"
    assert json.loads(invoked("latency", *FINGERPRINT, "--workload", workload, "--name", "W1", "--reps", 1, *QUIET, "--json", "-").stdout)["spreads"]


def test_a_server(drivers: dict[str, ModuleType], workload: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    results = tmp_path / "results.jsonl"
    monkeypatch.setenv("A_KEY", "secret")
    with serving() as url:
        common = ["--engine", "some", "--url", url, "--api-key-variable", "A_KEY", "--workload", workload, "--patience", 0, "--results", results]
        main = drivers["peer_server"].main
        assert ran(main, monkeypatch, drivers["peer_rows"], *common, "--precision", "x", "--only", "W2", "--reps", "2", "--prompts", "text") == 0
        assert ran(main, monkeypatch, drivers["peer_rows"], *common) == 2
    (row,) = map(json.loads, results.read_text().splitlines())
    assert (row["engine"], row["model"], row["workload"], row["rep"], row["out"], row["prompt"]) == ("some", "fingerprint", "W2", 2, 14, 28)


@pytest.mark.parametrize(
    ("args", "code", "says"),
    [
        (["--reps", "0"], 2, "--reps 0: must be numbers from 1"),
        (["--only", "W9"], 2, "has no workload 'W9'"),
        (["--model", "nonesuch"], 1, "no such provider"),
        (["--results", "none/results.jsonl", "--only", "W1"], 1, "cannot be written"),
    ],
)
def test_what_a_driver_refuses(
    drivers: dict[str, ModuleType], workload: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], args: list[str], code: int, says: str
) -> None:
    given = ["--workload", workload, "--patience", 0, *SETTINGS, *args]
    assert ran(drivers["peer_corekit"].main, monkeypatch, drivers["peer_rows"], *given) == code
    assert says in capsys.readouterr().err


def summarised(drivers: dict[str, ModuleType], path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> tuple[list[str], str]:
    monkeypatch.setattr(sys, "argv", ["summarise.py", str(path)])
    drivers["summarise"].main()
    out, err = capsys.readouterr()
    return out.splitlines(), err


def test_the_table(drivers: dict[str, ModuleType], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    def row(engine: str, rep: int, out_tps: float, foreign: float | None = 0.0, **more: object) -> dict[str, object]:
        figures = {"sec": 100 / out_tps, "ttft_mean": 0.5, "out_tps": out_tps, "foreign": foreign}
        return {"engine": engine, "precision": "bf16", "workload": "W2", "rep": rep, **figures, **more}

    rows = [row("slow", 1, 10.0), row("slow", 2, 20.0, 0.2), row("slow", 3, 14.0), row("fast", 1, 28.0, None, args="slots=8"), row("fast", 2, 500.0, 0.9)]
    path = tmp_path / "results.jsonl"
    path.write_text("".join(json.dumps(one) + "\n" for one in rows))
    lines, err = summarised(drivers, path, monkeypatch, capsys)
    assert [line for line in lines if line.startswith("| ")][1:] == [
        "| fast | bf16 | slots=8 | 1 | 28.0 | 3.57 | 0.500 | 1.00 | not known |",
        "| slow | bf16 |  | 3 | 14.0 [10.0 - 20.0] | 7.14 [5.00 - 10.00] | 0.500 [0.500 - 0.500] | 0.50 | 0.20 |",
    ]
    assert "1 of 5 rows left out" in err
    path.write_text('{"engine": "x"}\n')
    with pytest.raises(SystemExit, match="line 1: has no precision, workload, rep, sec"):
        summarised(drivers, path, monkeypatch, capsys)


def test_the_commands_of_the_page_are_ones_that_the_drivers_take(drivers: dict[str, ModuleType]) -> None:
    lines = re.findall(r"^python (\w+)\.py (.*)$", (FOLDER / "README.md").read_text("utf-8"), re.MULTILINE)
    assert {name for name, _ in lines} == {"peer_corekit", "peer_server", "summarise"}
    for name, line in lines:
        if name != "summarise":
            options = drivers[name].parser().parse_args(shlex.split(line))
            assert options.workload == Path("workload.json")
