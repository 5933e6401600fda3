"""Each verb of `corekit bench` from its command line to its table and JSON, on models without weights. Nothing is asserted about times."""

from __future__ import annotations

import gc
import json
import os
import threading
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest
from bench_rig import FINGERPRINT, QUIET, invoked, serving

FIGURES = {"seconds", "requests_per_second", "output_tokens_per_second", "total_tokens_per_second"}
PHASES = {"plan", "submit", "collect", "commit", "in_all"}


@pytest.fixture
def workload(tmp_path: Path) -> Path:
    def request(first: int, length: int, out: int) -> dict[str, Any]:
        return {"ids": [first, *range(30, 29 + length)], "text": "x" * length, "out": out}

    def reps(*shape: tuple[int, int]) -> dict[str, Any]:
        return {"reps": [[request(rep, length, out) for length, out in shape] for rep in range(3)]}

    path = tmp_path / "workload.json"
    path.write_text(json.dumps({"about": "small", "W1": reps((5, 4)), "W2": reps((5, 4), (20, 1), (3, 9)), "vast": reps((5, 5000))}))
    return path


def checked(found: dict[str, Any], verb: str, reps: int) -> dict[str, Any]:
    assert found["bench"] == verb
    assert found["format"] == 1
    assert found["machine"]["cpu"]
    kept = [attempt for attempt in found["attempts"] if attempt["kept"]]
    assert len(kept) == reps
    for one in found["spreads"].values():
        assert one["min"] <= one["median"] <= one["max"]
    for one in [*found["percentiles"].values(), *found["steps"].values()]:
        assert 0 <= one["p50"] <= one["p90"] <= one["p99"] <= one["max"]
    return found


def test_latency(workload: Path, tmp_path: Path) -> None:
    out = tmp_path / "result.json"
    result = invoked("latency", *FINGERPRINT, "--workload", workload, "--name", "W2", "--reps", 2, *QUIET, "--json", out)
    found = checked(json.loads(out.read_bytes()), "latency", 2)
    assert found["subject"]["concurrency"] == 1
    assert found["spreads"].keys() == FIGURES
    assert found["steps"].keys() == PHASES
    samples = {name: one["num_samples"] for name, one in found["percentiles"].items()}
    assert 1 <= samples.pop("itl") <= 22, "a delivery may hold several tokens"
    assert samples == {"ttft": 6, "tpot": 4, "e2e": 6}
    for attempt in found["attempts"]:
        assert (attempt["num_requests"], attempt["num_prompt_tokens"], attempt["num_output_tokens"], attempt["num_failed"]) == (3, 28, 14, 0)
        assert attempt["steps"]["plan"]["num_samples"] == 14, "one request at a time: a step for each of its tokens"
    assert [path.name for path in tmp_path.iterdir() if path != workload] == ["result.json"]
    for word in ("TTFT, ms", "TPOT, ms", "ITL, ms", "commit, ms", "output tokens/s", "fingerprint"):
        assert word in result.stdout


def test_throughput_with_json_on_stdout(workload: Path) -> None:
    result = invoked("throughput", *FINGERPRINT, "--workload", workload, "--reps", 1, "--warmup", 0, *QUIET, "--json", "-")
    found = checked(json.loads(result.stdout), "throughput", 1)
    assert found["subject"]["concurrency"] == 3
    assert found["attempts"][0]["repetition"] == 1, "repetition 0 only warms up"
    assert 9 <= found["attempts"][0]["steps"]["plan"]["num_samples"] < 14, "three at once share steps"
    assert "output tokens/s" in result.stderr


def test_throughput_of_text_and_of_the_built_in_workload(workload: Path) -> None:
    common = ["--reps", 1, "--warmup", 0, *QUIET, "--json", "-"]
    found = json.loads(invoked("throughput", *FINGERPRINT, "--workload", workload, "--prompts", "text", "--concurrency", 2, *common).stdout)
    assert found["subject"]["prompt_tokens"] == 28
    found = json.loads(invoked("throughput", *FINGERPRINT, "--name", "W1", *common).stdout)
    assert (found["subject"]["prompt_tokens"], found["subject"]["output_tokens"]) == (128, 128)
    assert found["subject"]["workload"].startswith("W1 (built in, ids below")


def test_engine() -> None:
    before = gc.get_threshold(), len(gc.callbacks), threading.active_count()
    result = invoked("engine", "--running", 20, "--waiting", 50, "--steps", 10, "--reps", 2, *QUIET, "--json", "-")
    found = checked(json.loads(result.stdout), "engine", 2)
    assert {name: one["num_samples"] for name, one in found["steps"].items() if name != "collector_pause"} == dict.fromkeys(
        ("plan", "step_input", "executor", "commit", "in_all", "loop"), 20
    )
    assert found["spreads"]["full_collections"]["max"] == 0
    assert found["subject"] == {"running": 20, "waiting": 50, "steps_per_repetition": 10}
    assert (gc.get_threshold(), len(gc.callbacks), threading.active_count()) == before, "nothing stays behind"


