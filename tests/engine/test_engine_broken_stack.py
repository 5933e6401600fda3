"""Layers that break their word: the engine ends with the layer's name, or goes on without what it withheld; and nobody looks for room in vain."""

from __future__ import annotations

from typing import Any

import pytest
from bare import Bare
from corekit_cpu_swap.layer import CpuSwap
from world import Setting, World

from corekit.api import Blocks, RequestState
from corekit.builtin.fcfs import Fcfs
from corekit.builtin.free_list import FreeList
from corekit.engine.blocks import BrokenStackError, CopyJournal
from corekit.testing.prefix_cache import PlainPrefixCache

PROMPT = (*range(10), *range(10))


class Over:
    """A layer with everything of the one beneath, but for what a test replaces."""

    def __init__(self, inner: Any, **replaced: Any) -> None:
        self.inner = inner
        self.num_looks = 0
        """Keys that were looked for."""
        for name in ("take", "give", "find", "hold", "publish", "stats", "swap_out", "swap_in", "drop"):
            if hasattr(inner, name):
                setattr(self, name, replaced.get(name) or self._passed(name))

    def _passed(self, name: str) -> Any:
        def call(*args: Any) -> Any:
            self.num_looks += len(args[0].keys) if name == "find" else 0
            return getattr(self.inner, name)(*args)

        return call

    @property
    def available(self) -> int:
        return self.inner.available

    @property
    def prefix_cache(self) -> bool:
        return getattr(self.inner, "prefix_cache", False)

    @property
    def num_host_blocks(self) -> int:
        return getattr(self.inner, "num_host_blocks", 0)


class Swapping(Fcfs):
    """Parks everybody in the given steps."""

    def __init__(self, *steps: int) -> None:
        self.steps = steps
        self.at = -1

    def plan(self, step: Any) -> None:
        self.at += 1
        if self.at in self.steps:
            for request in tuple(step.resident):
                step.preempt(request, "swap")
        super().plan(step)


def test_who_is_never_given_back_what_was_parked_computes_it_again() -> None:
    """Alone or not: it does not wait for ever, and it is told once whose fault that is."""
    world = World(Setting(stack="lru+swap", num_blocks=20))
    swap = world.scheduler.blocks.stack
    world.scheduler.blocks._swap = world.scheduler.blocks.stack = Over(swap, swap_in=lambda ticket: None)
    world.scheduler.planner.policy = Swapping(4, 9)
    for _ in range(2):
        world.ask(PROMPT, max_tokens=8)
    world.finish()
    assert world.engine.stats().num_swap_preemptions >= 2
    assert "broken word: swap_in" in world.scheduler.planner.reported


def test_a_hit_that_is_never_held_is_computed() -> None:
    bare = Bare(stack=Over(PlainPrefixCache(FreeList(32)), hold=lambda match: None))
    for _ in range(3):
        bare.add(PROMPT)
        bare.run()
    assert bare.work == {f"r{n}": 27 for n in range(3)}
    assert bare.scheduler.planner.reported == {"broken word: hold"}


def test_a_layer_that_takes_back_its_word_is_not_the_policys_fault() -> None:
    """It refuses every second take: what the fallback then gets is no reason to name the policy."""
    beneath, turn = FreeList(16), iter(range(10**6))
    bare = Bare(stack=Over(beneath, take=lambda count: None if next(turn) % 2 else beneath.take(count)), num_blocks=16)
    for _ in range(4):
        bare.add(9)
    bare.run()
    assert bare.scheduler.planner.reported == {"broken word: take"}


@pytest.mark.parametrize(
    ("name", "broken", "said"),
    [
        ("take", lambda count: Blocks((1,)), r"Over\.take gave 1 blocks, asked for 3 "),
        ("take", lambda count: Blocks(tuple(range(1, count + 2))), r"Over\.take gave 4 blocks, asked for 3 "),
        ("take", lambda count: Blocks((1,) * count), r"Over\.take gave block 1, which is used "),
    ],
)
def test_blocks_that_were_not_asked_for_end_the_engine(name: str, broken: Any, said: str) -> None:
    bare = Bare(stack=Over(FreeList(32), **{name: broken}))
    bare.add(9)
    with pytest.raises(BrokenStackError, match=rf"block_allocator {said}\(the stack is Over over FreeList\)\. .*plugins check"):
        bare.schedule()


