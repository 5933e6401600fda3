"""Exact repeats, keys and eviction of the prefix cache, and conversations of several users: on the whole engine, assembled from TOML."""

from __future__ import annotations

import asyncio
import random
from collections import OrderedDict
from collections.abc import Sequence
from typing import Any

import pytest
from behaviours_rig import EXECUTORS, Gated, Job, ask, greedy, run, run_gated
from memory_rig import ALL, LRU, SIZE, check_whole, ids, memory, tell

from corekit.api import SamplingParams

LENGTHS = (SIZE, 2 * SIZE, 2 * SIZE + 1, 2 * SIZE - 1)


def prompt(number: int, length: int) -> list[int]:
    """Prompts of different numbers share no block."""
    return [number, *range(40, 40 + length - 1)]


def most(length: int, size: int = SIZE) -> int:
    """Cached tokens of a prompt that is there as a whole: its last token is computed in any case."""
    return (length - 1) // size * size


# -- exactly the same prompt again


@pytest.mark.parametrize("executor", EXECUTORS)
@pytest.mark.parametrize("stack", [LRU, ALL])
def test_the_same_prompt_again_and_again(executor: str, stack: Sequence[str]) -> None:
    """Of a block, two, one token more and one less; each three times, then all of them beside as many new ones in one batch."""
    with memory(executor, stack, seats=2 * len(LENGTHS)) as assembly:
        for number, length in enumerate(LENGTHS):
            asked = prompt(number, length)
            assert [tell(assembly, [asked]) for _ in range(3)] == [[0], [most(length)], [most(length)]]
        known = [prompt(number, length) for number, length in enumerate(LENGTHS)]
        new = [prompt(20 + number, length) for number, length in enumerate(LENGTHS)]
        mixed = [one for pair in zip(known, new, strict=True) for one in pair]
        assert tell(assembly, mixed) == [cached for length in LENGTHS for cached in (most(length), 0)]
        stats = assembly.client.stats()
        assert stats.num_prefix_queries == 5 * sum(LENGTHS)
        assert stats.num_prefix_hits == 3 * sum(map(most, LENGTHS)) == stats.num_cached_tokens


@pytest.mark.parametrize("executor", EXECUTORS)
def test_the_same_prompt_of_whole_blocks_with_different_answers(executor: str) -> None:
    """Each computes the last token anew and goes another way from there; the full blocks that they share are written by nobody."""
    asked = prompt(1, 2 * SIZE)
    ways = [Job(asked, SamplingParams(temperature=1.0, seed=seed, max_tokens=9, ignore_eos=True)) for seed in range(5)]
    ways.append(Job(asked, SamplingParams(temperature=1.0, seed=9, max_tokens=9, n=3, ignore_eos=True)))
    with memory(executor, ("free-list",)) as assembly:
        wanted = [ids(run(assembly, [job])[0]) for job in ways]
        assert len({tuple(answer) for samples in wanted for answer in samples}) == 8
    with memory(executor, LRU) as assembly:
        assert tell(assembly, [asked]) == [0]
        for _ in range(2):
            assert [ids(samples) for samples in run(assembly, ways)] == wanted
        assert tell(assembly, [asked], 9) == [SIZE]


@pytest.mark.parametrize("executor", EXECUTORS)
def test_equal_prompts_that_arrive_together_are_computed_once(executor: str) -> None:
    with memory(executor, LRU, budget=16) as assembly:
        asked = prompt(3, 10 * SIZE + 1)
        cached = tell(assembly, [asked] * 8)
        assert sorted(cached) == [0] + [most(len(asked))] * 7


# -- different text, same key


