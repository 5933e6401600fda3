"""`victims_for` against the moves themselves: who is named makes room, nobody is named in vain, and None means that all would not do."""

from __future__ import annotations

import copy
import random

import pytest
from bare import Bare

from corekit.api import Grant, Reason
from corekit.builtin.fcfs import Fcfs
from corekit.builtin.free_list import FreeList
from corekit.testing.prefix_cache import PlainPrefixCache

ROOM = {Reason.SEATS, Reason.BLOCKS, Reason.WATERMARK, Reason.BUDGET}


def after(step, request, victims) -> Grant:
    """What `schedule(request)` answers once they gave way, in a copy of the world."""
    keys = step._prefixes._keys
    shared = [keys, *keys._keys.values()]  # interned: what is equal must stay one object
    step, request, victims = copy.deepcopy((step, request, victims), {id(one): one for one in shared})
    for victim in victims:
        step.preempt(victim)
    return step.schedule(request)


def awaited(step, request) -> bool:
    return step._prefixes.awaited(request, len(step._prefixes.match(request).blocks), step.number) is not None


class Asking(Fcfs):
    """Asks about a request and some residents, and compares the answer with what happens."""

    def __init__(self, rng: random.Random) -> None:
        self.rng = rng
        self.seen: dict[str, int] = {}

    def plan(self, step) -> None:
        rng = self.rng
        everyone = [*step.running, *step.waiting]
        if rng.random() < 0.6:
            for request in rng.sample(everyone, len(everyone) // 2):
                step.schedule(request, rng.choice((None, 1)))
        if step.resident and rng.random() < 0.1:
            step.preempt(rng.choice(step.resident))
        for request in rng.sample(everyone, min(1, len(everyone))):
            self.compare(step, request, rng.sample(list(step.resident), rng.randint(0, len(step.resident)) if rng.random() < 0.7 else len(step.resident)))
        super().plan(step)

    def compare(self, step, request, candidates) -> None:
        if request in step.ended:  # it was judged before it gave way
            return
        named = step.victims_for(request, candidates)
        candidates = [other for other in candidates if other is not request]
        if named is None:
            kind = "none"
            answer = after(step, request, candidates)
            awaits = request.state.value != "running" and awaited(step, request)  # what one of them computes
            assert awaits or (not answer and answer.reason is not Reason.ENDED), f"{request!r} has room without {candidates}"
        else:
            kind = "nobody" if not named else "one" if len(named) == 1 else "more"
            answer = after(step, request, named)
            assert answer or answer.reason is Reason.ENDED or (answer.reason is Reason.NOT_READY and request.steps_in_flight), (request, named, answer)
            places = [candidates.index(victim) for victim in named]
            assert places == sorted(set(places))
            for spared in named:
                less = after(step, request, [victim for victim in named if victim is not spared])
                assert not less and less.reason in ROOM, f"{spared!r} was named in vain"
        self.seen[kind] = self.seen.get(kind, 0) + 1


def test_who_is_named_makes_room_and_nobody_in_vain() -> None:
    seen: dict[str, int] = {}
    for seed in range(32):
        rng = random.Random(seed)
        asking, num_blocks = Asking(rng), rng.choice((7, 16))
        bare = Bare(
            asking,
            stack=PlainPrefixCache(FreeList(num_blocks)) if seed % 2 else None,
            num_blocks=num_blocks,
            max_num_seqs=rng.choice((2, 4, 8)),
            budget=rng.choice((3, 12, 40)),
            watermark_blocks=rng.choice((0, 0, 2)),
            long_prefill_token_threshold=rng.choice((0, 0, 4)),
        )
        flights = []
        for _ in range(30):
            if len(bare.scheduler.groups) < 5:
                n = rng.choice((1, 1, 3, 4))
                bare.add([rng.randrange(2) for _ in range(rng.randint(1, 24))], max_tokens=rng.randint(1, 20), n=min(n, bare.scheduler.limits.max_num_seqs))
            if rows := bare.schedule():
                flights.append(rows)
            if flights and (len(flights) > 2 or rng.random() < 0.5 or not rows):
                bare.commit(flights.pop(0), rng.randrange(2))
        assert not [told for told in bare.scheduler.planner.reported if "raised" in told], bare.scheduler.planner.reported
        for kind, count in asking.seen.items():
            seen[kind] = seen.get(kind, 0) + count
    assert min(seen[kind] for kind in ("none", "nobody", "one", "more")) > 8, seen


def test_a_block_is_not_copied_for_a_sibling_that_is_away() -> None:
    """Two samples share the half-filled block, and the pool is full: without the sibling the leader writes in place."""

    class Siblings(Fcfs):
        def plan(self, step) -> None:
            if len(step.resident) == 3:
                leader, other, sibling = step.resident
                named.append((step.victims_for(leader, [other, sibling]), [other, sibling]))
                named.append((step.victims_for(leader, [sibling]), [sibling]))
            super().plan(step)

    named: list = []
    bare = Bare(Siblings(), num_blocks=3)
    bare.add(6, n=2)
    bare.add(2)
    bare.step()
    bare.schedule()
    (either, pair), (alone, sibling) = named
    assert either == pair[:1]
    assert alone == sibling


@pytest.mark.parametrize("state", ["granted", "preempted", "in flight"])
def test_what_lacks_no_room_needs_no_victims(state: str) -> None:
    class Once(Fcfs):
        def plan(self, step) -> None:
            if step.running:
                request = step.running[0]
                if state == "preempted":
                    step.preempt(request)
                elif state == "granted":
                    step.schedule(request)
                assert step.victims_for(request, step.resident) is None
                seen.append(state)
            super().plan(step)

    seen: list[str] = []
    bare = Bare(Once())
    bare.add(3, max_tokens=1 if state == "in flight" else 3)
    rows = bare.schedule()
    if state != "in flight":
        bare.commit(rows)
    bare.schedule()
    assert seen == [state]
    assert not bare.scheduler.planner.reported
