"""What a user may ask for, what is said when it cannot be had, and on what the layer stands."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import corekit_cpu_swap
import pytest
from corekit_cpu_swap.memory import GIB, available_memory, size_swap
from corekit_cpu_swap.options import CpuSwapOptions
from cpu_swap_rig import Asked, Written, key_chain

from corekit.api import BlockAllocator, BuildContext, SupportsEvictionSink, SupportsSwap
from corekit.builtin.free_list import FreeList
from corekit.testing.prefix_cache import PlainPrefixCache

(PROVIDER,) = corekit_cpu_swap.corekit_register_block_allocators()
NUMBERS = BuildContext(num_blocks=8, bytes_per_block=1 << 16)


def context() -> BuildContext:
    return replace(NUMBERS, inner=PlainPrefixCache(FreeList(8)), journal=Written())


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({"swap_space_gib": -0.5}, "swap_space_gib must be a number from 0 to 65536, got -0.5"),
        ({"swap_space_gib": 65537}, "swap_space_gib must be a number from 0 to 65536, got 65537"),
        ({"swap_space_gib": float("nan")}, "swap_space_gib must be a number from 0 to 65536, got nan"),
        ({"swap_space_gib": True}, "swap_space_gib must be a number from 0 to 65536, got True"),
        ({"num_host_blocks": -1}, "num_host_blocks must be an integer from 0 to 1073741824, got -1"),
        ({"num_host_blocks": 1 << 31}, "num_host_blocks must be an integer from 0 to 1073741824, got 2147483648"),
        ({"num_host_blocks": 2.0}, "num_host_blocks must be an integer from 0 to 1073741824, got 2.0"),
        ({"cache_share": 1.01}, "cache_share must be a number from 0 to 1, got 1.01"),
        ({"cache_share": "all"}, "cache_share must be a number from 0 to 1, got 'all'"),
        ({"num_host_blocks": 10**299}, f"num_host_blocks must be an integer from 0 to 1073741824, got 1{'0' * 56}..."),
        ({"num_host_blocks": 16**5000}, "num_host_blocks must be an integer from 0 to 1073741824, got an integer of thousands of digits"),
    ],
)
def test_bounds(given: dict[str, Any], said: str) -> None:
    with pytest.raises(ValueError) as raised:
        CpuSwapOptions(**given)
    assert str(raised.value) == said


def test_every_fault_is_told_at_once() -> None:
    with pytest.raises(ValueError, match=r"(?s)swap_space_gib.*num_host_blocks.*cache_share"):
        CpuSwapOptions(swap_space_gib=-1, num_host_blocks=-1, cache_share=-1)


def test_the_space_is_counted_in_whole_blocks() -> None:
    assert size_swap(CpuSwapOptions(swap_space_gib=1), 1 << 20, 2 * GIB) == 1024
    assert size_swap(CpuSwapOptions(swap_space_gib=1), (1 << 20) + 1, 2 * GIB) == 1023
    assert size_swap(CpuSwapOptions(swap_space_gib=1, num_host_blocks=7), 1 << 20, 2 * GIB) == 7, "what is counted in blocks rules"
    assert size_swap(CpuSwapOptions(swap_space_gib=0, num_host_blocks=7), 1 << 20, 2 * GIB) == 7
    assert size_swap(CpuSwapOptions(swap_space_gib=0), None, None) == 0


def test_more_than_the_host_has_is_refused_with_the_numbers() -> None:
    with pytest.raises(ValueError) as raised:
        size_swap(CpuSwapOptions(swap_space_gib=4), 1 << 20, 3 * GIB)
    assert str(raised.value) == (
        "swap_space_gib = 4: 4,096 blocks of 1,048,576 bytes take 4.00 GiB, and 3.00 GiB of the host's memory are available: room for 3,072 blocks. "
        "Ask for less in [block_allocator.options.cpu-swap], free memory, or take cpu-swap out of the stack"
    )
    with pytest.raises(ValueError, match="num_host_blocks = 9: 9 blocks"):
        size_swap(CpuSwapOptions(num_host_blocks=9), 1 << 20, 8 << 20)
    assert size_swap(CpuSwapOptions(num_host_blocks=8), 1 << 20, 8 << 20) == 8
    assert size_swap(CpuSwapOptions(swap_space_gib=4), 1 << 20, None) == 4096, "where nobody knows how much there is, the user does"


def test_what_nobody_asked_for_never_stops_a_start() -> None:
    """Four gibibytes, but at most a quarter of what the host has; nothing where that is less than a block."""
    assert size_swap(CpuSwapOptions(), 1 << 20, 64 * GIB) == size_swap(CpuSwapOptions(), 1 << 20, None) == 4096
    assert size_swap(CpuSwapOptions(), 1 << 20, 4 * GIB) == 1024
    assert size_swap(CpuSwapOptions(), 1 << 20, 1 << 20) == 0


def test_on_a_cpu_the_pool_is_counted_first() -> None:
    """Device and host are one memory there, and the pool is allocated after the space is counted."""
    assert size_swap(CpuSwapOptions(), 1 << 20, 16 * GIB, pool=8 * GIB) == 2048, "a quarter of the rest"
    assert size_swap(CpuSwapOptions(), 1 << 20, 8 * GIB, pool=9 * GIB) == 0
    assert size_swap(CpuSwapOptions(swap_space_gib=4), 1 << 20, None, pool=9 * GIB) == 4096
    assert size_swap(CpuSwapOptions(swap_space_gib=6), 1 << 20, 22 * GIB, pool=16 * GIB) == 6144
    with pytest.raises(ValueError) as raised:
        size_swap(CpuSwapOptions(swap_space_gib=16), 1 << 20, 22 * GIB, pool=16 * GIB)
    assert str(raised.value) == (
        "swap_space_gib = 16: 16,384 blocks of 1,048,576 bytes take 16.00 GiB, and 6.00 GiB of the host's memory are available beside the pool, "
        "which takes 16.00 GiB of it on a CPU: room for 6,144 blocks. Ask for less in [block_allocator.options.cpu-swap], give the pool fewer blocks, "
        "free memory, or take cpu-swap out of the stack"
    )


@pytest.mark.parametrize(("device", "most"), [("cpu", 23), ("cuda", 32), ("cuda:1", 32)])
def test_the_layer_knows_whether_the_pool_is_in_the_same_memory(device: str, most: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Eight blocks, and the one of padding."""
    monkeypatch.setattr("corekit_cpu_swap.memory.available_memory", lambda: 32 << 16)
    here = replace(context(), device=device)
    layer: Any = PROVIDER.build(here, CpuSwapOptions(num_host_blocks=most))
    assert layer.num_host_blocks == most
    with pytest.raises(ValueError, match=f"room for {most} blocks"):
        PROVIDER.build(here, CpuSwapOptions(num_host_blocks=most + 1))


