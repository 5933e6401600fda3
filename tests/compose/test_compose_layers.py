"""Corekit's own layers together: which stack is the default, which orders there are, and who can park."""

from __future__ import annotations

import re
from itertools import permutations

import pytest

from corekit.compose.assemble import assemble
from corekit.compose.catalog import build_catalog
from corekit.compose.composition import compose
from corekit.compose.config import load
from corekit.compose.discovery import discover
from corekit.compose.errors import ConfigError
from corekit.compose.parts import wishes
from corekit.compose.rehearsal import rehearse

RIGHT = ("cpu-swap", "lru-prefix", "free-list")


@pytest.mark.parametrize(("device", "layers"), [("cpu", RIGHT[1:]), ("cuda", RIGHT), ("cuda:1", RIGHT)])
def test_the_default_stack(device: str, layers: tuple[str, ...]) -> None:
    """Swapping copies between two memories, and a CPU has one."""
    found = wishes(load(environ={}), {}, build_catalog(discover()), lambda: device)["block_allocator"]
    assert tuple(wish.name for wish in found) == layers
    assert {wish.origin for wish in found} == {"default"}


def fingerprint(stack: tuple[str, ...], allocator: dict[str, object], **scheduler: object) -> dict[str, object]:
    return {
        "model": {"source": "none", "use": "fingerprint", "max_model_len": 64},
        "scheduler": scheduler,
        "block_allocator": {"stack": list(stack), **allocator},
        "engine": {"threads": 1},
        "frontend": [],
    }


def checked(stack: tuple[str, ...], preemption: str = "auto", num_host_blocks: int = 4, *, start: bool = False) -> None:
    """What `corekit check` does with such a file, or a whole start."""
    options = {"cpu-swap": {"num_host_blocks": num_host_blocks, "swap_space_gib": 0}} if "cpu-swap" in stack else {}
    tables = fingerprint(stack, {"num_blocks": 8, "options": options}, preemption=preemption)
    if start:
        assemble(tables, environ={}, progress=False).close()
    else:
        rehearse(compose(tables, given={}, environ={}, clock=lambda: 0.0))


@pytest.mark.parametrize("stack", [*permutations(RIGHT), *permutations(RIGHT, 2), *permutations(RIGHT, 1)], ids=" ".join)
def test_no_order_of_layers_disables_one(stack: tuple[str, ...]) -> None:
    """Only what keeps the order of the default works; every other is refused when it is composed, and says what to do."""
    if stack == tuple(name for name in RIGHT if name in stack) and stack[-1] == "free-list":
        checked(stack)
        return
    with pytest.raises(ConfigError) as refused:
        checked(stack)
    (problem,) = refused.value.problems
    assert str(list(stack)) in problem
    assert re.search(r"[Pp]ut it last|[Bb]ottom of a stack|[Aa]s in .*free-list\"\]|free-list last", problem), problem


def test_a_cache_over_swap_space_is_told_the_right_order() -> None:
    with pytest.raises(ConfigError, match=r'stack = \["cpu-swap", "lru-prefix", "free-list"\]'):
        checked(("lru-prefix", "cpu-swap", "free-list"))


@pytest.mark.parametrize(
    ("stack", "num_host_blocks", "said"),
    [
        (RIGHT, 4, None),
        (("cpu-swap", "free-list"), 4, None),
        (RIGHT, 0, "has swap space without a single block"),
        (RIGHT[1:], 4, r"the stack \['lru-prefix', 'free-list'\] has no swap space"),
        (RIGHT[2:], 4, "has no swap space"),
    ],
)
@pytest.mark.parametrize("start", [False, True])
def test_to_park_needs_swap_space(stack: tuple[str, ...], num_host_blocks: int, said: str | None, start: bool) -> None:
    for preemption in ("auto", "recompute"):
        checked(stack, preemption, num_host_blocks, start=start)
    if said is None:
        checked(stack, "swap", num_host_blocks, start=start)
    else:
        with pytest.raises(ConfigError, match=r"\[scheduler\] preemption = 'swap': .*" + said):
            checked(stack, "swap", num_host_blocks, start=start)


@pytest.mark.parametrize("start", [False, True])
@pytest.mark.parametrize(("num_blocks", "most"), [(0, 150), (150, 49)])
def test_pool_and_swap_space_share_the_memory_of_a_cpu(num_blocks: int, most: int, start: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """There is room for 200 blocks. What the requests need at most is far more, and no reason to refuse: the pool then takes a quarter."""

    def tables(num_host_blocks: int) -> dict[str, object]:
        return fingerprint(RIGHT, {"num_blocks": num_blocks, "options": {"cpu-swap": {"num_host_blocks": num_host_blocks}}})

    def run(num_host_blocks: int) -> None:
        if start:
            assemble(tables(num_host_blocks), environ={}, progress=False).close()
        else:
            rehearse(compose(tables(num_host_blocks), given={}, environ={}, clock=lambda: 0.0))

    composition = compose(tables(0), given={}, environ={}, clock=lambda: 0.0)
    block = composition.one("attention_backend").build(composition.context).bytes_per_block(composition.context.kv_dtype)
    for where in ("corekit.worker.worker", "corekit_cpu_swap.memory"):
        monkeypatch.setattr(f"{where}.available_memory", lambda: 200 * block)
    run(most)
    with pytest.raises(ConfigError, match=rf"num_host_blocks = {most + 1}: .* available beside the pool, .*: room for {most} blocks"):
        run(most + 1)


def test_a_pool_that_a_cpu_has_no_room_for_is_refused_before_the_weights(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("corekit.worker.worker.available_memory", lambda: 1 << 16)
    with pytest.raises(ConfigError, match=r"\[block_allocator\] num_blocks = 1000: a block takes"):
        rehearse(compose(fingerprint(RIGHT[1:], {"num_blocks": 1000}), given={}, environ={}, clock=lambda: 0.0))
