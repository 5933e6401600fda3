"""Where `cpu-paged` refuses to run and what it says then; its pools: exact bytes, zero, poisoned, and only as large as what was written."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from corekit.api import BuildContext, KvPlan, ModelSpec, SupportsKvWrite
from corekit.compose.surroundings import thread_pool

pytest.importorskip("corekit_paged_attention._cpu_paged", reason="needs native code")

from corekit_paged_attention import cpu_refusals, pool_memory
from paged_rig import build, rig_of, spec


def context(*layers: Any, **changes: Any) -> BuildContext:
    model = ModelSpec(architecture="test", layers=layers or (spec(),), vocab_size=64, context_length=4096, hidden_size=32)
    return replace(BuildContext(model_spec=model, pool=thread_pool(1)), **changes)


def test_nothing_is_said_against_what_it_can_do() -> None:
    assert cpu_refusals.refusals(context()) == []
    assert cpu_refusals.refusals(context(dtype="bfloat16", kv_dtype="bfloat16", block_size=32)) == []


@pytest.mark.parametrize(
    ("given", "words"),
    [
        (context(device="cuda:0"), "cuda:0"),
        (context(pool=None), "no pool of threads"),
        (context(kv_dtype="float16"), 'use = "torch"'),
        (context(dtype="float64"), 'use = "torch"'),
        (context(block_size=4), "multiple of 8"),
        (context(block_size=20), "multiple of 8"),
        (context(spec(num_heads=3)), "3 heads"),
        (context(spec(key_dim=2048)), "2048"),
        (context(spec(key_dim=7), kv_dtype="bfloat16"), "pairs"),
        (context(spec(group=1)), "group 1"),
        (context(spec(), spec(kv_from_layer=1)), "kv_from_layer 1"),
        (context(spec(), spec(kv_from_layer=0, value_dim=32)), "other heads or dims"),
        (context(replace(spec(), kind="bidirectional")), "bidirectional"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_what_it_cannot_do_is_said(given: BuildContext, words: str) -> None:
    (reason,) = cpu_refusals.refusals(given)
    assert words in reason


def test_missing_kernels_are_said(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cpu_refusals, "find_spec", lambda *_: None)
    (reason,) = cpu_refusals.refusals(context())
    assert "without a C++ compiler" in reason


def test_a_reason_of_many_layers_is_said_once() -> None:
    assert len(cpu_refusals.refusals(context(*[spec(num_heads=3)] * 5))) == 1


def test_an_instruction_set_that_is_not_there_is_refused_when_built() -> None:
    with pytest.raises(ValueError, match=r"instruction_set is 'neon'; this processor runs 'auto', 'portable'"):
        build([spec()], instruction_set="neon")


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize("block_size", [8, 16])
def test_bytes_per_block_are_what_one_more_block_allocates(dtype: str, block_size: int) -> None:
    layers = (spec(), spec(num_heads=4, num_kv_heads=4, value_dim=33), spec(kv_from_layer=0))

    def allocated(num_blocks: int) -> tuple[int, Any]:
        backend = build(layers, dtype=dtype, block_size=block_size)
        backend.allocate_kv(KvPlan(num_blocks=num_blocks, num_host_blocks=0, block_size=block_size, kv_dtype=dtype, layers=layers))
        return sum(pool[0].num_bytes for pool in backend._pools if pool), backend

    (five, backend), (six, _) = allocated(5), allocated(6)
    assert six - five == backend.bytes_per_block(dtype)
    assert five == 6 * backend.bytes_per_block(dtype), "the null block is the only extra"


def test_pools_begin_poisoned_when_asked_and_the_null_block_is_zero() -> None:
    backend: Any = rig_of(spec(), num_blocks=5).backend
    ((device, _),) = backend._pools
    blocks = device.memory.view(torch.bfloat16).view(6, -1)
    assert (blocks[0] == 0).all()
    assert blocks[1:].isnan().all()


def test_views_are_there_from_the_pools_on() -> None:
    backend: Any = rig_of(spec(), spec(kv_from_layer=0)).backend
    assert isinstance(backend, SupportsKvWrite)
    first, second = backend.kv_views
    assert first is not None
    assert second is None
    assert (first.key.dim_group, first.key.token_group, first.value.dim_group, first.value.token_group) == (2, 1, 1, 2)


@pytest.mark.skipif(not Path("/proc/self/statm").exists(), reason="needs hardware: a system that tells what is resident")
def test_memory_that_nobody_wrote_takes_no_room() -> None:
    def resident() -> int:
        return int(Path("/proc/self/statm").read_text().split()[1]) * 4096

    before = resident()
    memory = pool_memory.page_aligned(1 << 30)
    assert memory.data_ptr() % 4096 == 0
    memory[: 1 << 20] = 1
    assert int(memory[-1]) == 0
    assert resident() - before < 32 << 20
