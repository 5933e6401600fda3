"""A second backend, one row and one copy at a time, and the one of the page, which wraps another: right parts that the kit must accept."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from typing import Any

import torch
from torch import Tensor

from corekit.api import BatchLayout, BuildContext, Copy, KvPlan, LayerSpec, Provider


@dataclass
class Part:
    """One row of a step: its tokens, and the slots of its positions."""

    first: int
    count: int
    length: int
    slots: Tensor


class Plain:
    """Slot-major pools, [slots, kv_heads, dim]. The methods below `run` are where an author may slip."""

    def __init__(self, layers: tuple[LayerSpec, ...], block_size: int) -> None:
        self.layers = layers
        self.block_size = block_size
        self.pools: list[dict[bool, tuple[Tensor, Tensor]] | None] = []

    def bytes_per_block(self, kv_dtype: str) -> int:
        per_token = sum(spec.num_kv_heads * (spec.key_dim + spec.value_dim) for spec in self.layers if spec.kv_from_layer is None)
        return per_token * self.block_size * int(getattr(torch, kv_dtype).itemsize)

    def allocate_kv(self, plan: KvPlan) -> None:
        def pools(spec: LayerSpec, num_blocks: int) -> tuple[Tensor, Tensor]:
            slots, dtype = num_blocks * plan.block_size, getattr(torch, plan.kv_dtype)
            return torch.empty(slots, spec.num_kv_heads, spec.key_dim, dtype=dtype), torch.empty(slots, spec.num_kv_heads, spec.value_dim, dtype=dtype)

        for spec in self.layers:
            own = spec.kv_from_layer is None
            self.pools.append({False: pools(spec, plan.num_blocks + 1), True: pools(spec, plan.num_host_blocks)} if own else None)

    def copy_blocks(self, copies: Sequence[Copy]) -> None:
        for pools in self.pools:
            for copy in copies if pools else ():
                for source, target in zip(pools[copy.source.on_host], pools[copy.target.on_host], strict=True):
                    target[self.block(copy.target.block)] = source[self.block(copy.source.block)].clone()

    def block(self, block: int) -> slice:
        return slice(block * self.block_size, (block + 1) * self.block_size)

    def plan(self, layout: BatchLayout) -> Any:
        starts, (group,) = layout.query_start_loc.tolist(), layout.groups
        lengths = self.lengths(layout)
        parts = []
        for row in range(layout.num_rows):
            slots = (group.block_tables[row][:, None] * self.block_size + torch.arange(self.block_size)).flatten()
            parts.append(Part(starts[row], starts[row + 1] - starts[row], lengths[row], slots))
        return layout.num_tokens, group.slot_mapping, parts

    def lengths(self, layout: BatchLayout) -> list[int]:
        return layout.seq_lens.tolist()

    def run(self, layer: int, query: Tensor, key: Tensor | None, value: Tensor | None, plan: Any, *, sinks: Tensor | None = None) -> Tensor:
        num_tokens, slot_mapping, parts = plan
        spec = self.layers[layer]
        pools = self.pools[self.source(layer)]
        assert pools is not None
        if key is not None and value is not None:
            self.write(pools[False], key, value, slot_mapping)
        out = query.new_zeros(num_tokens, spec.num_heads, spec.value_dim)
        for part in parts:
            if part.length:
                mine = slice(part.first, part.first + part.count)
                out[mine] = self.attend(query[mine], part, pools[False], spec, sinks).to(query.dtype)
        return out

    def source(self, layer: int) -> int:
        own = self.layers[layer].kv_from_layer
        return layer if own is None else own

    def write(self, pools: tuple[Tensor, Tensor], key: Tensor, value: Tensor, slot_mapping: Tensor) -> None:
        kept = slot_mapping >= 0
        for pool, new in zip(pools, (key, value), strict=True):
            pool[slot_mapping[kept]] = new[kept].to(pool.dtype)

    def attend(self, query: Tensor, part: Part, pools: tuple[Tensor, Tensor], spec: LayerSpec, sinks: Tensor | None) -> Tensor:
        dtype = torch.promote_types(query.dtype, torch.float32)
        keys, values = (pool[part.slots[: part.length]].to(dtype)[:, self.kv_heads(spec)] for pool in pools)
        scores = torch.einsum("qhd,khd->hqk", query.to(dtype), keys) * spec.scale
        if spec.soft_cap is not None:
            scores = spec.soft_cap * torch.tanh(scores / spec.soft_cap)
        key, position = torch.arange(part.length), torch.arange(part.length - part.count, part.length)[:, None]
        scores = scores.masked_fill(~self.sees(key, position, spec), float("-inf"))
        if sinks is not None:
            scores = torch.cat([scores, sinks.to(dtype)[:, None, None].expand(-1, part.count, 1)], -1)
        return torch.einsum("hqk,khd->qhd", self.softmax(scores)[..., : part.length], values)

    def kv_heads(self, spec: LayerSpec) -> Tensor:
        return torch.arange(spec.num_heads) // (spec.num_heads // spec.num_kv_heads)

    def sees(self, key: Tensor, position: Tensor, spec: LayerSpec) -> Tensor:
        seen = key <= position
        if spec.window is not None:
            seen = seen & (key > position - spec.window)
        if spec.chunk is not None:
            seen = seen & (key // spec.chunk == position // spec.chunk)
        return seen

    def softmax(self, scores: Tensor) -> Tensor:
        return scores.softmax(-1)


def plain_provider(kind: type[Plain]) -> Provider[Any]:
    def build(context: BuildContext, options: None) -> Plain:
        assert context.model_spec is not None
        return kind(context.model_spec.layers, context.block_size)

    return Provider(name="plain", api=1, summary="one row after the other, for tests", build=build)


PLAIN = plain_provider(Plain)
PAGE = Path(__file__).resolve().parents[2] / "docs" / "slots" / "attention_backend.md"


def block(name: str) -> str:
    """The file of that name, as the slot's page shows it."""
    (code,) = re.findall(rf"`{re.escape(name)}`:\n\n```\w+\n(.*?)^```$", PAGE.read_text("utf-8"), re.DOTALL | re.MULTILINE)
    return str(code)


def example() -> Any:
    """`logging_attention.py`, as a module."""
    module = ModuleType("logging_attention")
    exec(compile(block("logging_attention.py"), str(PAGE), "exec"), module.__dict__)
    return module


LOGGING = example().LOGGING
