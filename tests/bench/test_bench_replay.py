"""Belady's rule against brute force, traces of block ids, and their replay through the real layers."""

from __future__ import annotations

import io
from collections.abc import Sequence
from itertools import combinations
from pathlib import Path
from random import Random
from typing import Any

import pytest

from corekit.bench.belady import most_hits
from corekit.bench.errors import BenchUsage
from corekit.bench.hash_trace import HashTrace, conversations, hash_trace, read_hash_trace
from corekit.bench.progress import Progress
from corekit.bench.replay import Replayed, replay
from corekit.bench.stacks import Stacks
from corekit.compose.config import Config, load

TRACES = Path(__file__).resolve().parents[3] / "shared" / "traces"
PARTS = ["corekit_cpu_swap", "corekit_lru_prefix"]


def best(chains: Sequence[Sequence[int]], num_blocks: int) -> int:
    """Every cache that could be kept after every request, whatever rule would keep it."""
    states: dict[frozenset[int], int] = {frozenset(): 0}
    for chain in chains:
        following: dict[frozenset[int], int] = {}
        for cached, hits in states.items():
            found = next((at for at, block in enumerate(chain) if block not in cached), len(chain))
            others = sorted(cached - set(chain))
            for count in range(min(len(others), num_blocks - len(chain)) + 1):
                for kept in combinations(others, count):
                    state = frozenset((*chain, *kept))
                    following[state] = max(following.get(state, 0), hits + found)
        states = following
    return max(states.values())


def tiny(random: Random) -> HashTrace:
    """A few requests along the branches of a small tree."""
    requests = [[random.randrange(2) for _ in range(random.randint(1, 3))] for _ in range(random.randint(2, 8))]
    return hash_trace("tiny", requests)


@pytest.mark.parametrize("seed", range(60))
def test_no_cache_hits_more_often_than_the_clairvoyant_one(seed: int) -> None:
    trace = tiny(Random(seed))
    for num_blocks in range(trace.longest, 7):
        assert most_hits(trace.chains, num_blocks) == best(trace.chains, num_blocks), (trace.chains, num_blocks)


def test_a_request_that_the_cache_cannot_hold_is_refused() -> None:
    with pytest.raises(ValueError, match="request 1 alone needs 3 blocks, the cache has 2"):
        most_hits([[0], [0, 1, 2]], 2)


def stacks() -> Stacks:
    def configure(given: Any) -> Config:
        return load(options={**given, "plugins.import": PARTS, "block_allocator.stack": ["lru-prefix", "free-list"]})

    return Stacks(configure)


def replayed(trace: HashTrace, num_blocks: int, num_host_blocks: int = 0) -> Replayed:
    found = stacks()
    layers = found.over_host(found.device, num_host_blocks) if num_host_blocks else found.device
    return replay(found.build(layers, num_blocks)[0], trace, Progress(io.StringIO()))


def test_hits_are_counted_block_by_block() -> None:
    trace = hash_trace("small", [[1, 2], [3, 4], [1, 2], [1, 2, 5], [9, 2]])
    assert (trace.num_blocks, len(trace.keys), trace.longest) == (11, 7, 3), "2 after 9 is another block"
    assert replayed(trace, 7) == Replayed(num_hits=4, num_host_hits=0)
    assert replayed(trace, 4) == Replayed(num_hits=4, num_host_hits=0)
    assert replayed(trace, 3) == Replayed(num_hits=3, num_host_hits=0), "of the first chain its end went first"
    assert replayed(trace, 3, 4) == Replayed(num_hits=4, num_host_hits=1), "which the host had kept"


def test_an_unlimited_pool_finds_all_but_the_first_of_each() -> None:
    trace = conversations(num_conversations=40, seed=1)
    ideal = trace.num_blocks - len(trace.keys)
    assert replayed(trace, len(trace.keys)).num_hits == ideal == most_hits(trace.chains, len(trace.keys)) > trace.num_blocks / 4
    small = max(trace.longest, len(trace.keys) // 10)
    lru, both = replayed(trace, small).num_hits, replayed(trace, small, 2 * small)
    assert 0 < lru < most_hits(trace.chains, small) < ideal
    assert lru < both.num_hits <= most_hits(trace.chains, 3 * small)
    assert 0 < both.num_host_hits < both.num_hits


@pytest.mark.slow
@pytest.mark.parametrize(("name", "ratio"), [("mooncake-conversation.jsonl", "0.366"), ("mooncake-synthetic.jsonl", "0.640")])
def test_the_ideal_ratio_of_a_real_trace(name: str, ratio: str) -> None:
    if not (TRACES / name).exists():
        pytest.skip(f"needs traces: {TRACES / name}")
    trace = read_hash_trace(TRACES / name)
    num_blocks = len(trace.keys)
    assert f"{replayed(trace, num_blocks).num_hits / trace.num_blocks:.3f}" == ratio
    assert f"{most_hits(trace.chains, num_blocks) / trace.num_blocks:.3f}" == ratio


@pytest.mark.parametrize(
    ("content", "says"),
    [
        (b"", "has no block in any request"),
        (b'{"hash_ids": []}', "has no block in any request"),
        (b'{"hash_ids": [1]}\n[1]', r"line 2: Expected `object`.*Expected one request a line"),
        (b'{"hash_ids": [1]}\n\n{"hash_ids": ["a"]}', r"line 3: Expected `int`, got `str`"),
        (b'{"timestamp": 0}', "line 1: Object missing required field `hash_ids`"),
        (b"\xff", "line 1: "),
    ],
)
def test_a_trace_that_cannot_be_read_says_where(tmp_path: Path, content: bytes, says: str) -> None:
    path = tmp_path / "trace.jsonl"
    path.write_bytes(content)
    with pytest.raises(BenchUsage, match=says):
        read_hash_trace(path)


def test_conversations_are_the_same_for_a_seed() -> None:
    one, same, other = (conversations(num_conversations=10, seed=seed) for seed in (3, 3, 4))
    assert one.chains == same.chains != other.chains