def test_less_than_a_block_is_not_silently_nothing() -> None:
    with pytest.raises(ValueError, match=r"swap_space_gib = 0\.0001 does not hold one block of 1,048,576 bytes"):
        size_swap(CpuSwapOptions(swap_space_gib=0.0001), 1 << 20, GIB)


def test_a_space_without_a_block_size_is_refused() -> None:
    with pytest.raises(ValueError, match="cannot be counted"):
        size_swap(CpuSwapOptions(), None, GIB)


@pytest.mark.parametrize(
    ("text", "bytes_there"), [("MemTotal: 9 kB\nMemAvailable:   2048 kB\n", 2 << 20), ("MemTotal: 9 kB\n", None), ("MemAvailable:\n", None)]
)
def test_available_memory_is_what_the_system_says(tmp_path: Path, text: str, bytes_there: int | None) -> None:
    (tmp_path / "meminfo").write_text(text, "ascii")
    assert available_memory(tmp_path / "meminfo") == bytes_there
    assert available_memory(tmp_path / "nothing") is None


@pytest.mark.parametrize(("share", "num_cached"), [(1.0, 5), (0.5, 2), (0.0, 0)])
def test_the_share_is_of_the_host_blocks(share: float, num_cached: int) -> None:
    layer: Any = PROVIDER.build(context(), CpuSwapOptions(num_host_blocks=5, cache_share=share))
    assert layer.num_host_blocks == 5
    assert isinstance(layer, SupportsSwap)
    assert not isinstance(layer, SupportsEvictionSink), "it is the one who listens"
    taken = layer.take(8)
    for block, key in zip(taken.ids, key_chain(*range(8)), strict=True):
        layer.publish(block, key)
    layer.give(taken)
    layer.take(8)
    assert layer.stats().num_host_cached == num_cached


def test_without_host_blocks_it_is_not_there() -> None:
    inner: Any = PlainPrefixCache(FreeList(8))
    layer: Any = PROVIDER.build(replace(context(), inner=inner), CpuSwapOptions(swap_space_gib=0))
    assert layer.num_host_blocks == 0
    assert [getattr(layer, name) for name in ("take", "give", "find", "hold", "publish")] == [inner.take, inner.give, inner.find, inner.hold, inner.publish]
    heard: list[object] = []
    inner.set_sink(lambda block, key: heard.append(block))
    PROVIDER.build(replace(context(), inner=inner), CpuSwapOptions(swap_space_gib=0))
    assert inner._sink is not None and inner._sink(1, None) is None and heard == [1], "the sink is left to others"


def test_what_passes_through_is_not_wrapped() -> None:
    inner: Any = PlainPrefixCache(FreeList(8))
    layer: Any = PROVIDER.build(replace(context(), inner=inner), CpuSwapOptions(num_host_blocks=2))
    assert [getattr(layer, name) for name in ("take", "give", "publish")] == [inner.take, inner.give, inner.publish]


def test_two_swap_layers_are_refused() -> None:
    beneath: BlockAllocator = PROVIDER.build(context(), CpuSwapOptions(num_host_blocks=2))
    with pytest.raises(ValueError, match="swaps already"):
        PROVIDER.build(replace(context(), inner=beneath), CpuSwapOptions(num_host_blocks=2))
    passes: BlockAllocator = PROVIDER.build(context(), CpuSwapOptions(swap_space_gib=0))
    PROVIDER.build(replace(context(), inner=Asked(passes)), CpuSwapOptions(num_host_blocks=2))


def test_it_needs_a_layer_beneath_and_a_journal() -> None:
    with pytest.raises(ValueError, match="Put one beneath it"):
        PROVIDER.build(replace(context(), inner=None), CpuSwapOptions())
    with pytest.raises(ValueError, match="journal"):
        PROVIDER.build(replace(context(), journal=None), CpuSwapOptions(num_host_blocks=2))
