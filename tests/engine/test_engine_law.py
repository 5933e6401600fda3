"""The law of the engine, on a model that reads its KV back: see world.py.

A hypothesis machine chooses what happens and when; a seeded walk covers many more settings in the same time.
"""

from __future__ import annotations

import gc
import logging
import random
from collections import Counter

import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, precondition, rule
from walk import plain_answer, walk
from world import Setting, World

from corekit.engine.request import Request


@pytest.fixture(autouse=True)
def quiet():
    """Thousands of expected warnings would bury a failure."""
    logging.disable(logging.WARNING)
    yield
    logging.disable(logging.NOTSET)


SETTINGS = st.builds(
    Setting,
    block_size=st.sampled_from([4, 8, 16]),
    num_blocks=st.integers(2, 14),
    max_num_seqs=st.integers(1, 8),
    max_num_batched_tokens=st.sampled_from([1, 3, 8, 40, 200]),
    long_prefill_token_threshold=st.sampled_from([0, 2, 5]),
    watermark_blocks=st.integers(0, 2),
    depth=st.sampled_from([1, 2, 3]),
    stack=st.sampled_from(["free-list", "lru", "swap", "lru+swap"]),
    num_host_blocks=st.sampled_from([0, 2, 64]),
    preemption=st.sampled_from([None, "swap", "recompute"]),
    max_draft_tokens=st.sampled_from([0, 0, 3]),
    policy=st.sampled_from(["fcfs", "priority", "chaos"]),
    unreliable=st.sampled_from([False, False, False, True]),
    seed=st.integers(0, 99),
)


SHAPES = (
    {},
    {},
    {"repetition_penalty": 2.0, "presence_penalty": 0.5, "prompt_logprobs": 1},
    {"frequency_penalty": 0.25, "logit_bias": {5: 24.0, 9: -8.0}, "bad_words": ((5,), (5, 9))},
    {"constrained": True, "prompt_logprobs": 0},
    {"allowed_token_ids": tuple(range(1, 60, 2)), "banned_token_ids": (7, 9), "constrained": True},
)


class Law(RuleBasedStateMachine):
    @initialize(setting=SETTINGS)
    def build(self, setting: Setting) -> None:
        self.world = World(setting)

    @rule(
        shared=st.integers(0, 24),
        own=st.lists(st.integers(0, 62), max_size=5),
        max_tokens=st.integers(1, 20),
        n=st.sampled_from([1, 1, 1, 2, 3]),
        temperature=st.sampled_from([0.0, 1.0]),
        seed=st.integers(0, 3),
        end_ids=st.sampled_from([(), (), (5, 9, 17, 33)]),
        min_tokens=st.sampled_from([0, 0, 3]),
        faulty=st.sampled_from([False] * 9 + [True]),
        priority=st.sampled_from([0, 0, 1, -3]),
        shape=st.sampled_from(SHAPES),
    )
    def ask(self, shared, own, shape, **kwargs) -> None:
        self.world.ask([*range(shared), *own] or [7], **kwargs, **shape)

    @precondition(lambda self: self.world.asked)
    @rule(which=st.integers(0, 1000), sample=st.sampled_from([None, None, 0, 1]))
    def abort(self, which: int, sample: int | None) -> None:
        self.world.abort(f"r{which % len(self.world.asked)}", sample)

    @rule(count=st.integers(1, 6))
    def step(self, count: int) -> None:
        for _ in range(count):
            self.world.step()

    def teardown(self) -> None:
        if hasattr(self, "world"):
            self.world.finish()


class DeepLaw(Law):
    pass


Law.TestCase.settings = settings(max_examples=100, stateful_step_count=20, deadline=None, suppress_health_check=list(HealthCheck), derandomize=True)
DeepLaw.TestCase.settings = settings(Law.TestCase.settings, max_examples=200)
TestLaw = Law.TestCase
TestDeepLaw = pytest.mark.slow(DeepLaw.TestCase)


@pytest.mark.parametrize("first", [*range(0, 400, 50), *(pytest.param(first, marks=pytest.mark.slow) for first in range(400, 800, 50))])
def test_the_law_holds_on_random_walks(first: int) -> None:
    met: Counter[str] = Counter()
    for seed in range(first, first + 50):
        met.update(walk(random.Random(seed)))
    assert all(met.values()), f"the walks never met {[name for name, count in met.items() if not count]}"


def test_a_bad_word_is_not_completed_by_a_guess() -> None:
    """Guesses that were right count as output: words that begin with one are as forbidden as any."""
    world = World(Setting(max_draft_tokens=3, num_blocks=40))
    for first in range(4):
        asked = {"prompt": [first, 3, 9, 11], "max_tokens": 12, "temperature": 0.0, "seed": 0}
        plain = plain_answer(asked)
        for at in range(6):
            world.ask(**asked, bad_words=(plain[at : at + 2],))
    world.finish()


def test_a_guess_counts_for_the_penalties_of_the_next() -> None:
    world = World(Setting(max_draft_tokens=3, num_blocks=60))
    for first in range(12):
        for penalty in ("repetition_penalty", "presence_penalty", "frequency_penalty"):
            world.ask([first, 3, 9, 11], max_tokens=24, **{penalty: 2.0})
    world.finish()


def test_what_has_left_does_not_wait_for_the_garbage_collector() -> None:
    world = World(Setting(depth=3))
    gc.collect()
    gc.disable()
    try:
        for n in (1, 3, 1, 1):
            world.ask([1, 2, 3], n=n, max_tokens=4 * n)
        world.finish()
        last = {*world.scheduler.step.running, *world.scheduler.step.admitted}
        left = [thing for thing in gc.get_objects() if type(thing) is Request and thing not in last]
        assert not left, "a finished request is part of a cycle"
    finally:
        gc.enable()
