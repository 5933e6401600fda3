"""The torch attention backend against a reference without blocks: random layouts, masks and copies."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from corekit.api import BatchLayout, BlockRef, Copy, GroupLayout, KvPlan, LayerSpec
from corekit.builtin import torch_attention
from corekit.builtin.torch_attention import TorchAttention, independent_copies

BLOCK = 4
NUM_BLOCKS = 40
PLAIN = LayerSpec(num_heads=4, num_kv_heads=2, key_dim=8, value_dim=8, scale=0.35)


def dense(query: Tensor, keys: Tensor, values: Tensor, spec: LayerSpec, sinks: Tensor | None) -> Tensor:
    """One row: query [q, heads, key_dim] are the last positions of keys [length, kv_heads, key_dim]. One query and head at a time."""
    length, count = len(keys), len(query)
    out = torch.zeros(count, spec.num_heads, spec.value_dim, dtype=torch.float64)
    for i in range(count):
        position = length - count + i
        seen = [p for p in range(position + 1) if _sees(spec, position, p)]
        for head in range(spec.num_heads):
            kv_head = head * spec.num_kv_heads // spec.num_heads
            scores = [float(query[i, head].double() @ keys[p, kv_head].double()) * spec.scale for p in seen]
            if spec.soft_cap is not None:
                scores = [spec.soft_cap * math.tanh(s / spec.soft_cap) for s in scores]
            extra = [] if sinks is None else [float(sinks[head])]
            top = max(scores + extra)
            weights = [math.exp(s - top) for s in scores]
            total = sum(weights) + sum(math.exp(s - top) for s in extra)
            out[i, head] = sum(w / total * values[p, kv_head].double() for w, p in zip(weights, seen, strict=True))
    return out


def _sees(spec: LayerSpec, query: int, key: int) -> bool:
    in_window = spec.window is None or key > query - spec.window
    return in_window and (spec.chunk is None or key // spec.chunk == query // spec.chunk)


@dataclass
class Row:
    """A sequence that grows step by step, with its true keys and values per layer."""

    table: list[int]
    keys: list[Tensor]
    values: list[Tensor]
    length: int = 0


def layout_of(rows: list[tuple[Row, int]], *, num_padding: int = 0, unwritten: frozenset[int] = frozenset()) -> BatchLayout:
    """Rows that each add so many tokens, those of one token first; then padding rows of one token that own nothing."""
    counts = [count for _, count in rows] + [1] * num_padding
    tables = [row.table for row, _ in rows] + [[]] * num_padding
    width = max(1, *(len(table) for table in tables), 1)
    slots = [row.table[p // BLOCK] * BLOCK + p % BLOCK for row, count in rows for p in range(row.length, row.length + count)] + [-1] * num_padding
    starts = torch.tensor([0, *torch.tensor(counts).cumsum(0).tolist()])
    lens = torch.tensor([row.length + count for row, count in rows] + [0] * num_padding)
    return BatchLayout(
        num_rows=len(counts),
        num_tokens=sum(counts),
        num_decodes=sum(count == 1 for count in counts),
        query_start_loc=starts,
        seq_lens=lens,
        groups=(
            GroupLayout(
                torch.tensor([table + [0] * (width - len(table)) for table in tables]),
                torch.tensor([-1 if i in unwritten else slot for i, slot in enumerate(slots)]),
            ),
        ),
        host_query_start_loc=starts.numpy(),
        host_seq_lens=lens.numpy(),
    )


def backend(*layers: LayerSpec, dtype: str = "float64", poison: bool = True, num_host_blocks: int = 0) -> TorchAttention:
    attention = TorchAttention(layers, device="cpu", poison=poison, block_size=BLOCK)
    attention.allocate_kv(KvPlan(num_blocks=NUM_BLOCKS, num_host_blocks=num_host_blocks, block_size=BLOCK, kv_dtype=dtype, layers=layers))
    return attention


specs = st.builds(
    lambda kv, group, key_dim, value_dim, window, chunk, soft_cap, sinks: LayerSpec(
        num_heads=kv * group,
        num_kv_heads=kv,
        key_dim=key_dim,
        value_dim=value_dim,
        scale=key_dim**-0.5,
        window=window,
        chunk=chunk,
        soft_cap=soft_cap,
        sinks=sinks,
    ),
    st.integers(1, 3),
    st.integers(1, 3),
    st.sampled_from([4, 6]),
    st.sampled_from([4, 10]),
    st.none() | st.integers(1, 9),
    st.none() | st.integers(1, 9),
    st.none() | st.sampled_from([0.5, 30.0]),
    st.booleans(),
)
prompts = st.lists(st.integers(1, 13), min_size=1, max_size=4)


@settings(max_examples=60, deadline=None)
@given(layers=st.lists(specs, min_size=1, max_size=3), lengths=prompts, pieces=st.integers(1, 6), num_padding=st.integers(0, 2), seed=st.integers(0, 2**31))
def test_steps_of_any_shape_equal_dense_attention(layers: list[LayerSpec], lengths: list[int], pieces: int, num_padding: int, seed: int) -> None:
    random = torch.Generator().manual_seed(seed)
    attention = backend(*layers)
    free = (torch.randperm(NUM_BLOCKS, generator=random) + 1).tolist()
    rows = [Row([], [torch.empty(0)] * len(layers), [torch.empty(0)] * len(layers)) for _ in lengths]
    left = [length + 3 for length in lengths]
    for _ in range(12):
        # A prompt goes in by pieces, then three decodes; rows drop out as they end.
        counts = [(row, min(pieces, more - 3) if more > 3 else 1) for row, more in zip(rows, left, strict=True) if more > 0]
        if not counts:
            break
        counts.sort(key=lambda item: item[1] != 1)
        for row, count in counts:
            while len(row.table) * BLOCK < row.length + count:
                row.table.append(free.pop())
        _step(attention, layers, counts, num_padding, random)
        for row, count in counts:
            row.length += count
            left[rows.index(row)] -= count


def _step(attention: TorchAttention, layers: list[LayerSpec], counts: list[tuple[Row, int]], num_padding: int, random: torch.Generator) -> None:
    layout = layout_of(counts, num_padding=num_padding)
    plan = attention.plan(layout)

    def draw(*shape: int) -> Tensor:
        return torch.randn(layout.num_tokens, *shape, generator=random, dtype=torch.float64)

    for index, spec in enumerate(layers):
        query, key, value = draw(spec.num_heads, spec.key_dim), draw(spec.num_kv_heads, spec.key_dim), draw(spec.num_kv_heads, spec.value_dim)
        sinks = torch.randn(spec.num_heads, generator=random, dtype=torch.float64) if spec.sinks else None
        out = attention.run(index, query, key, value, plan, sinks=sinks)
        assert torch.equal(out, attention.run(index, query, key, value, plan, sinks=sinks)), "a second run with equal arguments changes nothing"
        assert out.shape == (layout.num_tokens, spec.num_heads, spec.value_dim)
        at = 0
        for row, count in counts:
            row.keys[index] = torch.cat([row.keys[index], key[at : at + count]]) if row.length else key[at : at + count]
            row.values[index] = torch.cat([row.values[index], value[at : at + count]]) if row.length else value[at : at + count]
            wanted = dense(query[at : at + count], row.keys[index], row.values[index], spec, sinks)
            torch.testing.assert_close(out[at : at + count], wanted, rtol=0, atol=1e-12)
            at += count
        assert not out[at:].isnan().any(), "padding rows are finite"


def _filled(attention: TorchAttention, row: Row, count: int, seed: int, dtype: torch.dtype = torch.float64) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """One prefill of one row in the first layer: query, key, value, result."""
    random = torch.Generator().manual_seed(seed)
    spec = attention._layers[0]
    query, key, value = (
        torch.randn(count, heads, dim, generator=random, dtype=torch.float64).to(dtype)
        for heads, dim in ((spec.num_heads, spec.key_dim), (spec.num_kv_heads, spec.key_dim), (spec.num_kv_heads, spec.value_dim))
    )
    return query, key, value, attention.run(0, query, key, value, attention.plan(layout_of([(row, count)])))


def _row(*table: int) -> Row:
    return Row(list(table), [], [])


@pytest.mark.parametrize(("dtype", "tolerance"), [("float32", 2e-6), ("bfloat16", 2e-2)])
def test_low_precision_caches_stay_within_their_rounding(dtype: str, tolerance: float) -> None:
    query, key, value, out = _filled(backend(PLAIN, dtype=dtype), _row(7, 3, 9), 11, 0, getattr(torch, dtype))
    assert out.dtype == getattr(torch, dtype)
    torch.testing.assert_close(out.double(), dense(query, key, value, PLAIN, None), rtol=0, atol=tolerance)


@pytest.mark.parametrize("limits", [(5, 1 << 16, 1 << 25), (256, 10, 1 << 25), (3, 7, 1 << 25), (256, 1 << 16, 200), (256, 1 << 16, 1)])
def test_cutting_rows_and_batches_into_pieces_changes_nothing(monkeypatch: pytest.MonkeyPatch, limits: tuple[int, int, int]) -> None:
    spec = replace(PLAIN, window=7)
    rows = [_row(i * 4 + 1, i * 4 + 2, i * 4 + 3, i * 4 + 4) for i in range(6)]
    counts = [(row, 1 if i < 4 else 12) for i, row in enumerate(rows)]

    def results() -> Tensor:
        attention = backend(spec)
        for i, row in enumerate(rows):
            row.length = 0
            _filled(attention, row, 3 + i, i)
            row.length = 3 + i if i < 4 else 0
        random = torch.Generator().manual_seed(1)
        shapes = ((spec.num_heads, 8), (spec.num_kv_heads, 8), (spec.num_kv_heads, 8))
        tensors = [torch.randn(28, *shape, generator=random, dtype=torch.float64) for shape in shapes]
        return attention.run(0, tensors[0], tensors[1], tensors[2], attention.plan(layout_of(counts)))

    whole = results()
    monkeypatch.setattr(torch_attention, "MAX_QUERIES", limits[0])
    monkeypatch.setattr(torch_attention, "MAX_POSITIONS", limits[1])
    monkeypatch.setattr(torch_attention, "MAX_SCORES", limits[2])
    torch.testing.assert_close(results(), whole, rtol=0, atol=1e-13)


@pytest.mark.parametrize(("num_rows", "count", "before"), [(6, 8, 8), (1, 16, 8), (12, 1, 7)])
def test_scores_are_bounded_whatever_is_computed_together(monkeypatch: pytest.MonkeyPatch, num_rows: int, count: int, before: int) -> None:
    """Rows of one query too, though their positions are bounded more tightly in earnest."""
    largest = []
    attend = torch_attention._attend

    def spy(query: Tensor, keys: Tensor, *more: object) -> Tensor:
        largest.append(query.shape[0] * query.shape[1] * query.shape[2] * keys.shape[2])
        return attend(query, keys, *more)  # type: ignore[arg-type]

    monkeypatch.setattr(torch_attention, "_attend", spy)
    monkeypatch.setattr(torch_attention, "MAX_SCORES", 300)
    attention = backend(PLAIN, poison=False)
    rows = [_row(*range(1, 8)) for _ in range(num_rows)]
    for row in rows:
        row.length = before
    nothing = torch.zeros(num_rows * count, PLAIN.num_heads, 8, dtype=torch.float64)
    attention.run(0, nothing, None, None, attention.plan(layout_of([(row, count) for row in rows])))
    assert max(largest) <= 300
    assert len(largest) > 1


def test_a_slot_of_minus_one_writes_nothing() -> None:
    attention = backend(PLAIN, poison=False)
    _filled(attention, _row(5, 6), 8, 0)
    before = [tensor.clone() for tensor in attention._device_pools[0] or ()]
    row = _row(5, 6)
    plan = attention.plan(layout_of([(row, 6)], unwritten=frozenset({0, 1, 3, 4, 5})))
    ones = torch.ones(6, 2, 8, dtype=torch.float64)
    attention.run(0, torch.ones(6, 4, 8, dtype=torch.float64), ones, ones, plan)
    for old, new in zip(before, attention._device_pools[0] or (), strict=True):
        changed = (old.view(torch.int64) != new.view(torch.int64)).any(0).any(-1).nonzero().tolist()
        assert changed == [[5, 2]]


def test_unwritten_memory_never_leaks() -> None:
    """Blocks are NaN beyond what was written; a table may also end in blocks that nobody wrote."""
    attention = backend(PLAIN)
    *_, out = _filled(attention, _row(8, 2, 30, 31), 5, 0)
    assert out.isfinite().all()
    pool = attention._device_pools[0]
    assert pool is not None
    assert pool[0][:, 2, 1:].isnan().all(), "the poison is there, so the check above can fail"


def test_layers_that_share_a_cache_read_the_earlier_one() -> None:
    reader = replace(PLAIN, kv_from_layer=0, window=3)
    attention = backend(PLAIN, reader)
    row = _row(4, 2)
    query, key, value, _ = _filled(attention, row, 6, 0)
    out = attention.run(1, query, None, None, attention.plan(layout_of([(row, 6)])))
    torch.testing.assert_close(out, dense(query, key, value, reader, None), rtol=0, atol=1e-12)
    assert attention._device_pools[1] is None


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
copies_of_places = st.lists(st.builds(Copy, places, places), max_size=12)


@settings(max_examples=80, deadline=None)
@given(copies=copies_of_places)
def test_copies_happen_in_program_order(copies: list[Copy]) -> None:
    attention = backend(PLAIN, replace(PLAIN, value_dim=3), num_host_blocks=6)
    shadow: dict[BlockRef, float] = {}
    for on_host, pools in ((False, attention._device_pools), (True, attention._host_pools)):
        for block in range(1, 6):
            mark = shadow[BlockRef(block, on_host)] = block + 10.0 * on_host
            for pool in pools:
                for tensor in pool or ():
                    tensor[:, block] = mark
    attention.copy_blocks(copies)
    for copy in copies:
        shadow[copy.target] = shadow[copy.source]
    for place, mark in shadow.items():
        for pool in attention._host_pools if place.on_host else attention._device_pools:
            assert all((tensor[:, place.block] == mark).all() for tensor in pool or ())


@given(copies=copies_of_places)
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
    attention = backend(replace(PLAIN, sinks=True))
    with pytest.raises(ValueError, match="declared with sinks"):
        _filled(attention, _row(1), 2, 0)


def test_a_block_size_other_than_counted_is_refused() -> None:
    attention = TorchAttention((PLAIN,), device="cpu", poison=False, block_size=16)
    with pytest.raises(ValueError, match="block_size 4"):
        attention.allocate_kv(KvPlan(num_blocks=2, num_host_blocks=0, block_size=4, kv_dtype="float32", layers=(PLAIN,)))