def test_full_collections_are_remarked() -> None:
    from corekit.bench.planning import Planned, collection_remarks

    quiet, disturbed = Planned(phases={}, pauses=[(0, 0.001), (1, 0.002)]), Planned(phases={}, pauses=[(2, 0.25), (0, 0.5)])
    assert collection_remarks([quiet]) == []
    (remark,) = collection_remarks([quiet, disturbed])
    assert "FULL COLLECTIONS: 1 in the kept repetitions, the longest took 250.0 ms" in remark


def test_engine_measures_the_policy_that_was_chosen() -> None:
    assert "no such provider" in invoked("engine", "--set", "scheduler_policy.use=nonesuch", code=3).stderr


@pytest.fixture
def server() -> Iterator[str]:
    with serving() as url:
        yield url


@pytest.mark.parametrize("more", [["--concurrency", 2], ["--rate", 500], ["--prompts", "text"]])
def test_serve(server: str, workload: Path, more: Sequence[object]) -> None:
    common = ["--url", server, "--api-key", "secret", "--workload", workload, "--reps", 2, *QUIET, "--json", "-"]
    found = checked(json.loads(invoked("serve", *common, *more).stdout), "serve", 2)
    assert found["spreads"].keys() == FIGURES
    assert found["steps"] == {}
    for attempt in found["attempts"]:
        assert (attempt["num_requests"], attempt["num_prompt_tokens"], attempt["num_output_tokens"]) == (3, 28, 14)
    assert f"process {os.getpid()}" in found["target"]["server"], "a local server is found by its port"


def test_serve_reads_the_key_from_a_variable(server: str, workload: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("A_KEY", "secret")
    common = ["serve", "--url", server, "--workload", workload, "--reps", 1, "--warmup", 0, *QUIET]
    invoked(*common, "--api-key", "env:A_KEY")
    assert "--api-key: 'env:NOT_SET_ANYWHERE': the variable NOT_SET_ANYWHERE is not set" in invoked(*common, "--api-key", "env:NOT_SET_ANYWHERE", code=3).stderr


def test_serve_counts_what_fails(server: str, workload: Path) -> None:
    common = ["serve", "--url", server, "--workload", workload, "--reps", 1, "--warmup", 0, *QUIET]
    assert "401" in invoked(*common, "--model", "none", code=1).stderr
    assert "lists no model" in invoked(*common, code=1).stderr
    mixed = json.loads(workload.read_text())
    mixed["W2"]["reps"][1][1]["ids"] = [10**6]
    workload.write_text(json.dumps(mixed))
    found = json.loads(invoked(*common, "--api-key", "secret", "--json", "-", code=1).stdout)
    assert found["attempts"][0]["num_failed"] == 1
    assert found["attempts"][0]["num_requests"] == 2
    assert any("1 requests FAILED" in remark for remark in found["remarks"])


@pytest.mark.parametrize(
    ("args", "code", "says"),
    [
        (["latency", *FINGERPRINT, "--name", "W7"], 2, "no such built-in workload"),
        (["latency", *FINGERPRINT, "--reps", "0"], 2, "--reps"),
        (["latency", *FINGERPRINT, "--set", "scheduler.max_num_seqs=0"], 3, "max_num_seqs"),
        (["latency", "none", "--set", "model.use=nonesuch"], 3, "no such provider"),
        (["serve", "--url", "nowhere"], 2, "no address of a server"),
        (["serve", "--rate", "1", "--concurrency", "1"], 2, "exclude each other"),
        (["serve", "--prompts", "ids"], 2, "--vocab-size"),
        (["serve", "--url", "http://127.0.0.1:1"], 1, "Is the server running there"),
        (["engine", "--running", "0"], 2, "--running"),
    ],
)
def test_what_cannot_be_measured(args: list[str], code: int, says: str) -> None:
    result = invoked(*args, code=code)
    assert says in result.stderr
    assert "Traceback" not in result.output


def test_a_workload_that_does_not_fit_is_refused_before_it_runs(workload: Path, tmp_path: Path) -> None:
    result = invoked("throughput", *FINGERPRINT, "--workload", workload, "--name", "vast", code=2)
    assert "vast.reps[0][0]: needs 5 + 5000 positions, the context has 1024" in result.stderr
    other = tmp_path / "other.json"
    other.write_text(json.dumps({"W2": {"reps": [[{"ids": [1, 70000], "out": 2}]]}}))
    result = invoked("throughput", *FINGERPRINT, "--workload", other, code=2)
    assert "W2.reps[0][0].ids: has id 70000" in result.stderr


def test_a_result_that_cannot_be_written(workload: Path, tmp_path: Path) -> None:
    result = invoked("latency", *FINGERPRINT, "--workload", workload, "--reps", 1, "--warmup", 0, *QUIET, "--json", tmp_path / "none" / "result.json", code=1)
    assert "cannot be written there" in result.stderr


def test_help_names_every_verb() -> None:
    text = invoked("--help").stdout
    assert all(verb in text for verb in ("latency", "throughput", "serve", "engine"))