@pytest.mark.parametrize("name", ["hold", "swap_in"])
def test_a_table_that_comes_back_short_ends_the_engine(name: str) -> None:
    """Its tokens would be read from blocks that hold something else."""
    journal = CopyJournal()
    stack = Over(CpuSwap(PlainPrefixCache(FreeList(32)), journal, num_slots=32, max_cached=32))
    right = getattr(stack.inner, name)
    setattr(stack, name, lambda asked: Blocks(right(asked).ids[:-1]))
    bare = Bare(Swapping(2), stack=stack, journal=journal)
    for _ in range(2):
        bare.add(PROMPT)
    bare.step()
    bare.add(PROMPT)
    with pytest.raises(BrokenStackError, match=rf"block_allocator \w+\.{name} gave \d blocks, asked for \d"):
        bare.run()


class Quiet(Fcfs):
    """Catches whatever comes out of a plan."""

    def plan(self, step: Any) -> None:
        try:
            super().plan(step)
        except Exception:
            return


def test_a_policy_that_catches_everything_hides_no_broken_layer() -> None:
    def take(count: int) -> Any:
        raise OSError("no memory")

    bare = Bare(Quiet(), stack=Over(FreeList(32), take=take))
    bare.add(9)
    with pytest.raises(BrokenStackError, match=r"Over\.take raised OSError\('no memory'\)"):
        bare.schedule()


def test_the_layer_that_raised_is_named_and_not_the_top() -> None:
    class Deep(FreeList):
        @property
        def available(self) -> int:
            raise OSError("gone")

    bare = Bare(stack=Over(PlainPrefixCache(FreeList(32))))
    bare.add(9)
    bare.scheduler.blocks.stack.inner.inner = Deep(32)
    with pytest.raises(
        BrokenStackError, match=r"block_allocator Deep\.available raised OSError\('gone'\) \(the stack is Over over PlainPrefixCache over Deep\)"
    ):
        bare.schedule()


# -- looking for room


def line_of(stack: Any, *, num_blocks: int, first: int, second: int, **limits: int) -> tuple[Bare, Any]:
    """One that fills the pool while it answers, a little one that goes on, and one that waits for the first to end."""
    bare = Bare(stack=stack, num_blocks=num_blocks, budget=400, **limits)
    bare.add([7] * first, max_tokens=40)
    bare.add([9] * 4, max_tokens=60)
    bare.step()
    waits = bare.add([*range(60)] * (second // 60) + [*range(second % 60)], max_tokens=2)
    return bare, waits


@pytest.mark.parametrize("watermark_blocks", [0, 5])
def test_who_lacks_room_looks_for_its_prefix_once(watermark_blocks: int) -> None:
    """Until as many blocks were given back as it lacks; then it is admitted in the same step."""
    stack = Over(PlainPrefixCache(FreeList(66)))
    bare, waits = line_of(stack, num_blocks=66, first=100, second=170, watermark_blocks=watermark_blocks)
    bare.step()
    looked = stack.num_looks
    for _ in range(20):
        bare.step()
        assert waits.state is RequestState.WAITING
    assert stack.num_looks <= looked + 20, "it looks for a single block, whatever its length"
    while len(bare.scheduler.groups) == 3:
        bare.step()
    bare.step()
    assert waits.state is not RequestState.WAITING, "there was room since the other ended"
    bare.run()


def test_who_lacks_room_notices_that_its_prefix_is_there_now() -> None:
    """The room that it needs has shrunk although nobody gave anything back: what it lacked has been published, and is used."""
    stack = PlainPrefixCache(FreeList(40))
    bare = Bare(stack=stack, num_blocks=40, budget=400, max_num_seqs=3)
    bare.add([*range(100)], max_tokens=20)  # 25 blocks, then those of its answer
    late = bare.add([*range(100), 5], max_tokens=2)
    bare.step()
    assert late.state is RequestState.WAITING, "it awaits the other, or lacks room"
    bare.step()
    assert late.state is not RequestState.WAITING, "it needs one block beside those that are used"
    bare.run()
