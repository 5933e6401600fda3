"""Drives an attention backend as the worker does: tables, steps, layouts; and knows what each position holds. Owned by the kit of slot `attention_backend`."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import torch
from torch import Tensor

from corekit.api import AttentionBackend, BatchLayout, GroupLayout, KvPlan, LayerSpec

from .dense_attention import dense_attention

NUM_HOST_BLOCKS = 6


@dataclass
class Row:
    """A sequence that grows step by step, with its true keys and values, by layer."""

    table: list[int]
    keys: list[Tensor]
    values: list[Tensor]
    length: int = 0


@dataclass(frozen=True, kw_only=True)
class Inputs:
    """What one layer is run with, and what came out."""

    query: Tensor
    key: Tensor | None
    value: Tensor | None
    sinks: Tensor | None
    out: Tensor = field(default_factory=lambda: torch.empty(0))


class AttentionRig:
    """Invariant: every row's keys and values are what its blocks hold, as far as the backend is right."""

    def __init__(
        self, backend: AttentionBackend, layers: Sequence[LayerSpec], *, block_size: int, num_blocks: int, dtype: str, device: str, seed: int = 0
    ) -> None:
        self.backend = backend
        self.layers = tuple(layers)
        self.block_size = block_size
        self.num_blocks = num_blocks
        assert isinstance(getattr(torch, dtype, None), torch.dtype), f"dtypes holds {dtype!r}, expected names of torch, such as 'float32'"
        self.dtype: torch.dtype = getattr(torch, dtype)
        self.device = device
        self.random = torch.Generator().manual_seed(seed)
        self.free = (torch.randperm(num_blocks, generator=self.random) + 1).tolist()
        plan = KvPlan(num_blocks=num_blocks, num_host_blocks=NUM_HOST_BLOCKS, block_size=block_size, kv_dtype=dtype, layers=self.layers)
        backend.bytes_per_block(dtype)
        backend.allocate_kv(plan)

    def row(self, num_blocks: int = 0) -> Row:
        table = [self.free.pop() for _ in range(num_blocks)]
        return Row(table, [torch.empty(0)] * len(self.layers), [torch.empty(0)] * len(self.layers))

    def draw(self, *shape: int, size: float = 1.0) -> Tensor:
        """Random numbers in the dtype under test."""
        return (torch.randn(*shape, generator=self.random, dtype=torch.float64) * size).to(self.dtype).to(self.device)

    def inputs(self, layer: int, num_tokens: int, *, size: float = 1.0) -> Inputs:
        spec = self.layers[layer]
        query = self.draw(num_tokens, spec.num_heads, spec.key_dim, size=size)
        own = spec.kv_from_layer is None
        key = self.draw(num_tokens, spec.num_kv_heads, spec.key_dim, size=size) if own else None
        value = self.draw(num_tokens, spec.num_kv_heads, spec.value_dim) if own else None
        return Inputs(query=query, key=key, value=value, sinks=self.draw(spec.num_heads) if spec.sinks else None)

    def layout(
        self, rows: Sequence[tuple[Row, int]], *, num_padding: int = 0, writes: bool = True, wider: int = 0, host_more: int = 0, grow: bool = True
    ) -> BatchLayout:
        """Rows that each add so many tokens, those of one token first; padding rows own nothing and stand last among those.

        grow: a row gets blocks for its new positions. writes: else every slot is -1. wider: columns of block 0 that every table
        is padded with. host_more: by how much the host's lengths are above the device's.
        """
        num_single = sum(count == 1 for _, count in rows)
        assert all(count == 1 for _, count in rows[:num_single]), "rows of one token come first"
        nobody = Row([], [], [], -1)
        padded = [*rows[:num_single], *[(nobody, 1)] * num_padding, *rows[num_single:]]
        slots: list[int] = []
        for row, count in padded:
            while grow and row is not nobody and len(row.table) * self.block_size < row.length + count:
                row.table.append(self.free.pop())
            positions = range(row.length, row.length + count)
            slots += [-1 if row is nobody or not writes else row.table[p // self.block_size] * self.block_size + p % self.block_size for p in positions]
        width = max(len(row.table) for row, _ in padded) + wider
        starts = np.concatenate([[0], np.cumsum([count for _, count in padded])]).astype(np.int64)
        lens = np.array([row.length + count for row, count in padded], np.int64)
        return BatchLayout(
            num_rows=len(padded),
            num_tokens=int(starts[-1]),
            num_decodes=num_single + num_padding,
            query_start_loc=self._sent(starts),
            seq_lens=self._sent(lens),
            groups=(GroupLayout(self._sent([row.table + [0] * (width - len(row.table)) for row, _ in padded]), self._sent(slots)),),
            host_query_start_loc=starts,
            host_seq_lens=lens + host_more,
        )

    def _sent(self, values: Any) -> Tensor:
        return torch.as_tensor(np.asarray(values, np.int64).copy(), device=self.device)

    def run(self, layer: int, inputs: Inputs, plan: Any) -> Inputs:
        """One layer; the result has the shape that the contract says."""
        out = self.backend.run(layer, inputs.query, inputs.key, inputs.value, plan, sinks=inputs.sinks)
        spec = self.layers[layer]
        shape = (len(inputs.query), spec.num_heads, spec.value_dim)
        assert tuple(out.shape) == shape, f"layer {layer}: run gave a tensor of shape {tuple(out.shape)}, expected {shape}: [tokens, num_heads, value_dim]"
        assert out.dtype == inputs.query.dtype, f"layer {layer}: run gave {out.dtype} for a query of {inputs.query.dtype}"
        return replace(inputs, out=out)

    def step(self, rows: Sequence[tuple[Row, int]], *, size: float = 1.0, value: float | None = None, **layout: Any) -> float:
        """Plan once, run every layer, remember what was written; the largest difference of any row and layer to dense attention.

        value: every key and value written is this number.
        """
        given = self.layout(rows, **layout)
        plan = self.backend.plan(given)
        done = []
        for layer in range(len(self.layers)):
            inputs = self.inputs(layer, given.num_tokens, size=size)
            if value is not None and inputs.key is not None and inputs.value is not None:
                inputs = replace(inputs, key=torch.full_like(inputs.key, value), value=torch.full_like(inputs.value, value))
            done.append(self.run(layer, inputs, plan))
        firsts = self.firsts(rows, given)
        for (row, count), first in zip(rows, firsts, strict=True):
            self._remember(row, count, first, done)
        return max(
            self.difference(layer, row, inputs, first, count) for (row, count), first in zip(rows, firsts, strict=True) for layer, inputs in enumerate(done)
        )

    @staticmethod
    def _remember(row: Row, count: int, first: int, done: Sequence[Inputs]) -> None:
        for layer, inputs in enumerate(done):
            if inputs.key is not None and inputs.value is not None:
                new_keys, new_values = inputs.key[first : first + count].cpu(), inputs.value[first : first + count].cpu()
                row.keys[layer] = torch.cat([row.keys[layer], new_keys]) if row.length else new_keys
                row.values[layer] = torch.cat([row.values[layer], new_values]) if row.length else new_values
        row.length += count

    @staticmethod
    def firsts(rows: Sequence[tuple[Row, int]], layout: BatchLayout) -> list[int]:
        """Each row's first token in the packed step; padding rows stand last among those of one token."""
        num_single = sum(count == 1 for _, count in rows)
        starts = layout.host_query_start_loc.tolist()
        return [starts[at if at < num_single else at + layout.num_decodes - num_single] for at in range(len(rows))]

    def difference(self, layer: int, row: Row, done: Inputs, first: int, count: int) -> float:
        """Of the row's last `count` positions, whose tokens begin at `first`, to dense attention: relative to the largest value; infinite for NaN."""
        spec = self.layers[layer]
        source = layer if spec.kv_from_layer is None else spec.kv_from_layer
        tokens = slice(first, first + count)
        sinks = None if done.sinks is None else done.sinks.cpu()
        wanted = dense_attention(done.query[tokens].cpu(), row.keys[source][: row.length], row.values[source][: row.length], spec, sinks)
        difference = (done.out[tokens].cpu().double() - wanted).abs().max() / wanted.abs().max().clamp(min=1.0)
        return float(difference.nan_to_num(nan=float("inf")))
