"""What the core tells the stack of prefixes, and what it counts of them: retention, hits, copies, preemptions by mode."""

from __future__ import annotations

from typing import Any

import pytest
from bare import Bare
from corekit_cpu_swap.layer import CpuSwap
from forced import Book, Forced, everyone, finish, forced_world, nth
from test_engine_scheduler import Scripted
from world import Setting, World

from corekit.api import AllocatorStats, BlockKey
from corekit.builtin.fcfs import Fcfs
from corekit.builtin.free_list import FreeList
from corekit.engine.blocks import CopyJournal
from corekit.testing.prefix_cache import PlainPrefixCache


class Told(PlainPrefixCache):
    """A prefix cache that notes what it took until when."""

    def __init__(self, num_blocks: int) -> None:
        super().__init__(FreeList(num_blocks), clock=lambda: 0.0)
        self.told: list[tuple[BlockKey, float | None]] = []

    def publish(self, block: int, key: BlockKey, retain_until: float | None = None) -> bool:
        taken = super().publish(block, key, retain_until)
        if taken:
            self.told.append((key, retain_until))
        return taken

    def take_told(self) -> list[tuple[BlockKey, float | None]]:
        told, self.told = self.told, []
        return told


# -- retention


def test_blocks_are_retained_from_when_they_were_computed() -> None:
    stack = Told(32)
    bare = Bare(stack=stack, long_prefill_token_threshold=8)
    r = bare.add(18, max_tokens=4, cache_retention=60.0)
    published = 0
    while bare.scheduler.groups:
        bare.step()
        told = stack.take_told()
        assert [key for key, _ in told] == r.keys[published : published + len(told)]
        assert {until for _, until in told} <= {bare.scheduler.step.now + 60}
        published += len(told)
    assert published == 5, "four of the prompt, and one with answers in it"
    assert stack.stats().num_retained == 5


@pytest.mark.parametrize("asked", [0.0, 5.0])
def test_a_hit_retains_what_it_hit_as_long_as_it_asks(asked: float) -> None:
    stack = Told(32)
    bare = Bare(stack=stack)
    bare.add(18, max_tokens=1, cache_retention=100.0)
    bare.run()
    first = dict(stack.take_told())
    second = bare.add(18, max_tokens=1, cache_retention=asked)
    bare.schedule()
    assert stack.told == [(key, bare.scheduler.step.now + asked) for key in second.keys[:4] if asked]
    assert stack._until == {stack._block_of[key]: until for key, until in first.items()}, "a shorter one ends nothing"


def test_who_asks_for_nothing_retains_nothing() -> None:
    stack = Told(32)
    bare = Bare(stack=stack)
    for _ in range(2):
        bare.add(18, max_tokens=4)
        bare.run()
    assert [until for _, until in stack.told] == [None] * len(stack.told) != []


def test_who_comes_back_from_the_host_retains_its_blocks_again() -> None:
    """All of its keyed blocks and no others: they are at the head of its table, wherever they were."""
    journal, told = CopyJournal(), Told(12)
    stack = CpuSwap(told, journal, num_slots=16, max_cached=16)
    bare = Bare(Scripted(Fcfs().plan, Fcfs().plan, everyone("swap")), journal=journal, stack=stack, num_blocks=12)
    r = bare.add(10, max_tokens=9, cache_retention=50.0)
    bare.step()
    bare.step()
    bare.schedule()
    told.take_told()
    bare.schedule()
    assert told.told == [(key, bare.scheduler.step.now + 50) for key in r.keys[:2]]
    assert [told._key_of.get(block) for block in r.table] == [*r.keys[:2], None]


def test_who_comes_back_has_what_it_parked_though_another_has_more() -> None:
    """It was parked in its prompt; another computed the rest of the same prompt meanwhile."""

    def give_way(step: Any) -> None:
        step.preempt(r, "swap")
        assert step.schedule(other)

    def go_on(step: Any) -> None:
        assert step.schedule(other)

    journal, told = CopyJournal(), Told(16)
    stack = CpuSwap(told, journal, num_slots=16, max_cached=16)
    bare = Bare(Scripted(Fcfs().plan, give_way, go_on), journal=journal, stack=stack, num_blocks=16, long_prefill_token_threshold=8)
    r = bare.add(20, max_tokens=2, cache_retention=50.0)
    bare.step()
    other = bare.add(20, max_tokens=9)
    bare.step()
    bare.step()
    told.take_told()
    rows = bare.schedule()
    assert [(row.request, row.start) for row in rows] == [(other, 20), (r, 8)]
    assert [key for key, _ in told.told] == r.keys[:2]
    assert not bare.scheduler.planner.reported
    bare.commit(rows)
    bare.run()


# -- prefix queries and hits