@pytest.mark.parametrize(("executor", "hashed"), [("in-process", "random"), ("delayed", "seeded"), ("in-process", "constant"), ("delayed", "constant")])
def test_what_begins_differently_shares_nothing_after(executor: str, hashed: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """X1 S and X2 S: hits end at the first block that differs, whatever the hash is: keys are compared, not trusted."""
    if hashed == "constant":
        monkeypatch.setattr("corekit.compose.keys.sha256", lambda content: bytes(32))
    rest = list(range(60, 60 + 3 * SIZE))
    one, two, three = [1, 2, 3, 4], [1, 2, 3, 5], [9, 9, 9, 9]
    with memory(executor, ALL, blocks=24, hash_seed="" if hashed == "random" else "known") as assembly:
        assert tell(assembly, [[*one, *rest, 7]]) == [0]
        if hashed == "constant":
            assert {key.hash for key in assembly.engine.scheduler._keys._keys.values()} == {bytes(32)}
        assert tell(assembly, [[*two, *rest, 7]]) == [0]
        assert tell(assembly, [[*one, *three, *rest]]) == [SIZE]
        assert tell(assembly, [[*one, *three, *rest], [*one, *rest, 7], [*two, *rest, 7], [*rest, 7]]) == [most(5 * SIZE), 4 * SIZE, 4 * SIZE, 0]
        # All that and more, on a pool that holds less: what was evicted comes back by copy, under its own key.
        begins = [[first, second, 3, 4] for first in (1, 2, 3) for second in (2, 3, 4)]
        for _ in range(2):
            for begin in begins:
                tell(assembly, [[*begin, *rest, 7], [*begin, *reversed(rest)]])
        assert assembly.client.stats().num_bytes_to_device


# -- eviction


@pytest.mark.parametrize("executor", EXECUTORS)
def test_the_last_block_of_a_table_is_evicted_first(executor: str) -> None:
    """A pool of four; three of them hold a prompt; whoever needs two takes the free one and the prompt's last."""
    asked = prompt(1, 3 * SIZE)
    with memory(executor, LRU, blocks=4) as assembly:
        assert tell(assembly, [asked], 1) == [0]
        assert tell(assembly, [prompt(2, SIZE + 1)], 1) == [0]
        assert assembly.client.stats().memory.num_evicted == 1
        assert tell(assembly, [[*asked, 7]], 1) == [2 * SIZE]
    with memory(executor, LRU, blocks=4) as assembly:
        tell(assembly, [asked], 1)
        assert tell(assembly, [[*asked, 7]], 1) == [3 * SIZE]


@pytest.mark.parametrize("executor", EXECUTORS)
def test_a_block_that_was_reused_is_not_found_by_its_old_key(executor: str) -> None:
    with memory(executor, LRU, blocks=4) as assembly:
        old, new = prompt(1, 3 * SIZE + 1), prompt(2, 3 * SIZE + 1)
        for _ in range(2):
            assert tell(assembly, [old], 3) == [0]
            assert tell(assembly, [new], 3) == [0]
            assert tell(assembly, [new], 3) == [3 * SIZE]


class PlainLru:
    """What an engine finds that answers one request after another: keys are whole prefixes, idle ones in a dictionary."""

    def __init__(self, num_blocks: int) -> None:
        self.num_free = num_blocks
        self.found: set[tuple[int, ...]] = set()
        self.idle: OrderedDict[tuple[int, ...], None] = OrderedDict()

    def take(self) -> None:
        if self.num_free:
            self.num_free -= 1
        else:
            self.found.remove(self.idle.popitem(last=False)[0])

    def answer(self, prompt: Sequence[int], answer: Sequence[int]) -> int:
        """The number of cached tokens."""
        computed = (*prompt, *answer)[:-1]  # nobody reads the last one
        table: list[tuple[int, ...] | None] = []
        while (len(table) + 1) * SIZE < len(prompt) and (key := computed[: (len(table) + 1) * SIZE]) in self.found:
            self.idle.pop(key)
            table.append(key)
        num_hits = len(table)
        for end in range(len(prompt), len(computed) + 1):  # the prompt, then token by token
            while len(table) * SIZE < end:
                self.take()
                table.append(None)
            for at in range(num_hits, end // SIZE):
                if table[at] is None and (key := computed[: (at + 1) * SIZE]) not in self.found:
                    self.found.add(key)
                    table[at] = key
        for key in reversed(table):
            if key is None:
                self.num_free += 1
            else:
                self.idle[key] = None
        return num_hits * SIZE


@pytest.mark.parametrize("seed", range(2))
def test_a_random_walk_finds_what_a_plain_dictionary_finds(seed: int) -> None:
    """Conversations that go on, begin again and branch, on a pool that holds about three of them."""
    rng, model, said, found = random.Random(seed), PlainLru(16), [[5]], []
    with memory(stack=LRU, blocks=16) as assembly:
        for _ in range(45):
            begun = rng.choice(said[-6:])
            asked = [*begun[: rng.randint(0, len(begun))], *(rng.randrange(128) for _ in range(rng.randint(1, 6)))][:50]
            num_tokens = rng.randint(1, 8)
            answer = greedy(asked, num_tokens)
            said.append([*asked, *answer])
            expected = model.answer(asked, answer)
            assert tell(assembly, [asked], num_tokens) == [expected]
            found.append(expected)
        stats = assembly.client.stats()
        assert (stats.memory.num_idle, stats.memory.num_free) == (len(model.idle), model.num_free)
        assert stats.memory.num_evicted > 30
        assert len(set(found)) > 3


# -- several users


def conversation(assembly, rng: random.Random, users: int, salted: bool) -> list[int]:
    """Users take turns on one engine, each with questions of his own after the same greeting; the cached tokens of each turn."""
    said = [list(range(100, 100 + 2 * SIZE)) for _ in range(users)]
    cached = []
    for _ in range(5):
        for user in rng.sample(range(users), users):
            said[user] += [user + 1, *(rng.randrange(128) for _ in range(SIZE))]
            cached += tell(assembly, [said[user]], 5, cache_salt=f"user {user}" if salted else None)
            said[user] += greedy(said[user], 5)
    return cached


@pytest.mark.parametrize("salted", [False, True])
def test_no_conversation_shows_up_in_anothers_answer(salted: bool) -> None:
    """Five of them on a pool for one, so that all but what is asked now lies in the host's memory: every answer is one's own."""
    with memory(stack=ALL, blocks=20, host=128) as assembly:
        cached = conversation(assembly, random.Random(3), 5, salted)
        assert cached[:5] == ([0] * 5 if salted else [0] + [2 * SIZE] * 4), "only the greeting is the same, and salts part that too"
        assert min(cached[5:]) > 2 * SIZE, "one's own words are found"
        stats = assembly.client.stats()
        assert stats.num_bytes_to_device and stats.memory.num_evicted


@pytest.mark.parametrize("stack", [LRU, ALL])
def test_the_same_words_under_another_salt_are_computed_anew(stack: Sequence[str]) -> None:
    """Also when they lie on the host, and when both ask at once."""
    asked = prompt(1, 5 * SIZE + 1)
    with memory(stack=stack, blocks=12) as assembly:
        for salt in (None, "a", "b"):
            assert tell(assembly, [asked], cache_salt=salt) == [0]
            tell(assembly, [prompt(2, 8 * SIZE), prompt(3, 2 * SIZE)])
        there = 0 if stack == LRU else 5 * SIZE  # evicted, or kept on the host
        for salt in (None, "a", "b"):
            assert tell(assembly, [asked], cache_salt=salt) == [there]
            tell(assembly, [prompt(2, 8 * SIZE), prompt(3, 2 * SIZE)])

        async def at_once() -> list[list[int]]:
            salts = ("c", "d", "c")
            jobs = [Job(asked, SamplingParams(temperature=0, max_tokens=3, ignore_eos=True, cache_salt=salt)) for salt in salts]
            return [ids(samples) for samples in await asyncio.gather(*(ask(assembly, job) for job in jobs))]

        before = assembly.client.stats().num_prefix_hits
        assert asyncio.run(at_once()) == [[greedy(asked, 3)]] * 3
        check_whole(assembly)
        assert assembly.client.stats().num_prefix_hits - before == 5 * SIZE, "of three, the second with the same salt finds it"


# -- a prefix on the host whose reader waits


class Crowded(Gated):
    """Counts the plans that left three waiting behind the one that runs."""

    num_crowded = 0

    def plan(self, step: Any) -> None:
        super().plan(step)
        self.num_crowded += (len(step.resident), len(step.waiting)) == (1, 3)


@pytest.mark.parametrize("executor", EXECUTORS)
def test_a_reader_of_the_host_that_waits_for_room_gets_its_prefix(executor: str) -> None:
    """It stands at the head of the queue while another fills the pool: nothing is copied for it before it runs, and all of it then."""
    asked, policy = prompt(1, 6 * SIZE + 1), Crowded()
    with memory(executor, ALL, blocks=12, preemption="recompute", policy=policy) as assembly:
        policy.gate.set()
        tell(assembly, [asked])
        tell(assembly, [prompt(2, 11 * SIZE)])  # takes all blocks
        before = assembly.client.stats()
        assert not before.num_bytes_to_device
        policy.arm()
        asks = [(prompt(3, 6 * SIZE + 1), 12), (asked, 4), (prompt(4, SIZE), 4), (asked, 4)]
        jobs = [Job(one, SamplingParams(temperature=0, max_tokens=most, ignore_eos=True)) for one, most in asks]
        assert [ids(samples) for samples in run_gated(assembly, policy, jobs)] == [[greedy(*one)] for one in asks]
        after = assembly.client.stats()
        assert policy.num_crowded > 5 and not after.num_preemptions
        assert after.num_prefix_hits - before.num_prefix_hits == 2 * 6 * SIZE
        # By copy for the first of the two, and shared by the second.
        assert after.num_bytes_to_device == 6 * assembly.engine.scheduler.limits.bytes_per_block
