"""Workload files, built-in workloads and what they promise about prefix caches."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from corekit.bench.errors import BenchError, BenchUsage
from corekit.bench.synthetic import NUM_REPETITIONS, synthetic
from corekit.bench.workload import MAX_ID, MAX_OUT, Workload, load

GOOD = {"ids": [1, 2, 3], "text": "one two three", "out": 4}


def written(folder: Path, content: Any) -> Path:
    path = folder / "workload.json"
    path.write_text(content if isinstance(content, str) else json.dumps(content))
    return path


def test_a_file_is_read_whole(tmp_path: Path) -> None:
    path = written(tmp_path, {"about": "x", "seed": 1, "W2": {"shape": [[3, 4]], "reps": [[GOOD, {"ids": [5], "out": 1}], [GOOD, {"text": "t", "out": 2}]]}})
    workload = load(path, "W2")
    assert [[(r.token_ids, r.text, r.num_output_tokens) for r in rep] for rep in workload.repetitions] == [
        [((1, 2, 3), "one two three", 4), ((5,), None, 1)],
        [((1, 2, 3), "one two three", 4), (None, "t", 2)],
    ]
    assert workload.origin == str(path)


@pytest.mark.parametrize(
    ("entry", "place", "fault"),
    [
        ([], "the file", "must be an object of workloads"),
        ({}, "has no workload 'W2'", "It has: none"),
        ({"W1": {"reps": [[GOOD]]}}, "has no workload 'W2'", "It has: W1"),
        ({"W2": []}, "W2", "an object with the key 'reps'"),
        ({"W2": {}}, "W2.reps", "got nothing"),
        ({"W2": {"reps": []}}, "W2.reps", "at least one repetition"),
        ({"W2": {"reps": [[GOOD], []]}}, "W2.reps[1]", "at least one request"),
        ({"W2": {"reps": [[GOOD, 7]]}}, "W2.reps[0][1]", "got 7"),
        ({"W2": {"reps": [[{"out": 1}]]}}, "W2.reps[0][0]", "neither 'ids' nor 'text'"),
        ({"W2": {"reps": [[{**GOOD, "out": 0}]]}}, "W2.reps[0][0].out", f"from 1 to {MAX_OUT}, got 0"),
        ({"W2": {"reps": [[{**GOOD, "out": MAX_OUT + 1}]]}}, "W2.reps[0][0].out", f"from 1 to {MAX_OUT}"),
        ({"W2": {"reps": [[{**GOOD, "out": True}]]}}, "W2.reps[0][0].out", "got True"),
        ({"W2": {"reps": [[{"ids": [1]}]]}}, "W2.reps[0][0].out", "got nothing"),
        ({"W2": {"reps": [[{**GOOD, "ids": []}]]}}, "W2.reps[0][0].ids", "got []"),
        ({"W2": {"reps": [[{**GOOD, "ids": [1, -1]}]]}}, "W2.reps[0][0].ids[1]", f"from 0 to {MAX_ID}, got -1"),
        ({"W2": {"reps": [[{**GOOD, "ids": [1.0]}]]}}, "W2.reps[0][0].ids[0]", "got 1.0"),
        ({"W2": {"reps": [[{**GOOD, "text": ""}]]}}, "W2.reps[0][0].text", "not empty"),
        ("{", "is not JSON", "Expected"),
    ],
)
def test_a_bad_file_is_refused_with_place_fault_and_limit(tmp_path: Path, entry: Any, place: str, fault: str) -> None:
    with pytest.raises(BenchError) as caught:
        load(written(tmp_path, entry), "W2")
    assert place in str(caught.value)
    assert fault in str(caught.value)
    assert str(tmp_path) in str(caught.value)


def test_the_only_workload_of_a_file_needs_no_name(tmp_path: Path) -> None:
    one = {"reps": [[{"text": "a", "out": 1}]]}
    path = tmp_path / "workloads.json"
    path.write_text(json.dumps({"about": "one", "mine": one}))
    assert load(path, None, "W1").name == "mine"
    with pytest.raises(BenchUsage, match="has no workload 'W1'"):
        load(path, "W1")
    path.write_text(json.dumps({"mine": one, "W1": one}))
    assert load(path, None, "W1").name == "W1"


def test_a_file_that_is_not_there(tmp_path: Path) -> None:
    with pytest.raises(BenchError, match=r"cannot be read.*--workload"):
        load(tmp_path / "none.json", "W1")


@pytest.mark.parametrize(("name", "requests", "prompt", "out", "concurrency"), [("W1", 1, 128, 128, 1), ("W2", 32, 9117, 2543, 32), ("W3", 32, 33792, 1024, 8)])
def test_built_in_shapes(name: str, requests: int, prompt: int, out: int, concurrency: int) -> None:
    workload = synthetic(name, seed=3, vocab_size=500)
    assert len(workload.repetitions) == NUM_REPETITIONS
    assert workload.concurrency == concurrency
    for rep in workload.repetitions:
        assert len(rep) == requests
        assert sum(len(r.token_ids or ()) for r in rep) == prompt
        assert sum(r.num_output_tokens for r in rep) == out
        assert all(0 <= i < 500 for r in rep for i in r.token_ids or ())


def test_built_in_workloads_are_functions_of_their_seed() -> None:
    assert synthetic("W2", seed=1, vocab_size=90) == synthetic("W2", seed=1, vocab_size=90)
    assert synthetic("W2", seed=1, vocab_size=90).repetitions != synthetic("W2", seed=2, vocab_size=90).repetitions
    words = synthetic("W3", seed=1, vocab_size=None)
    assert words == synthetic("W3", seed=1, vocab_size=None)
    assert all(len((r.text or "").split()) == 1056 and r.token_ids is None for r in words.repetitions[0])


def test_w3_shares_its_prefix_within_a_repetition_only() -> None:
    first, second, *_ = synthetic("W3", seed=5, vocab_size=1000).repetitions
    assert len({(r.token_ids or ())[:1024] for r in first}) == 1
    assert len({(r.token_ids or ())[1024:] for r in first}) == 32
    assert (first[0].token_ids or ())[:1024] != (second[0].token_ids or ())[:1024]


def test_an_unknown_name_says_what_there_is() -> None:
    with pytest.raises(BenchError, match="W1, W2, W3"):
        synthetic("W9", seed=1, vocab_size=None)


@pytest.mark.parametrize("vocab_size", [300, None])
def test_repetitions_beyond_the_last_begin_differently_and_keep_their_shape(vocab_size: int | None) -> None:
    workload = synthetic("W3", seed=5, vocab_size=vocab_size)
    seen: set[object] = set()
    for number in range(3 * NUM_REPETITIONS):
        rep = workload.repetition(number)
        beginnings = {r.token_ids[:1024] if r.token_ids else (r.text or "")[:200] for r in rep}
        assert len(beginnings) == 1, "the shared prefix stays shared"
        assert not beginnings & seen, "no cached prefix fits"
        seen |= beginnings
        assert [len(r.token_ids or ()) for r in rep] == [len(r.token_ids or ()) for r in workload.repetitions[0]]


def test_a_single_repetition_can_be_repeated() -> None:
    only = synthetic("W1", seed=5, vocab_size=50)
    workload = Workload(name="W1", origin="test", repetitions=only.repetitions[:1])
    firsts = {workload.repetition(number)[0].token_ids for number in range(4)}
    assert len(firsts) == 4
