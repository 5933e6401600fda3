"""One random scenario: a setting, some requests that arrive at different steps, some aborts; run to the end under the law."""

from __future__ import annotations

import random

from fingerprint_solo import solo_answer
from world import Setting, World

from corekit.api import SamplingParams
from corekit.engine.request import NewRequest

BASE = random.Random(1).choices(range(50), k=40)


def random_setting(rng: random.Random) -> Setting:
    return Setting(
        block_size=rng.choice((1, 2, 4, 4, 8, 16)),
        num_blocks=rng.randint(2, 20),
        max_num_seqs=rng.choice((1, 3, 8)),
        max_num_batched_tokens=rng.choice((2, 5, 12, 40)),
        long_prefill_token_threshold=rng.choice((0, 0, 2, 5)),
        watermark_blocks=rng.choice((0, 0, 1, 3)),
        depth=rng.choice((1, 2, 2, 3)),
        stack=rng.choice(("free-list", "plain", "lru", "swap", "lru+swap", "lru+swap")),
        num_host_blocks=rng.choice((0, 2, 64, 64)),
        preemption=rng.choice((None, "swap", "swap", "recompute")),
        max_draft_tokens=rng.choice((0, 0, 0, 1, 3)),
        policy=rng.choice(("fcfs", "fcfs", "priority", "priority", "chaos", "chaos")),
        unreliable=rng.random() < 0.1,
        seed=rng.randrange(1000),
    )


def random_request(rng: random.Random, capacity: int) -> dict:
    longest = max(1, min(40, capacity - 1))
    shared, own = rng.randint(0, longest), rng.randint(0, 6)
    prompt = (BASE[:shared] + [rng.randrange(50) for _ in range(own)])[:longest] or [7]
    asked = {
        "prompt": prompt,
        "max_tokens": rng.choice((1, 2, 5, 12, 18)),
        "n": rng.choice((1, 1, 1, 2, 3, 8)),
        "temperature": rng.choice((0.0, 0.0, 1.0)),
        "seed": rng.randrange(5),
        "faulty": rng.random() < 0.03,
        "priority": rng.choice((0, 0, -1, 2)),
    }
    if rng.random() < 0.4:
        asked |= random_shape(rng, asked)
    if rng.random() < 0.3:  # an end that will really come
        asked["end_ids"] = (rng.choice(plain_answer(asked)),)
        asked["min_tokens"] = rng.choice((0, 0, 3))
    return asked


def plain_answer(asked: dict) -> tuple[int, ...]:
    """What the request would answer with nothing but temperature and seed."""
    params, prompt = SamplingParams(max_tokens=asked["max_tokens"], temperature=asked["temperature"]), tuple(asked["prompt"])
    return solo_answer(NewRequest(request_id="", token_ids=prompt, params=params, max_tokens=asked["max_tokens"], seed=asked["seed"], end_ids=()), 0)


def random_shape(rng: random.Random, asked: dict) -> dict:
    """Penalties, biases, bans and constraints; powers of two, so that every order of rounding gives one answer."""
    shape: dict = {}
    if rng.random() < 0.5:
        shape |= {"repetition_penalty": rng.choice((0.5, 2.0, 4.0)), "presence_penalty": rng.choice((0.0, 0.5)), "frequency_penalty": rng.choice((0.0, -0.25))}
    if rng.random() < 0.3:
        shape["logit_bias"] = {id: rng.choice((-8.0, 8.0, 24.0)) for id in rng.sample(range(60), 4)}
    if rng.random() < 0.3:
        shape["banned_token_ids"] = tuple(rng.sample(range(60), 9))
    if rng.random() < 0.2:
        shape["allowed_token_ids"] = tuple(sorted({63, *rng.sample(range(60), 20)}))
    if rng.random() < 0.3:
        line = (*asked["prompt"], *plain_answer(asked))  # words that would come, and some that begin in the prompt
        starts = range(max(0, len(asked["prompt"]) - 1), len(line))
        shape["bad_words"] = tuple(line[at : at + rng.choice((1, 2, 2, 3))] for at in rng.sample(starts, min(3, len(starts))))
    if rng.random() < 0.3:
        shape["constrained"] = True
    if rng.random() < 0.3:
        shape["prompt_logprobs"] = rng.choice((0, 1, 5))
    return shape


def walk(rng: random.Random) -> dict[str, int]:
    """Raises AssertionError where the law is broken; what was met otherwise."""
    world = World(random_setting(rng))
    todo = [random_request(rng, world.setting.block_size * world.setting.num_blocks) for _ in range(rng.randint(1, 9))]
    abort_rate = rng.choice((0, 0, 0.02, 0.1))
    refused = aborted = 0
    while todo or not world.engine.idle:
        if todo and rng.random() < 0.4:
            refused += world.ask(**todo.pop()) is None
        if world.asked and rng.random() < abort_rate:
            aborted += 1
            world.abort(rng.choice(list(world.asked)), rng.choice((None, None, 0, 1)))
        world.step()
        assert world.num_steps < 1500, "no end in sight"
    world.check()
    stats = world.engine.stats()
    return {
        "preempted": stats.num_preemptions - stats.num_swap_preemptions,
        "parked": stats.num_swap_preemptions,
        "returned": stats.num_bytes_to_device,
        "refused by the host": stats.num_swap_refusals,
        "awaited": world.num_awaited,
        "aborted": aborted,
        "hits": stats.num_cached_tokens,
        "refused": refused,
        "forked": sum(len(asked.reasons) > 1 for asked in world.asked.values()),
    }
