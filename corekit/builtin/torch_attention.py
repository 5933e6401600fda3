"""The reference attention backend: gather the blocks of a row, then dense attention, in plain torch operations.

Runs wherever torch does and in every dtype; fast backends are held to it. Knows nothing of requests, prefixes or models.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import groupby
from typing import NamedTuple

import torch
from torch import Tensor

from corekit.api import BatchLayout, BlockRef, Copy, KvPlan, LayerSpec

MAX_QUERIES = 256
"""Queries of a row that are computed at once; each piece reads only the positions it can see."""
MAX_POSITIONS = 1 << 16
"""Positions gathered at once: bounds the copies to tens of megabytes."""
MAX_POISONED = 1 << 14
"""Blocks of a pool that begin as NaN when it is asked for: allocators begin with the lowest, and gigabytes of swap space would take long."""
MAX_SCORES = 1 << 25
"""Scores at once, queries times keys times heads: 128 megabytes of float32. Longer contexts are computed in shorter pieces."""


class _View(NamedTuple):
    """Which positions a layer sees; layers of equal views share masks and indices."""

    group: int
    window: int | None
    chunk: int | None


class _Segment(NamedTuple):
    """Consecutive queries of one row: `size` tokens from `token` on, the last at position `end - 1`."""

    row: int
    token: int
    size: int
    end: int


@dataclass(frozen=True, slots=True)
class _Part:
    """Segments of equal query count, computed as one dense batch."""

    tokens: Tensor | None
    """[rows * queries] where their queries stand; None: all tokens of the step, in order."""
    num_rows: int
    slots: Tensor
    """[rows * keys] slots to gather; a position that no query of its row may see reads the null block, which is zero."""
    hidden: Tensor | None
    """[rows, 1, queries, keys] bool, True where a query does not see a key; None: nowhere."""


@dataclass(frozen=True, slots=True)
class _Writes:
    tokens: Tensor | None
    """The tokens that write; None: all."""
    slots: Tensor


@dataclass(frozen=True, slots=True)
class TorchPlan:
    """Everything about a step that does not depend on the layer's tensors."""

    writes: tuple[_Writes, ...]
    """One per group."""
    parts: dict[_View, tuple[_Part, ...]]


