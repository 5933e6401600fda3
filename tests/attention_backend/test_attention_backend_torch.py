"""What is particular to the torch backend: pieces that bound memory, batches of copies, exact bytes, what it refuses. The rest is in the kit."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from corekit.api import BlockRef, Copy, KvPlan, LayerSpec
from corekit.builtin import torch_attention
from corekit.builtin.torch_attention import TorchAttention, independent_copies
from corekit.testing.attention_rig import AttentionRig

BLOCK = 4
PLAIN = LayerSpec(num_heads=4, num_kv_heads=2, key_dim=8, value_dim=8, scale=0.35)


def rig_of(*layers: LayerSpec) -> AttentionRig:
    attention = TorchAttention(layers, device="cpu", poison=True, block_size=BLOCK)
    return AttentionRig(attention, layers, block_size=BLOCK, num_blocks=90, dtype="float64", device="cpu")


@pytest.mark.parametrize("limits", [(5, 1 << 16, 1 << 25), (256, 10, 1 << 25), (3, 7, 1 << 25), (256, 1 << 16, 200), (256, 1 << 16, 1)])
def test_cutting_rows_and_batches_into_pieces_changes_nothing(monkeypatch: pytest.MonkeyPatch, limits: tuple[int, int, int]) -> None:
    for name, limit in zip(("MAX_QUERIES", "MAX_POSITIONS", "MAX_SCORES"), limits, strict=True):
        monkeypatch.setattr(torch_attention, name, limit)
    rig = rig_of(replace(PLAIN, window=7))
    rows = [rig.row() for _ in range(6)]
    assert rig.step([(row, 3 + at) for at, row in enumerate(rows[:4])]) < 1e-13
    assert rig.step([(row, 1 if at < 4 else 12) for at, row in enumerate(rows)]) < 1e-13


@pytest.mark.parametrize(("num_rows", "count", "before"), [(6, 8, 8), (1, 16, 8), (12, 1, 7)])
def test_scores_are_bounded_whatever_is_computed_together(monkeypatch: pytest.MonkeyPatch, num_rows: int, count: int, before: int) -> None:
    """Rows of one query too, though their positions are bounded more tightly in earnest."""
    largest = []
    attend = torch_attention._attend

    def spy(query: Tensor, keys: Tensor, *more: object) -> Tensor:
        largest.append(query.shape[0] * query.shape[1] * query.shape[2] * keys.shape[2])
        return attend(query, keys, *more)  # type: ignore[arg-type]

    rig = rig_of(PLAIN)
    rows = [rig.row() for _ in range(num_rows)]
    rig.step([(row, before) for row in rows])
    monkeypatch.setattr(torch_attention, "_attend", spy)
    monkeypatch.setattr(torch_attention, "MAX_SCORES", 300)
    rig.step([(row, count) for row in rows])
    assert max(largest) <= 300
    assert len(largest) > 1


def test_a_layer_that_shares_a_cache_has_no_pool() -> None:
    rig = rig_of(PLAIN, replace(PLAIN, kv_from_layer=0, window=3))
    assert isinstance(rig.backend, TorchAttention)
    assert rig.backend._device_pools[1] is None


def test_poisoned_pools_are_nan_and_the_null_block_is_zero() -> None:
    rig = rig_of(PLAIN)
    assert isinstance(rig.backend, TorchAttention)
    for tensor in rig.backend._device_pools[0] or ():
        assert tensor[:, 1:].isnan().all()
        assert (tensor[:, 0] == 0).all()


@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "float64"])
def test_bytes_per_block_is_what_one_more_block_allocates(dtype: str) -> None:
    layers = (PLAIN, replace(PLAIN, value_dim=3), replace(PLAIN, kv_from_layer=1, value_dim=3))

    def allocated(num_blocks: int) -> int:
        attention = TorchAttention(layers, device="cpu", poison=False, block_size=BLOCK)
        attention.allocate_kv(KvPlan(num_blocks=num_blocks, num_host_blocks=0, block_size=BLOCK, kv_dtype=dtype, layers=layers))
        return sum(tensor.untyped_storage().nbytes() for pool in attention._device_pools for tensor in pool or ())

    expected = TorchAttention(layers, device="cpu", poison=False, block_size=BLOCK).bytes_per_block(dtype)
    assert allocated(6) - allocated(5) == expected
    assert allocated(5) == 6 * expected, "the null block is the only extra"


places = st.builds(BlockRef, st.integers(1, 5), st.booleans())


@given(copies=st.lists(st.builds(Copy, places, places), max_size=12))
def test_independent_copies_keep_order_and_never_overlap(copies: list[Copy]) -> None:
    batches = list(independent_copies(copies))
    assert [copy for batch in batches for copy in batch] == copies
    for batch in batches:
        for i, copy in enumerate(batch):
            others = batch[:i] + batch[i + 1 :]
            assert not any(copy.target in (other.source, other.target) for other in others)


def test_copies_of_unrelated_blocks_are_one_batch() -> None:
    copies = [Copy(BlockRef(i), BlockRef(i + 10, i % 2 == 0)) for i in range(1, 9)]
    assert len(list(independent_copies(copies))) == 1


@pytest.mark.parametrize(
    ("layers", "words"),
    [
        ((replace(PLAIN, kind="bidirectional"),), "bidirectional"),  # type: ignore[arg-type]
        ((replace(PLAIN, num_heads=3),), "3 heads"),
        ((PLAIN, replace(PLAIN, kv_from_layer=1)), "kv_from_layer 1"),
    ],
)
def test_what_it_cannot_compute_is_refused_when_built(layers: tuple[LayerSpec, ...], words: str) -> None:
    with pytest.raises(ValueError, match=words):
        TorchAttention(layers, device="cpu", poison=False)


def test_sinks_must_come_exactly_where_they_were_declared() -> None:
    rig = rig_of(replace(PLAIN, sinks=True))
    layout = rig.layout([(rig.row(), 2)])
    inputs = replace(rig.inputs(0, 2), sinks=None)
    with pytest.raises(ValueError, match="declared with sinks"):
        rig.run(0, inputs, rig.backend.plan(layout))


def test_a_block_size_other_than_counted_is_refused() -> None:
    attention = TorchAttention((PLAIN,), device="cpu", poison=False, block_size=16)
    with pytest.raises(ValueError, match="block_size 4"):
        attention.allocate_kv(KvPlan(num_blocks=2, num_host_blocks=0, block_size=4, kv_dtype="float32", layers=(PLAIN,)))
