"""Options and places in a stack: what is refused, and what the message says."""

from __future__ import annotations

from typing import Any

import pytest
from corekit_lru_prefix import LruPrefixOptions, corekit_register_block_allocators

from corekit.api import BlockAllocator, BuildContext
from corekit.builtin.free_list import FreeList
from corekit.compose.catalog import build_catalog
from corekit.compose.discovery import discover
from corekit.compose.errors import ConfigError
from corekit.compose.options import read_options
from corekit.testing.prefix_cache import PlainPrefixCache

(PROVIDER,) = corekit_register_block_allocators()


def read(**raw: Any) -> LruPrefixOptions:
    """As from TOML."""
    candidate = build_catalog(discover()).find("block_allocator", "lru-prefix", "the test")
    options = read_options(candidate, raw, lambda path: ".".join(("[block_allocator] options.lru-prefix", *map(str, path))), {})
    assert isinstance(options, LruPrefixOptions)
    return options


@pytest.mark.parametrize(
    ("raw", "says"),
    [
        ({"max_retained": -0.01}, "max_retained must be from 0 to 0.9, got -0.01"),
        ({"max_retained": 0.91}, "max_retained must be from 0 to 0.9, got 0.91"),
        ({"max_retained": float("nan")}, "max_retained must be from 0 to 0.9, got nan"),
        ({"sample_every": -1}, "sample_every must be an integer from 0 to 1048576, got -1"),
        ({"sample_every": 2**20 + 1}, "sample_every must be an integer from 0 to 1048576, got 1048577"),
    ],
)
def test_numbers_are_bounded_from_both_sides(raw: dict[str, Any], says: str) -> None:
    with pytest.raises(ConfigError) as caught:
        read(**raw)
    assert says in str(caught.value) and "Correct them in [block_allocator.options.lru-prefix]" in str(caught.value)


def test_every_problem_is_said_at_once() -> None:
    with pytest.raises(ValueError, match=r"max_retained.*sample_every"):
        LruPrefixOptions(max_retained=2, sample_every=-1)


@pytest.mark.parametrize("wrong", [{"max_retained": "all"}, {"max_retained": True}, {"sample_every": 1.5}, {"sample_every": None}])
def test_what_is_no_number_is_out_of_bounds(wrong: dict[str, Any]) -> None:
    """From Python, where nobody looked at the types."""
    with pytest.raises(ValueError, match="out of bounds: " + next(iter(wrong))):
        LruPrefixOptions(**wrong)


@pytest.mark.parametrize("name", ["max_retained", "sample_every"])
@pytest.mark.parametrize(
    ("value", "shown"),
    [(10**300, "1" + "0" * 56 + "..."), (10**59, "1" + "0" * 59), (10**5000, "a int too long to write"), ("9" * 80, "'" + "9" * 56 + "...")],
    ids=["300 digits", "60 digits", "5000 digits", "a string"],
)
def test_a_message_is_short_however_long_the_value_is(name: str, value: Any, shown: str) -> None:
    with pytest.raises(ValueError, match="out of bounds") as caught:
        LruPrefixOptions(**{name: value})
    assert f", got {shown} (" in str(caught.value)


def test_bounds_are_legal_and_zero_is_honoured() -> None:
    for raw in ({"max_retained": 0}, {"max_retained": 0.9}, {"sample_every": 0}, {"sample_every": 2**20}):
        options = read(**raw)
        ((name, value),) = raw.items()
        assert getattr(options, name) == value
    assert read() == LruPrefixOptions(max_retained=0.25, sample_every=64)


class Swaps(FreeList):
    """A layer that parks blocks on the host, if it has any room there."""

    num_host_blocks = 4

    def swap_out(self, blocks: object, keys: object) -> None: ...

    def swap_in(self, ticket: object) -> None: ...

    def drop(self, ticket: object) -> None: ...


class CannotSwap(Swaps):
    num_host_blocks = 0


@pytest.mark.parametrize(
    ("inner", "says"),
    [
        (None, "Put a bottom, such as free-list, last"),
        (Swaps(4), "stands on Swaps, which parks blocks on the host.*Put the layer that swaps above"),
        (PlainPrefixCache(FreeList(4)), "stands on PlainPrefixCache, which has a prefix cache already.*Take one of the two out"),
    ],
)
def test_a_wrong_order_is_refused_with_the_right_one(inner: BlockAllocator | None, says: str) -> None:
    with pytest.raises(ValueError, match=says) as caught:
        PROVIDER.build(BuildContext(inner=inner), None)
    assert 'stack = ["cpu-swap", "lru-prefix", "free-list"]' in str(caught.value)


def test_a_layer_that_could_swap_and_has_no_room_hides_nothing() -> None:
    assert PROVIDER.build(BuildContext(inner=CannotSwap(4)), None).available == 4
