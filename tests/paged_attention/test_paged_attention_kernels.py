"""Kernels of every instruction set against float64, and what their results may not depend on, bit for bit."""

from __future__ import annotations

import pytest
import torch

from corekit.api import LayerSpec

kernels = pytest.importorskip("corekit_paged_attention._cpu_paged", reason="needs native code")

from paged_rig import Sequences, rig_of, spec  # noqa: E402

SETS = kernels.instruction_sets()
TOLERANCE = {"float32": 1e-5, "bfloat16": 2e-2}
SHAPES = [
    (spec(), 16),
    (spec(num_heads=9, num_kv_heads=3), 8),
    (spec(num_heads=4, num_kv_heads=4, key_dim=80, value_dim=80), 32),
    (spec(num_heads=5, num_kv_heads=1, key_dim=96, value_dim=96), 24),
    (spec(num_heads=8, num_kv_heads=1, key_dim=128, value_dim=128, soft_cap=5.0), 16),
    (spec(num_heads=2, num_kv_heads=1, key_dim=256, value_dim=256, sinks=True), 16),
    (spec(num_heads=7, num_kv_heads=1, key_dim=18, value_dim=33, window=37), 8),
    (spec(num_heads=3, num_kv_heads=1, key_dim=32, value_dim=48, chunk=100), 48),
]


@pytest.mark.parametrize("instruction_set", SETS)
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize(("layer", "block_size"), SHAPES, ids=lambda value: f"d{value.key_dim}" if isinstance(value, LayerSpec) else f"b{value}")
def test_lengths_around_the_edges_of_partitions_and_blocks(instruction_set: str, dtype: str, layer: LayerSpec, block_size: int) -> None:
    """Rows end inside, at and behind partitions of 256 and blocks; then each decodes twice, across the edge."""
    rig = rig_of(layer, dtype=dtype, block_size=block_size, num_blocks=900 // block_size + 8, instruction_set=instruction_set)
    rows = [(rig.row(), length) for length in (1, 15, 254, 256, 259)]
    assert rig.step(rows) <= TOLERANCE[dtype]
    for _ in range(2):
        assert rig.step([(row, 1) for row, _ in rows]) <= TOLERANCE[dtype]


@pytest.mark.parametrize("instruction_set", SETS)
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_a_result_depends_on_its_own_row_alone(instruction_set: str, dtype: str) -> None:
    """Not on neighbours, chunks, nor on how much is computed at once: the same bits, alone and beside others, as decode and as prefill."""
    rows = Sequences(spec(num_heads=6, num_kv_heads=2), (700, 258, 31), dtype=dtype, instruction_set=instruction_set)
    whole = rows.whole.split([700, 258, 31])
    for row, position in ((0, 699), (0, 512), (0, 255), (1, 257), (1, 256), (2, 30), (2, 0)):
        (alone,) = rows.attend((row, position, position + 1))
        assert torch.equal(alone[0], whole[row][position]), f"row {row}: position {position} as a decode, and in its prompt"
    beside = rows.attend((0, 699, 700), (2, 30, 31), (1, 200, 258), (0, 100, 117))
    for part, (row, first, end) in zip(beside, ((0, 699, 700), (2, 30, 31), (1, 200, 258), (0, 100, 117)), strict=True):
        assert torch.equal(part, whole[row][first:end]), f"row {row}, positions {first} to {end}, beside others"


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize("num_threads", [2, 3, 5])
def test_the_number_of_threads_changes_no_bit(dtype: str, num_threads: int) -> None:
    layer = spec(num_heads=6, num_kv_heads=2, window=600)
    one, more = (Sequences(layer, (900, 40), dtype=dtype, num_threads=count) for count in (1, num_threads))
    assert torch.equal(one.whole, more.whole)
    for parts in (((0, 899, 900),), ((0, 899, 900), (1, 39, 40)), ((0, 880, 900), (1, 3, 40))):
        for a, b in zip(one.attend(*parts), more.attend(*parts), strict=True):
            assert torch.equal(a, b), f"{parts} on 1 and on {num_threads} threads"


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_what_is_no_number_is_not_hidden(dtype: str) -> None:
    """A query of NaN, or a key of it, gives NaN for those who see it, and for them alone."""
    rows = Sequences(spec(), (40,), dtype=dtype)
    rows.queries[0][7] = float("nan")
    (out,) = rows.attend((0, 0, 40))
    assert out[7].isnan().all()
    assert not out[[0, 6, 8, 39]].isnan().any()
    rows.queries[0] = torch.where(rows.queries[0].isnan(), 0.5, rows.queries[0])
    rows._run([(0, 20, 21)], torch.full((1, 2, 64), float("nan")), torch.ones(1, 2, 64))
    (out,) = rows.attend((0, 0, 40))
    assert out[20:].isnan().all()
    assert not out[:20].isnan().any()


@pytest.mark.parametrize(("query_dtype", "kv_dtype"), [("float32", "bfloat16"), ("bfloat16", "float32")])
def test_queries_and_cache_of_different_dtypes(query_dtype: str, kv_dtype: str) -> None:
    """The result is the query's dtype; keys and values are rounded or widened as they are written."""
    rows = Sequences(spec(), (70,), dtype=kv_dtype)
    same = rows.whole
    rows.queries = [query.to(getattr(torch, query_dtype)) for query in rows.queries]
    (out,) = rows.attend((0, 0, 70))
    assert out.dtype == getattr(torch, query_dtype)
    assert (out.float() - same.float()).abs().max() <= 2e-2


def test_tensors_may_have_any_strides() -> None:
    """Those of one projection, those of a transposed one, and those whose dims are not side by side."""
    layer = spec()
    expected = Sequences(layer, (50,), dtype="bfloat16").whole
    other = Sequences(layer, (50,), dtype="bfloat16")
    joined = torch.cat([other.queries[0], torch.zeros(50, 3, 64, dtype=torch.bfloat16)], 1)
    other.queries[0] = joined[:, :6]
    assert torch.equal(other.attend((0, 0, 50))[0], expected)
    other.queries[0] = joined[:, :6].transpose(0, 1).contiguous().transpose(0, 1)
    assert torch.equal(other.attend((0, 0, 50))[0], expected)
    other.queries[0] = joined[:, :6].transpose(1, 2).contiguous().transpose(1, 2)
    assert torch.equal(other.attend((0, 0, 50))[0], expected)
