"""How the pool is sized, and that no order of the stack disables a layer without being told."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from corekit.api import API_VERSION, BlockAllocator, BuildContext, Provider
from corekit.builtin.free_list import FreeList
from corekit.compose.catalog import Candidate
from corekit.compose.config import load
from corekit.compose.discovery import Plugin
from corekit.compose.errors import ConfigError
from corekit.compose.memory import Pool, size_pool
from corekit.compose.parts import Part
from corekit.compose.stack import build_stack, check_swap
from corekit.compose.surroundings import step_limits

NUMBERS: dict[str, Any] = {
    "device": "cpu",
    "free_memory": 1_000_000,
    "bytes_per_block": 100,
    "block_size": 16,
    "num_blocks": 0,
    "memory_utilization": 0.9,
    "max_num_seqs": 4,
    "max_model_len": 100,
}


def pool(**numbers: Any) -> Pool:
    return size_pool(**{**NUMBERS, **numbers})


def test_a_cpu_pool_is_what_the_seats_need() -> None:
    assert pool().num_blocks == 4 * 7


def test_one_seat_of_one_block_gets_the_block_to_spare() -> None:
    assert pool(max_num_seqs=1, max_model_len=16).num_blocks == 2


def test_and_at_most_a_quarter_of_the_memory_with_the_null_block() -> None:
    assert pool(max_num_seqs=1000).num_blocks == 2499
    assert (pool(max_num_seqs=1000).num_blocks + 1) * 100 <= 250_000


def test_a_gpu_pool_is_what_it_may_use() -> None:
    assert pool(device="cuda").num_blocks == 8999
    assert pool(device="cuda:1", memory_utilization=0.5).num_blocks == 4999


def test_a_number_that_was_asked_for_is_taken() -> None:
    assert pool(num_blocks=3, free_memory=400).num_blocks == 3
    assert pool(device="cuda", num_blocks=5).num_blocks == 5


def test_and_refused_where_the_memory_of_a_cpu_cannot_hold_it() -> None:
    assert pool(num_blocks=9_999).num_blocks == 9_999
    with pytest.raises(ConfigError) as caught:
        pool(num_blocks=10_000)
    assert "num_blocks = 10000: a block takes 100 bytes and 1,000,000 bytes are free, which is 9999 blocks" in str(caught.value)


@pytest.mark.parametrize(("block_size", "least"), [(1, 3), (2, 2), (16, 2)])
def test_the_floor_is_a_small_request_and_a_block_to_spare(block_size: int, least: int) -> None:
    assert pool(block_size=block_size, num_blocks=least).num_blocks == least
    with pytest.raises(ConfigError) as caught:
        pool(block_size=block_size, num_blocks=least - 1)
    assert f"{least - 1} blocks of {block_size} tokens, at least {least} are needed" in str(caught.value)


def test_no_memory_is_an_error_with_the_numbers() -> None:
    with pytest.raises(ConfigError, match=r"0 blocks.*A block takes 100 bytes; 0 MiB are free, of which the pool may take 25%"):
        pool(free_memory=300)


def test_the_start_up_line() -> None:
    assert pool().line() == "KV cache: 28 blocks of 16 tokens = 448 tokens (up to 0 MiB); largest context 100 tokens"
    large = pool(bytes_per_block=2**26, free_memory=2**35)
    assert "(up to 1.8 GiB)" in large.line()
    assert "swap" not in large.line()
    assert "; swap space: 64 blocks (4.0 GiB of the host); largest" in replace(large, num_host_blocks=64).line()
    small = pool(num_blocks=5)
    assert small.largest_context == 80
    assert small.line().endswith("largest context 80 tokens (max_model_len is 100, but the pool holds no more)")


class Layer:
    """A layer that stands on another."""

    def __init__(self, inner: BlockAllocator) -> None:
        self.inner = inner

    def __getattr__(self, name: str) -> Any:
        return getattr(self.inner, name)

    available = property(lambda self: self.inner.available)

    def find(self, query: Any) -> Any:
        return self.inner.find(query)

    take, give, hold = (lambda self, x, n=n: getattr(self.inner, n)(x) for n in ("take", "give", "hold"))

    def publish(self, block: int, key: Any, retain_until: float | None = None) -> bool:
        return self.inner.publish(block, key, retain_until)

    def stats(self) -> Any:
        return self.inner.stats()


def layer(name: str, build: Any) -> Part:
    provider: Provider[Any] = Provider(name=name, api=API_VERSION, summary="", build=lambda context, options: build(context))
    candidate = Candidate(slot="block_allocator", provider=provider, plugin=Plugin(distribution="dist", version="1", entry="e", module="m"))
    return Part(candidate=candidate, options=None, place="f.toml: [block_allocator] stack", why="named")


CONTEXT = BuildContext(num_blocks=8)
FREE = layer("free", lambda context: FreeList(context.num_blocks))
CACHE = layer("cache", lambda context: Layer(context.inner))


def test_a_stack_is_built_bottom_up() -> None:
    top = build_stack([CACHE, CACHE, FREE], CONTEXT)
    assert isinstance(top, Layer)
    assert isinstance(top.inner, Layer)
    assert top.available == 8


def test_a_bottom_that_is_not_last_would_disable_what_is_below() -> None:
    with pytest.raises(ConfigError, match=r"\['free', 'cache', 'free'\]: free from dist 1 takes no block from the layer beneath"):
        build_stack([FREE, CACHE, FREE], CONTEXT)


def test_a_layer_that_needs_one_beneath_cannot_be_last() -> None:
    with pytest.raises(ConfigError, match=r"stands at the bottom of the stack and raised, when .*, AttributeError: .* at .*\.py:\d+\. If it needs"):
        build_stack([CACHE], CONTEXT)


def test_a_layer_that_refuses_its_place_says_so() -> None:
    def build(context: BuildContext) -> Any:
        raise ValueError("put me last")

    with pytest.raises(ConfigError, match=r"\[block_allocator\] stack = \['odd', 'free'\]: odd from dist 1: put me last"):
        build_stack([layer("odd", build), FREE], CONTEXT)


class Caching(Layer):
    prefix_cache = True


class Hiding(Layer):
    """Passes on nothing but what every layer has."""

    def __getattr__(self, name: str) -> Any:
        raise AttributeError(name)


class Swapping(Hiding):
    """Passes on what it has no ability for: of swapping, only what the stack looks at."""

    def __init__(self, inner: BlockAllocator, num_host_blocks: int = 8) -> None:
        super().__init__(inner)
        self.num_host_blocks = num_host_blocks
        self.prefix_cache = getattr(inner, "prefix_cache", False)

    def swap_out(self, blocks: Any, keys: Any) -> Any: ...
    def swap_in(self, ticket: Any) -> Any: ...
    def drop(self, ticket: Any) -> None: ...


LRU, PLAIN = layer("lru", lambda context: Caching(context.inner)), layer("plain", lambda context: Hiding(context.inner))
HIDING_LRU = layer("lru", lambda context: type("Lru", (Hiding,), {"prefix_cache": True})(context.inner))
TELLING = layer("telling", lambda context: type("Telling", (Caching,), {"set_sink": lambda self, sink: None})(context.inner))
PASSING = layer("passing", lambda context: type("Passing", (Hiding,), {"prefix_cache": True})(context.inner))  # but not the eviction sink
SWAP, NO_SWAP = layer("swap", lambda context: Swapping(context.inner)), layer("swap", lambda context: Swapping(context.inner, 0))


@pytest.mark.parametrize(
    ("stack", "hider", "ability", "owner", "order"),
    [
        ([HIDING_LRU, SWAP, FREE], "lru", "the swap space", "swap", ["swap", "lru", "free"]),
        ([PLAIN, LRU, FREE], "plain", "the prefix cache", "lru", ["lru", "plain", "free"]),
        ([PLAIN, SWAP, LRU, FREE], "plain", "the prefix cache", "lru", ["swap", "lru", "plain", "free"]),
        ([HIDING_LRU, SWAP, SWAP, FREE], "lru", "the swap space", "swap", ["swap", "swap", "lru", "free"]),
        ([SWAP, PASSING, TELLING, FREE], "passing", "the eviction sink", "telling", ["swap", "telling", "passing", "free"]),
    ],
)
def test_a_layer_that_hides_what_one_beneath_can_do_is_in_the_wrong_place(stack: list[Part], hider: str, ability: str, owner: str, order: list[str]) -> None:
    with pytest.raises(ConfigError) as refused:
        build_stack(stack, CONTEXT)
    said = f"{hider} from dist 1 hides {ability} of {owner} beneath it, which would be disabled. Put it beneath: {order}"
    assert str(refused.value).startswith(f"f.toml: [block_allocator] stack = {[part.name for part in stack]}: {said}. A layer that passes it on ")
    named = {part.name: part for part in stack}
    build_stack([named[name] for name in order], CONTEXT)


def test_what_a_bottom_can_do_may_not_be_hidden_either() -> None:
    bottom = layer("bottom", lambda context: type("Bottom", (FreeList,), {"prefix_cache": True})(context.num_blocks))
    with pytest.raises(ConfigError, match=r"plain .* hides the prefix cache of bottom beneath it, .* Leave it out: it cannot stand beneath a bottom"):
        build_stack([PLAIN, bottom], CONTEXT)


@pytest.mark.parametrize(
    "stack", [[SWAP, LRU, FREE], [SWAP, FREE], [HIDING_LRU, NO_SWAP, FREE], [PLAIN, PLAIN, FREE], [SWAP, TELLING, FREE], [PASSING, TELLING, FREE]]
)
def test_what_hides_nothing_may_stand_anywhere(stack: list[Part]) -> None:
    build_stack(stack, CONTEXT)


@pytest.mark.parametrize(
    ("stack", "said"),
    [
        (
            [LRU, FREE],
            r"the stack \['lru', 'free'\] has no swap space, so nobody could be parked\. Put a layer on top that has, as in \[block_allocator\] stack",
        ),
        ([NO_SWAP, FREE], r"the stack \['swap', 'free'\] has swap space without a single block, .* swap_space_gib = 4; or leave preemption at 'auto'\."),
        ([SWAP, FREE], None),
    ],
)
def test_to_park_needs_a_stack_that_can(stack: list[Part], said: str | None) -> None:
    built = build_stack(stack, CONTEXT)
    for preemption in ("auto", "recompute", "swap"):
        config = load(environ={}, given={"scheduler": {"preemption": preemption}})
        if preemption == "swap" and said:
            with pytest.raises(ConfigError, match=r"\[scheduler\] preemption = 'swap': " + said):
                check_swap(config, stack, built)
        else:
            check_swap(config, stack, built)


def test_the_proof_leaves_every_block_free() -> None:
    stack = build_stack([CACHE, FREE], CONTEXT)
    taken = stack.take(8)
    assert taken is not None
    assert sorted(taken.ids) == list(range(1, 9))


@pytest.mark.parametrize(
    ("scheduler", "device", "limits"),
    [
        ({}, "cpu", (512, 256)),
        ({}, "cuda:0", (2048, 0)),
        ({"long_prefill_token_threshold": 64}, "cpu", (512, 64)),
        ({"max_num_batched_tokens": 1000}, "cpu", (1000, 0)),
        ({"max_num_batched_tokens": 1000, "long_prefill_token_threshold": 64}, "cuda", (1000, 64)),
    ],
)
def test_a_step_is_small_on_a_cpu_and_leaves_room_beside_one_prompt(scheduler: dict[str, int], device: str, limits: tuple[int, int]) -> None:
    assert step_limits(load(environ={}, given={"scheduler": scheduler}), device) == limits