class TorchAttention:
    """Slot `attention_backend`. What a query may not see is never read: it is gathered from the null block, which stays zero.

    Pools are head-major, [kv_heads, blocks, block_size, dim], so that a gathered batch enters the matrix products without
    another copy. Scores and sums are at least float32 whatever the dtype of the cache.
    """

    def __init__(self, layers: tuple[LayerSpec, ...], *, device: str, poison: bool, block_size: int | None = None) -> None:
        _check(layers)
        self._layers = layers
        self._device = torch.device(device)
        self._poison = poison
        self._block_size = block_size
        self._num_heads = max((spec.num_heads for spec in layers), default=1)
        self._views = tuple(_View(spec.group, spec.window, spec.chunk) for spec in layers)
        self._device_pools: tuple[tuple[Tensor, Tensor] | None, ...] = ()
        self._host_pools: tuple[tuple[Tensor, Tensor] | None, ...] = ()
        self._scratch: dict[str, Tensor] = {}

    def bytes_per_block(self, kv_dtype: str) -> int:
        if self._block_size is None:
            raise ValueError("bytes_per_block was asked before the block size is known: build TorchAttention with block_size or allocate first")
        per_token = sum(spec.num_kv_heads * (spec.key_dim + spec.value_dim) for spec in self._layers if spec.kv_from_layer is None)
        return per_token * self._block_size * _dtype(kv_dtype).itemsize

    def allocate_kv(self, plan: KvPlan) -> None:
        if plan.layers != self._layers:
            raise ValueError("allocate_kv got other layers than the backend was built for")
        if self._block_size not in (None, plan.block_size):
            raise ValueError(f"allocate_kv got block_size {plan.block_size}, but bytes_per_block counted with {self._block_size}")
        self._block_size = plan.block_size
        pinned = self._device.type == "cuda"
        self._device_pools = self._pools(plan, plan.num_blocks + 1, self._device, pinned=False)
        self._host_pools = self._pools(plan, plan.num_host_blocks, torch.device("cpu"), pinned=pinned)
        for pool in self._device_pools:
            for tensor in pool or ():
                tensor[:, 0] = 0

    def _pools(self, plan: KvPlan, num_blocks: int, device: torch.device, *, pinned: bool) -> tuple[tuple[Tensor, Tensor] | None, ...]:
        def pool(heads: int, dim: int) -> Tensor:
            tensor = torch.empty(heads, num_blocks, plan.block_size, dim, dtype=_dtype(plan.kv_dtype), device=device, pin_memory=pinned)
            if self._poison:
                tensor[:, :MAX_POISONED].fill_(float("nan"))
            return tensor

        return tuple(
            None if spec.kv_from_layer is not None else (pool(spec.num_kv_heads, spec.key_dim), pool(spec.num_kv_heads, spec.value_dim))
            for spec in self._layers
        )

    def copy_blocks(self, copies: Sequence[Copy]) -> None:
        for batch in independent_copies(copies):
            for (from_host, to_host), group in groupby(sorted(batch, key=_direction), key=_direction):
                pairs = list(group)
                sources = self._host_pools if from_host else self._device_pools
                targets = self._host_pools if to_host else self._device_pools
                source_ids = [copy.source.block for copy in pairs]
                target_ids = [copy.target.block for copy in pairs]
                for source_pool, target_pool in zip(sources, targets, strict=True):
                    for source, target in zip(source_pool or (), target_pool or (), strict=True):
                        blocks = source.index_select(1, torch.tensor(source_ids, device=source.device))
                        target.index_copy_(1, torch.tensor(target_ids, device=target.device), blocks.to(target.device))

    def plan(self, layout: BatchLayout) -> TorchPlan:
        # The device's own numbers, not the host's bounds: exact for every layout, at the price of waiting for the device here.
        starts = layout.query_start_loc[: layout.num_rows + 1].tolist()
        ends = layout.seq_lens[: layout.num_rows].tolist()
        batches = list(_batches(_segments(starts, ends, self._num_heads), self._num_heads))
        parts = {view: tuple(self._part(batch, layout, view) for batch in batches) for view in dict.fromkeys(self._views)}
        return TorchPlan(tuple(_writes(group.slot_mapping[: layout.num_tokens]) for group in layout.groups), parts)

    def _part(self, batch: list[_Segment], layout: BatchLayout, view: _View) -> _Part:
        def column(values: Iterable[int]) -> Tensor:
            return torch.tensor(list(values), device=self._device).unsqueeze(1)

        count, block_size = batch[0].size, self._block_size
        assert block_size is not None
        lows = [_lowest(segment.end - count, view) for segment in batch]
        num_keys = max(1, *(segment.end - low for segment, low in zip(batch, lows, strict=True)))
        ends = column(segment.end for segment in batch)
        keys = column(lows) + torch.arange(num_keys, device=self._device)
        queries = ends - count + torch.arange(count, device=self._device)

        tables = layout.groups[view.group].block_tables[column(segment.row for segment in batch).squeeze(1)]
        blocks = tables.gather(1, (keys // block_size).clamp_(max=tables.shape[1] - 1))
        slots = (blocks * block_size + keys % block_size).masked_fill_(keys >= ends, 0)

        key, query = keys[:, None, None, :], queries[:, None, :, None]
        sees = key <= query
        if view.window is not None:
            sees &= key > query - view.window
        if view.chunk is not None:
            sees &= key // view.chunk == query // view.chunk
        # A padding row sees nothing: let it see one key, which is a zero of the null block, so that its result is zero.
        sees[..., :1] |= ~sees.any(-1, keepdim=True)

        first = column(segment.token for segment in batch)
        tokens = (first + torch.arange(count, device=self._device)).flatten()
        in_order = [segment.token for segment in batch] == list(range(0, layout.num_tokens, count))
        return _Part(None if in_order else tokens, len(batch), slots.flatten(), None if bool(sees.all()) else ~sees)

    def run(self, layer: int, query: Tensor, key: Tensor | None, value: Tensor | None, plan: TorchPlan, *, sinks: Tensor | None = None) -> Tensor:
        spec = self._layers[layer]
        if spec.sinks != (sinks is not None):
            raise ValueError(f"layer {layer} was declared {'with' if spec.sinks else 'without'} sinks, but run got {'none' if sinks is None else 'some'}")
        pool = self._device_pools[layer if spec.kv_from_layer is None else spec.kv_from_layer]
        assert pool is not None
        if key is not None and value is not None:
            _write(pool, key, value, plan.writes[spec.group])
        keys, values = (tensor.flatten(1, 2) for tensor in pool)
        out = query.new_zeros(len(query), spec.num_heads, spec.value_dim)
        for part in plan.parts[self._views[layer]]:
            chosen = query if part.tokens is None else query.index_select(0, part.tokens)
            by_row = chosen.view(part.num_rows, -1, spec.num_heads, spec.key_dim)
            result = _attend(by_row, self._gather("keys", keys, part), self._gather("values", values, part), part.hidden, spec, sinks).to(query.dtype)
            if part.tokens is None:
                return result
            out.index_copy_(0, part.tokens, result)
        return out

    def _gather(self, name: str, pool: Tensor, part: _Part) -> Tensor:
        """[kv_heads, rows, keys, dim]; valid until the next gather of that name. Fresh memory each time would cost more than the copy."""
        shape = (len(pool), len(part.slots), pool.shape[2])
        scratch = self._scratch.get(name)
        if scratch is None or scratch.numel() < math.prod(shape):
            scratch = self._scratch[name] = pool.new_empty(math.prod(shape))
        gathered = scratch[: math.prod(shape)].view(shape)
        torch.index_select(pool, 1, part.slots, out=gathered)
        return gathered.view(len(pool), part.num_rows, -1, pool.shape[2])


def independent_copies(copies: Sequence[Copy]) -> Iterator[list[Copy]]:
    """Cut a list of copies into runs whose members may be made in any order: no place is written and also read or written."""
    batch: list[Copy] = []
    read: set[BlockRef] = set()
    written: set[BlockRef] = set()
    for copy in copies:
        if copy.source in written or copy.target in written or copy.target in read:
            yield batch
            batch, read, written = [], set(), set()
        batch.append(copy)
        read.add(copy.source)
        written.add(copy.target)
    if batch:
        yield batch


def _direction(copy: Copy) -> tuple[bool, bool]:
    return copy.source.on_host, copy.target.on_host


def _check(layers: tuple[LayerSpec, ...]) -> None:
    for index, spec in enumerate(layers):
        if spec.kind != "causal":
            raise ValueError(f"layer {index}: attention of kind {spec.kind!r}; the torch backend computes 'causal' only")
        if spec.num_heads % spec.num_kv_heads:
            raise ValueError(f"layer {index}: {spec.num_heads} heads do not divide into {spec.num_kv_heads} groups of equal size")
        if spec.kv_from_layer is not None and not (0 <= spec.kv_from_layer < index and layers[spec.kv_from_layer].kv_from_layer is None):
            raise ValueError(f"layer {index}: kv_from_layer {spec.kv_from_layer} is not an earlier layer with a cache of its own")


def _dtype(name: str) -> torch.dtype:
    dtype = getattr(torch, name, None)
    if not isinstance(dtype, torch.dtype) or not dtype.is_floating_point:
        raise ValueError(f"kv_dtype {name!r} is no floating-point dtype of torch, such as 'float32' or 'bfloat16'")
    return dtype


def _lowest(position: int, view: _View) -> int:
    """The first position that a query at `position` may see."""
    after_window = 0 if view.window is None else position - view.window + 1
    in_chunk = 0 if view.chunk is None else position // view.chunk * view.chunk
    return max(0, after_window, in_chunk)


def _segments(starts: list[int], ends: list[int], num_heads: int) -> Iterator[_Segment]:
    for row, end in enumerate(ends):
        count = starts[row + 1] - starts[row]
        most = max(1, min(MAX_QUERIES, MAX_SCORES // (num_heads * max(1, end))))
        for first in range(0, count, most):
            size = min(most, count - first)
            yield _Segment(row, starts[row] + first, size, end - count + first + size)


def _batches(segments: Iterable[_Segment], num_heads: int) -> Iterator[list[_Segment]]:
    """Segments to compute together: of one query, padded to the longest; of more, only those of exactly equal shape."""
    shapes: dict[tuple[int, int], list[_Segment]] = {}
    for segment in segments:
        shapes.setdefault((segment.size, 0 if segment.size == 1 else segment.end), []).append(segment)

    def room(longest: int, size: int) -> int:
        keys = max(1, longest)
        return max(1, min(MAX_POSITIONS // keys, MAX_SCORES // (keys * size * num_heads)))

    for (size, _), shape in shapes.items():
        if len(shape) <= room(max(segment.end for segment in shape), size):
            yield shape
            continue
        shape.sort(key=lambda segment: -segment.end)
        while shape:
            count = room(shape[0].end, size)
            yield shape[:count]
            shape = shape[count:]


def _writes(slots: Tensor) -> _Writes:
    kept = (slots >= 0).nonzero().squeeze(1)
    return _Writes(None, slots) if len(kept) == len(slots) else _Writes(kept, slots[kept])


def _write(pool: tuple[Tensor, Tensor], key: Tensor, value: Tensor, writes: _Writes) -> None:
    for tensor, new in zip(pool, (key, value), strict=True):
        chosen = new if writes.tokens is None else new.index_select(0, writes.tokens)
        tensor.flatten(1, 2).index_copy_(1, writes.slots, chosen.transpose(0, 1).to(tensor.dtype))


def _attend(query: Tensor, keys: Tensor, values: Tensor, hidden: Tensor | None, spec: LayerSpec, sinks: Tensor | None) -> Tensor:
    """query [rows, queries, heads, dim], keys and values [kv_heads, rows, keys, dim] -> [rows * queries, heads, value_dim]."""
    rows, queries = query.shape[:2]
    per_group = spec.num_heads // spec.num_kv_heads
    dtype = torch.promote_types(torch.promote_types(query.dtype, keys.dtype), torch.float32)
    grouped = query.view(rows, queries, spec.num_kv_heads, per_group, spec.key_dim).permute(2, 0, 3, 1, 4).to(dtype)
    flat = grouped.reshape(spec.num_kv_heads * rows, per_group * queries, spec.key_dim)
    scores = torch.bmm(flat, keys.flatten(0, 1).to(dtype).transpose(1, 2)).mul_(spec.scale)
    scores = scores.view(spec.num_kv_heads, rows, per_group, queries, -1)
    if spec.soft_cap is not None:
        scores.div_(spec.soft_cap).tanh_().mul_(spec.soft_cap)
    if hidden is not None:
        scores.masked_fill_(hidden, float("-inf"))
    if sinks is None:
        weights = scores.softmax(-1)
    else:
        sink = sinks.to(dtype).view(spec.num_kv_heads, 1, per_group, 1, 1).expand(-1, rows, -1, queries, -1)
        weights = torch.cat([scores, sink], -1).softmax(-1)[..., :-1]
    result = torch.bmm(weights.flatten(2, 3).flatten(0, 1), values.flatten(0, 1).to(dtype))
    result = result.view(spec.num_kv_heads, rows, per_group, queries, spec.value_dim).permute(1, 3, 0, 2, 4)
    return result.reshape(rows * queries, spec.num_heads, spec.value_dim)