@pytest.mark.parametrize("mode", ["recompute", "swap"])
@pytest.mark.parametrize("late", [False, True])
@pytest.mark.parametrize("at", [0, 1, 2, 3])
def test_a_prompt_is_counted_once_however_often_it_is_admitted(mode: Any, late: bool, at: int) -> None:
    """Also when it has to go in the very step that admitted it."""
    world = forced_world(Setting(stack="lru+swap", num_blocks=40), {})
    world.ask(range(13), max_tokens=1)
    while not world.engine.idle:
        world.step()
    world.scheduler.planner.policy = Forced({at: everyone(mode), at + 2: nth(0, mode)}, Fcfs(), late=late)
    world.ask(range(17), max_tokens=5)
    world.ask(range(13), max_tokens=3, prompt_logprobs=0)
    finish(world)
    stats = world.engine.stats()
    assert (stats.num_prefix_queries, stats.num_prefix_hits) == (13 + 17, 12)
    assert stats.num_cached_tokens == 12
    assert stats.num_preemptions or (at == 0 and not late)


def test_who_is_aborted_before_it_ran_was_never_looked_up() -> None:
    world = World(Setting(stack="lru", max_num_seqs=1))
    world.ask(range(9), max_tokens=3)
    world.ask(range(9), max_tokens=3)
    world.step()
    world.abort("r1")
    finish(world)
    assert world.engine.stats().num_prefix_queries == 9


# -- copies and preemptions


def count_copies(bare: Bare) -> tuple[int, int]:
    """Run to the end; blocks that the steps carry to the host, and back."""
    out = back = 0
    while bare.scheduler.groups:
        bare.step()
        for source, target in bare.last.copies if bare.last else ():
            out += target.on_host
            back += source.on_host
    return out, back


@pytest.mark.parametrize("mode", ["swap", "recompute"])
def test_bytes_are_those_of_the_blocks_that_steps_copy(mode: Any) -> None:
    journal = CopyJournal()
    moves = {at: everyone(mode) for at in range(2, 99, 3)}
    bare = Bare(Forced(moves), journal=journal, stack=CpuSwap(FreeList(32), journal, num_slots=32, max_cached=0), bytes_per_block=1000, budget=200)
    bare.add(6, n=3)  # forks copy too, from the device to the device
    bare.add(9)
    out, back = count_copies(bare)
    counts = bare.scheduler.counts
    assert (counts.num_bytes_to_host, counts.num_bytes_to_device) == (1000 * out, 1000 * back)
    assert (out > 6) == (mode == "swap")
    assert out == back, "nobody was aborted, and nothing is cached"


def test_a_full_host_is_counted_and_the_victim_computes_again() -> None:
    journal = CopyJournal()
    stack = CpuSwap(FreeList(32), journal, num_slots=3, max_cached=0)
    bare = Bare(Scripted(Fcfs().plan, everyone("swap")), journal=journal, stack=stack)
    for _ in range(3):
        bare.add(7)
    bare.step()
    bare.schedule()
    counts = bare.scheduler.counts
    assert (counts.num_preemptions, counts.num_swap_preemptions, counts.num_swap_refusals) == (3, 1, 2)
    bare.run()


@pytest.mark.parametrize("depth", [1, 2])
def test_stats_of_steps_add_up_to_those_of_the_engine(depth: int) -> None:
    world = forced_world(
        Setting(stack="lru+swap", depth=depth, num_blocks=14, num_host_blocks=20, preemption="swap"), {at: nth(0, None) for at in range(2, 99, 5)}
    )
    book = Book.of(world)
    for number in range(7):
        world.ask([*range(8), number], max_tokens=9, n=1 + number % 2, temperature=1.0)
    while not world.engine.idle:
        world.step()
        memory = world.engine.stats().memory
        if book.steps:
            last = book.steps[-1].memory
            assert last.num_free + last.num_idle <= 14
            assert last.num_host_cached <= last.num_host_used <= 20
        assert memory.num_free + memory.num_idle <= 14
    finish(world)
    stats = world.engine.stats()
    assert sum(step.num_preempted for step in book.steps) == stats.num_preemptions > 3
    assert sum(step.num_swapped for step in book.steps) == stats.num_swap_preemptions > 3
    assert sum(step.num_copies for step in book.steps) >= stats.num_bytes_to_host + stats.num_bytes_to_device > 3
    assert sum(request.num_preemptions for request in book.requests) == stats.num_preemptions
    assert sum(request.num_cached_tokens for request in book.requests) == stats.num_cached_tokens == stats.num_prefix_hits
    assert (stats.num_host_blocks, stats.num_blocks) == (20, 14)
    assert stats.memory == world.scheduler.blocks.stats()
    assert stats.memory.num_free + stats.memory.num_idle == 14
    assert stats.memory.num_evicted > 0


def test_an_engine_without_layers_has_nothing_to_tell() -> None:
    world = World(Setting())
    world.ask(range(9), max_tokens=3)
    finish(world)
    stats = world.engine.stats()
    assert stats.memory == AllocatorStats(num_free=12)
    assert (stats.num_host_blocks, stats.num_prefix_queries, stats.num_prefix_hits, stats.num_bytes_to_host) == (0, 0, 0, 0)
