"""The parts of `bench accuracy` that need no engine: its arithmetic, text, windows, names, and the look at steps."""

from __future__ import annotations

import hashlib
import math
from collections.abc import Sequence
from dataclasses import replace

import pytest

from corekit.api import RequestFailed, StepStats, TokenLogprob
from corekit.bench.accuracy import exceeding, verdicts
from corekit.bench.agreement import Scored, compare, perplexity
from corekit.bench.english import Text, cut, normalised, read_text
from corekit.bench.errors import BenchError, BenchUsage
from corekit.bench.precisions import PRECISIONS, USUAL, chosen
from corekit.bench.scoring import PREFILL, Shape, check_steps, scored


def ln(*probabilities: float) -> tuple[float, ...]:
    return tuple(map(math.log, probabilities))


def test_figures_by_hand() -> None:
    reference = [Scored(ln(0.5, 0.25), (1, 2)), Scored(ln(0.125, 0.5), (3, 4))]
    other = [Scored(ln(0.25, 0.25), (1, 2)), Scored(ln(0.125, 0.125), (3, 9))]
    assert perplexity(reference) == pytest.approx(2 ** (7 / 4))
    found = compare(other, reference)
    assert found.perplexity == pytest.approx(2 ** (10 / 4))
    assert found.ratio == pytest.approx(2 ** (3 / 4))
    assert found.agreement == 0.75
    assert found.difference == pytest.approx(3 / 4 * math.log(2))
    means = (math.log(2) / 2, math.log(2))
    assert found.uncertainty == pytest.approx(found.ratio * abs(means[0] - means[1]) / 2), "the deviation of two is their distance / sqrt 2"
    assert compare(reference, other).ratio == pytest.approx(1 / found.ratio)
    assert compare(other[:1], reference[:1]).uncertainty is None
    assert compare([Scored((-1e6,), (0,))], [Scored((-1.0,), (0,))]).perplexity == math.inf
    with pytest.raises(ValueError, match="same windows"):
        compare(other[:1], reference)


def test_the_built_in_text_is_long_and_the_same_each_time() -> None:
    text = read_text(None)
    assert len(text.content.split()) > 40_000
    assert text.content == normalised(text.content) == read_text(None).content
    assert text.sha256 == hashlib.sha256(text.content.encode()).hexdigest()


def test_a_text_has_one_form() -> None:
    assert normalised("\n\na  \r\nb\r\n\r\n\r\n\r\ncafe\u0301\n\n") == "a\nb\n\ncaf\u00e9\n"


class Words:
    """Lengths of words as ids, with `begin` before every prompt and `end` after it. As much of a tokenizer as windows need."""

    def __init__(self, begin: tuple[int, ...] = (), end: tuple[int, ...] = ()) -> None:
        self._begin, self._end = begin, end

    def encode(self, text: str, *, add_special: bool = True) -> Sequence[int]:
        ids = [len(word) for word in text.split()]
        return [*self._begin, *ids, *self._end] if add_special else ids


def test_windows() -> None:
    text = Text(name="some", content="a bb ccc dddd eeeee ffffff ggggggg")

    def prompts(tokenizer: Words, size: int, num_tokens: int) -> tuple[tuple[tuple[int, ...], ...], int, int]:
        windows = cut(text, tokenizer, size=size, num_tokens=num_tokens)  # type: ignore[arg-type]
        return windows.prompts, windows.num_given, windows.num_scored

    assert prompts(Words(), 3, 4) == (((1, 2, 3), (4, 5, 6)), 1, 4)
    assert prompts(Words(begin=(90,), end=(91,)), 3, 6) == (((90, 1, 2), (90, 3, 4), (90, 5, 6)), 1, 6), "every token of the text counts"
    assert prompts(Words(begin=(90, 92)), 3, 2) == (((90, 92, 1), (90, 92, 2)), 2, 2)
    for tokenizer, size, num_tokens, says in ((Words(), 3, 7, "has 7 tokens"), (Words(begin=(90, 92)), 2, 1, "no token to score")):
        with pytest.raises(BenchUsage, match=says):
            prompts(tokenizer, size, num_tokens)


def test_names() -> None:
    assert [one.name for one in chosen((), ())] == list(USUAL)
    assert not any(one.asked_for for one in chosen((), ()))
    assert all("block_allocator.kv_dtype" in PRECISIONS[name] for name in USUAL), "the KV is part of a precision"
    named, variant = chosen(("int8", "int8"), ('mine=model.dtype=float16, block_allocator.stack=["a","b"],engine.threads=2,model.source=/x/y,z',))
    assert (named.name, named.asked_for) == ("int8", True)
    assert variant.settings == {"model.dtype": "float16", "block_allocator.stack": ["a", "b"], "engine.threads": 2, "model.source": "/x/y,z"}


def test_scores_of_a_window() -> None:
    answer = (None, TokenLogprob(5, -1.0, ((7, -0.5),)), TokenLogprob(6, -0.25, ((6, -0.25),)))
    assert scored(answer, 1, 0) == Scored((-1.0, -0.25), (7, 6))
    assert scored(answer, 2, 0) == Scored((-0.25,), (6,))
    with pytest.raises(RequestFailed, match="token 2 of window 4"):
        scored((*answer[:2], TokenLogprob(6, -math.inf, ((7, 0.0),))), 1, 4)
    with pytest.raises(BenchError, match="without the logprobs"):
        scored(None, 1, 0)


def step(*, num_rows: int, num_tokens: int) -> StepStats:
    counts = dict.fromkeys(("number", "num_output_tokens", "num_preempted", "num_running", "num_waiting", "num_free_blocks"), 0)
    times = dict.fromkeys(("plan_seconds", "submit_seconds", "collect_seconds", "commit_seconds"), 0.0)
    return StepStats(num_rows=num_rows, num_tokens=num_tokens, **counts, **times)  # type: ignore[arg-type]


def test_steps_that_are_not_what_was_asked_for_are_seen() -> None:
    steps = [step(num_rows=2, num_tokens=2), step(num_rows=1, num_tokens=1)]
    check_steps(steps, Shape(2), 3)
    check_steps([replace(steps[0], num_tokens=40)], PREFILL, 40)
    with pytest.raises(BenchError, match="cached, preempted or lost"):
        check_steps(steps, Shape(2), 4)
    with pytest.raises(BenchError, match="no step of one token a row"):
        check_steps([steps[0], replace(steps[1], num_tokens=2)], Shape(2), 4)


def test_verdicts_look_at_the_worst_shape() -> None:
    def row(precision: str, shape: str, ratio: float, agreement: float) -> dict[str, object]:
        return {"precision": precision, "shape": shape, "ratio": ratio, "more,_%": 100 * (ratio - 1), "agreement,_%": agreement}

    rows = [row("float32", "prefill", 1.0, 100.0), row("int8", "prefill", 1.001, 97.0), row("int8", "1 row", 0.98, 98.0)]
    found = verdicts(rows)
    assert [one["perplexity_within_1%_of_float32"] for one in found] == [True, False]
    assert (found[1]["worst_shape"], found[1]["least_agreement,_%"]) == ("1 row", 97.0)
    assert exceeding({"accuracy": rows}, 1.0005) == ["int8, prefill: 1.00100"]
    missing = [{"precision": "a", "asked_for": True}, {"precision": "b", "asked_for": False}]
    assert exceeding({"accuracy": rows[:1], "not available": missing}, 1.0) == ["a: not available"]
