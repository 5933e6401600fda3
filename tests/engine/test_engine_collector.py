"""The garbage collector's owner: no full collection while work goes on, one when idle, and the process as it was afterwards."""

from __future__ import annotations

import asyncio
import gc
from collections import deque
from collections.abc import Iterator

import pytest
from engine_stand_in import StandIn, client_of

from corekit.api import Prompt, SamplingParams
from corekit.engine.collector import LONG, Collector

pytestmark = pytest.mark.owns_collector


@pytest.fixture(autouse=True)
def as_before() -> Iterator[None]:
    gc.unfreeze()  # what a command of another test left
    before = gc.get_threshold(), gc.get_freeze_count()
    yield
    assert (gc.get_threshold(), gc.get_freeze_count()) == before


def num_full() -> int:
    return gc.get_stats()[2]["collections"]


def churn(rounds: int) -> list[list[object]]:
    """Work for the collector: many objects that stay."""
    return [[{} for _ in range(10)] for _ in range(rounds * 1000)]


def test_full_collections_wait_until_idle():
    collector = Collector()
    collector.start()
    try:
        assert gc.get_freeze_count() > 0
        before = num_full()
        kept = churn(30)
        assert num_full() == before
        collector.idle()
        assert num_full() == before + 1
        collector.idle()
        assert num_full() == before + 1, "nothing happened since"
        assert kept
    finally:
        collector.close()
        collector.close()


def test_rest_collects_what_a_few_objects_hold():
    collector = Collector()
    collector.start()
    try:
        collector.rest()
        before = num_full()
        collector.rest()
        assert num_full() == before, "nothing was made since"
        kept = churn(1)
        collector.rest()
        assert num_full() == before + 1
        assert kept
    finally:
        collector.close()


class Node:
    pass


def num_garbage(collector: Collector, rounds: int) -> int:
    """Cycles that outlive the young collections and are garbage then, while something always waits."""
    kept: deque[Node] = deque(maxlen=12_000)
    for _ in range(rounds):
        for _ in range(1000):
            node = Node()
            node.me = node  # type: ignore[attr-defined]
            kept.append(node)
        collector.between_steps()
    return sum(isinstance(o, Node) for o in gc.get_objects()) - len(kept)


def test_an_engine_that_is_never_idle_keeps_a_bounded_amount_of_garbage(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr("corekit.engine.collector.MUCH", 2)
    collector = Collector(clock=lambda: 0.0)
    collector.start()
    try:
        young, middle, old = collector._previous or (0, 0, 0)
        before = num_full()
        assert num_garbage(collector, 400) <= 2.5 * young * middle * old
        assert 0 < num_full() - before < 10
    finally:
        collector.close()


def test_between_steps_there_is_none_before_it_is_long_ago_and_there_was_work():
    now = [0.0]
    collector = Collector(clock=lambda: now[0])
    collector.start()
    try:
        before = num_full()
        kept = churn(30)
        collector.between_steps()
        now[0] = LONG - 1
        collector.between_steps()
        assert num_full() == before
        now[0] = LONG
        collector.between_steps()
        assert num_full() == before + 1
        now[0] = 3 * LONG
        collector.between_steps()
        assert num_full() == before + 1, "nothing happened since"
        assert kept
    finally:
        collector.close()
    kept = churn(30)
    before, now[0] = num_full(), 9 * LONG
    collector.between_steps()
    assert num_full() == before, "it is not its any more"


def test_of_two_owners_the_first_rules_and_the_second_restores_nothing():
    first, second = Collector(), Collector()
    found = gc.get_threshold()
    first.start()
    second.start()
    assert gc.get_threshold() != found
    frozen = gc.get_freeze_count()
    Collector().close()
    assert gc.get_freeze_count() > frozen // 2, "frozen objects may end, and none is thawed"
    first.close()
    assert gc.get_threshold() == found
    second.close()
    assert gc.get_threshold() == found


def test_the_client_owns_it_from_start_to_close():
    calls = []

    class Noting(Collector):
        def start(self):
            calls.append("start")

        def idle(self):
            calls.append("idle")

        def between_steps(self):
            calls.append("between")

        def close(self):
            calls.append("close")

    client = client_of(StandIn(), collector=Noting())
    assert not calls
    client.start()

    async def main():
        return [output async for output in client.generate(Prompt(text="abc"), SamplingParams(max_tokens=3))]

    asyncio.run(main())
    client.close()
    assert calls[0] == "start"
    assert calls[-1] == "close"
    assert {"idle", "between"} <= {*calls[1:-1]}
