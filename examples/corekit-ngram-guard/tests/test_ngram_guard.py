"""The laws of both kits, and what is this package's own: what comes twice, what rolls back, and what is in the file."""

from __future__ import annotations

import json
import os
from collections.abc import Collection, Mapping, Sequence
from pathlib import Path
from typing import ClassVar

from corekit_ngram_guard import GUARD, LOG
from corekit_ngram_guard.guard import Ngrams
from corekit_ngram_guard.request_log import RequestLog

from corekit.api import NewSample, RequestStats
from corekit.testing import LogitsProcessorKit, ObserverKit


class TestGuard(LogitsProcessorKit):
    provider = GUARD
    options: ClassVar[Mapping[str, int]] = {"n": 4}

    def forbidden(self, sample: NewSample, accepted: Sequence[int]) -> Collection[int]:
        """By looking at the whole answer, each time."""
        ids, n = tuple(accepted), self.options["n"]
        return {ids[at + n - 1] for at in range(len(ids) - n + 1) if ids[at : at + n - 1] == ids[len(ids) - n + 1 :]}


class TestShortestGuard(TestGuard):
    options = {"n": 2}


class TestLog(ObserverKit):
    provider = LOG
    options = {"path": os.devnull}


def forbidden(guard: Ngrams, vocab_size: int = 40) -> set[int]:
    mask = memoryview(bytearray(b"\xff" * 8)).cast("I")
    guard.fill(mask)
    return {id for id in range(vocab_size) if not mask[id // 32] >> id % 32 & 1}


def test_the_last_id_of_a_trigram_comes_once() -> None:
    guard = Ngrams(3)
    guard.accept([1, 2, 35, 1, 2])
    assert forbidden(guard) == {35}
    guard.accept([7, 1, 2])
    assert forbidden(guard) == {35, 7}
    guard.rollback(3)
    assert forbidden(guard) == {35}
    guard.rollback(1)
    assert forbidden(guard) == set()


def test_a_line_for_each_request(tmp_path: Path) -> None:
    log = RequestLog(tmp_path / "requests.jsonl", 10)
    for number in range(3):
        log.on_request(
            RequestStats(
                request_id=f"r{number}",
                finish_reason="stop",
                num_samples=1,
                num_prompt_tokens=5,
                num_output_tokens=number,
                num_cached_tokens=0,
                num_preemptions=0,
                queue_seconds=0.1,
                first_token_seconds=None,
                total_seconds=0.5,
            )
        )
    del log  # its end writes what waits
    lines = [json.loads(line) for line in (tmp_path / "requests.jsonl").read_text().splitlines()]
    assert [line["request_id"] for line in lines] == ["r0", "r1", "r2"]
    assert lines[2]["num_output_tokens"] == 2
    assert lines[0]["first_token_seconds"] is None
