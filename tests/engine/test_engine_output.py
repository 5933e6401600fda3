"""Text of one sample: stop strings, held text, minimum, ends. The oracle reads the whole text character by character."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from corekit.api import SamplingParams, TokenLogprob
from corekit.engine.events import SampleDelta
from corekit.engine.output import SampleOutput, StopStrings


class Words:
    """A decoder over a list of pieces; `held` waits for finish, as half a character would."""

    def __init__(self, pieces: Sequence[str], held: str = "") -> None:
        self.pieces = pieces
        self.held = held

    def push(self, token_id: int) -> str:
        return self.pieces[token_id]

    def finish(self) -> str:
        return self.held


def delta(ids: Sequence[int], finish=None, stop_reason=None, logprobs=False) -> SampleDelta:
    return SampleDelta("r", 0, tuple(ids), tuple(TokenLogprob(i, -1.0) for i in ids) if logprobs else None, finish, stop_reason, None, 0)


def sample(pieces: Sequence[str], *, held: str = "", **params) -> SampleOutput:
    params = SamplingParams(**{"max_tokens": None, **params})
    return SampleOutput(0, Words(pieces, held), params, StopStrings(params.stop))


def play(out: SampleOutput, deltas: Sequence[SampleDelta]):
    """(text, ids, logprobs, reason, stop_reason, texts by delta) of a stream that is taken after each delta."""
    texts, ids, logprobs, reason, why = [], (), (), None, None
    for d in deltas:
        out.push(d)
        taken = out.take()
        if taken is not None:
            assert reason is None, "news after the end"
            texts.append(taken.text)
            ids += taken.token_ids
            logprobs += taken.logprobs or ()
            reason, why = taken.finish_reason, taken.stop_reason
    return "".join(texts), ids, logprobs, reason, why, texts


SCRIPT = ["alpha", " be", "ta", " gam", "ma", " end"]


def singly(count: int, **last) -> list[SampleDelta]:
    return [delta([i], **(last if i == count - 1 else {})) for i in range(count)]


def test_no_part_of_a_stop_string_gets_out():
    text, ids, _, reason, why, texts = play(sample(SCRIPT, stop="beta gamma"), singly(6, finish="length"))
    assert (text, ids, reason, why) == ("alpha ", (0, 1, 2, 3, 4), "stop", "beta gamma")
    assert texts[0] == "alpha"
    assert texts[1] == " "


def test_included_stop_string_appears_once():
    text, _, _, reason, _, _ = play(sample(SCRIPT, stop="beta gamma", include_stop_str_in_output=True), singly(6, finish="length"))
    assert (text, reason) == ("alpha beta gamma", "stop")


def test_text_is_held_only_while_it_can_become_a_stop_string():
    _, _, _, _, _, texts = play(sample(["be", "ar", "s"], stop="beta"), singly(3, finish="length"))
    assert texts == ["", "bear", "s"]


@pytest.mark.parametrize("finish", ["stop", "length", "abort", "error"])
@pytest.mark.parametrize("alone", [False, True])
def test_held_text_is_given_out_at_every_end(finish, alone):
    deltas = [delta([0]), delta([1])] + ([delta([], finish)] if alone else [delta([2], finish)])
    text, _, _, reason, why, _ = play(sample(["Mars", "?\n", ""], stop="\n\n"), deltas)
    assert (text, reason, why) == ("Mars?\n", finish, None)


def test_the_stop_string_that_is_completed_first_wins_and_of_equals_the_longest():
    assert play(sample(["abcd"], stop=("abcd", "bc")), [delta([0])])[0] == "a"
    assert play(sample(["xabcd"], stop=("cd", "bcd")), [delta([0])])[4] == "bcd"
    assert play(sample(["xab"], stop=("b", "a")), [delta([0])])[4] == "a"


def test_min_tokens_a_stop_string_before_it_is_text_for_ever():
    pieces = ["x", "END", "y", "z", "END"]
    text, ids, _, reason, _, texts = play(sample(pieces, stop="END", min_tokens=3), singly(5))
    assert (text, ids, reason) == ("xENDyz", (0, 1, 2, 3, 4), "stop")
    assert texts[1] == "END", "what cannot stop any more is not held"


def test_min_tokens_a_string_completed_at_the_minimum_counts_even_if_it_began_before():
    assert play(sample(["E", "N", "D"], stop="END", min_tokens=3), singly(3))[:4] == ("", (0, 1, 2), (), "stop")
    assert play(sample(["E", "N", "D"], stop="END", min_tokens=4), singly(3, finish="length"))[:4] == ("END", (0, 1, 2), (), "length")
    assert play(sample(["a", "a", "a"], stop="aa", min_tokens=3), singly(3))[0] == "a"


def test_min_tokens_what_was_ignored_is_neither_found_later_nor_held():
    assert play(sample(["ab", "x", "y"], stop=("ab", "abc"), min_tokens=2), singly(3, finish="length"))[0] == "abxy"
    assert play(sample(["ab", "y"], stop=("ab", "wxyz"), min_tokens=2), singly(2, finish="length"))[5] == ["ab", "y"]
    assert play(sample(["ab", "c"], stop=("ab", "abc"), min_tokens=2), singly(2, finish="length"))[4] == "abc"


def test_overshoot_is_dropped_from_ids_logprobs_and_text():
    out = sample(["a", "EN", "D.", "more", "x"], stop="END", logprobs=0)
    text, ids, logprobs, reason, why, _ = play(out, [delta([0, 1, 2, 3], logprobs=True), delta([4], "length", logprobs=True)])
    assert (text, ids, reason, why) == ("a", (0, 1, 2), "stop", "END")
    assert [lp.token_id for lp in logprobs] == [0, 1, 2]


def test_a_stop_id_is_named_an_eos_is_not():
    assert play(sample(["a", "b"], stop_token_ids=(1,)), [delta([0, 1], "stop", stop_reason=1)])[2:5] == ((), "stop", 1)
    assert play(sample(["a", "b"]), [delta([0, 1], "stop", stop_reason=1)])[4] is None


def test_a_stop_string_completed_by_the_last_token_wins_over_the_engines_reason():
    assert play(sample(["a", "b"], stop="b", stop_token_ids=(1,)), [delta([0, 1], "stop", stop_reason=1)])[:5] == ("a", (0, 1), (), "stop", "b")
    assert play(sample(["a", "b"], stop="b"), [delta([0, 1], "length")])[3:5] == ("stop", "b")


def test_what_waits_is_merged():
    out = sample(["a", "b", "c"], logprobs=0)
    for d in (delta([0], logprobs=True), delta([1], logprobs=True), delta([2], "length", logprobs=True)):
        out.push(d)
    taken = out.take()
    assert (taken.text, taken.token_ids, len(taken.logprobs), taken.finish_reason) == ("abc", (0, 1, 2), 3, "length")
    assert out.take() is None


def oracle(pieces: Sequence[str], held: str, stops: Sequence[str], minimum: int, include: bool):
    """Reads single characters; the text of a token belongs to it, what was held to the last."""
    text = ""
    for number, piece in enumerate(pieces, 1):
        for char in piece + (held if number == len(pieces) else ""):
            text += char
            ended = [stop for stop in stops if text.endswith(stop)] if number >= minimum else []
            if ended:
                stop = max(ended, key=len)
                return (text if include else text[: -len(stop)]), number, stop
    return text, len(pieces), None


texts = st.text(alphabet="abc", max_size=4)


@given(
    pieces=st.lists(texts, min_size=1, max_size=12),
    held=texts,
    stops=st.lists(st.text(alphabet="abc", min_size=1, max_size=5), max_size=4, unique=True),
    minimum=st.integers(0, 8),
    include=st.booleans(),
    cuts=st.sets(st.integers(1, 11)),
    alone=st.booleans(),
)
def test_any_split_gives_what_a_reader_of_single_characters_sees(pieces, held, stops, minimum, include, cuts, alone):
    count = len(pieces)
    edges = sorted({0, count} | {cut for cut in cuts if cut < count})
    deltas = [delta(range(a, b), None if alone or b < count else "length", logprobs=True) for a, b in pairwise(edges)]
    if alone:
        deltas.append(delta([], "length", logprobs=True))
    out = sample(pieces, held=held, stop=tuple(stops), min_tokens=minimum, include_stop_str_in_output=include, logprobs=0)
    text, ids, logprobs, reason, why, _ = play(out, deltas)
    wanted, num_tokens, stop = oracle(pieces, held, stops, minimum, include)
    assert (text, ids, why) == (wanted, tuple(range(num_tokens)), stop)
    assert [lp.token_id for lp in logprobs] == list(ids)
    assert reason == ("length" if stop is None else "stop")


@given(pieces=st.lists(texts, min_size=1, max_size=12), stops=st.lists(st.text(alphabet="abc", min_size=1, max_size=5), min_size=1, max_size=4))
def test_nothing_is_held_that_cannot_become_a_stop_string(pieces, stops):
    out, given_out, whole = sample(pieces, stop=tuple(stops)), "", ""
    for i, piece in enumerate(pieces):
        out.push(delta([i]))
        given_out += out.take().text
        whole += piece
        if out.finish_reason is not None:
            return
        tail = whole[len(given_out) :]
        assert whole.startswith(given_out)
        assert not tail or any(stop.startswith(tail) and stop != tail for stop in stops)
