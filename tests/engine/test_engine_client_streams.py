"""When a name may be used again: not before nothing can be said by it any more."""

from __future__ import annotations

import asyncio

import pytest
from engine_stand_in import Bytes

from corekit.api import InvalidRequest, SamplingParams
from corekit.engine.door import Encoded
from corekit.engine.events import SampleDelta
from corekit.engine.stream import Stream
from corekit.engine.streams import Streams


def stream(streams: Streams, name: str) -> Stream:
    async def make() -> Stream:
        prompt = Encoded(text=None, token_ids=(65,))
        return Stream(request_id=name, engine_id=streams.engine_id(name), prompt=prompt, params=SamplingParams(), tokenizer=Bytes())

    made = asyncio.run(make())
    streams.add(made)
    return made


def delta(name: str) -> SampleDelta:
    return SampleDelta(name, 0, (65,), None, None, None, None, 0)


def test_a_name_is_refused_while_it_lives_and_free_when_it_has_ended():
    streams = Streams()
    first = stream(streams, "a")
    with pytest.raises(InvalidRequest, match="in use"):
        streams.engine_id("a")
    assert streams.remove(first)
    assert not streams.remove(first)
    assert stream(streams, "a").engine_id == "a"


@pytest.mark.parametrize("during_a_step", [False, True])
def test_after_an_abort_the_engine_hears_another_name_until_a_step_has_drained_it(during_a_step):
    streams = Streams()
    first = stream(streams, "a")
    if during_a_step:
        streams.begin_step()
    streams.remove(first)
    streams.note_abort(first)
    if during_a_step:  # this step may have drained before the abort came
        streams.end_step([])
    second = stream(streams, "a")
    assert second.engine_id != "a"
    streams.begin_step()
    news = streams.end_step([delta("a"), delta(second.engine_id)])
    assert [heard for heard, _ in news[second.loop]] == [second]
    streams.remove(second)
    assert stream(streams, "a").engine_id == "a"


def test_an_aborted_stream_is_heard_to_its_end_beside_its_successor():
    streams = Streams()
    first = stream(streams, "a")
    assert streams.unname("a") is first
    assert streams.unname("a") is None
    second = stream(streams, "a")
    streams.begin_step()
    news = streams.end_step([delta(first.engine_id), delta(second.engine_id)])
    assert (news[first.loop][0][0], news[second.loop][0][0]) == (first, second)
    streams.remove(first)
    with pytest.raises(InvalidRequest, match="in use"):
        streams.engine_id("a")


@pytest.mark.parametrize("leaving", [False, True])
def test_a_caller_whose_name_looks_like_a_replacement_keeps_it_to_himself(leaving):
    streams = Streams()
    owner = stream(streams, "a#1")
    if leaving:
        streams.remove(owner)
        streams.note_abort(owner)
    stream(streams, "a")
    streams.unname("a")
    assert stream(streams, "a").engine_id not in ("a", "a#1")
