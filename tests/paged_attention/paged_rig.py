"""What the tests of `cpu-paged` share: a backend with pools on so many threads, and steps whose tensors are drawn once."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from corekit.api import BatchLayout, BuildContext, GroupLayout, KvPlan, LayerSpec, ModelSpec
from corekit.compose.surroundings import thread_pool
from corekit.testing.attention_rig import AttentionRig


def spec(num_heads: int = 6, num_kv_heads: int = 2, key_dim: int = 64, value_dim: int = 64, **changes: Any) -> LayerSpec:
    return LayerSpec(num_heads=num_heads, num_kv_heads=num_kv_heads, key_dim=key_dim, value_dim=value_dim, scale=key_dim**-0.5, **changes)


def build(layers: Sequence[LayerSpec], *, dtype: str = "bfloat16", block_size: int = 16, num_threads: int = 2, **options: Any) -> Any:
    """Without pools yet."""
    from corekit_paged_attention.cpu_paged import CpuPaged
    from corekit_paged_attention.options import CpuPagedOptions

    model = ModelSpec(architecture="test", layers=tuple(layers), vocab_size=64, context_length=4096, hidden_size=32, dtype=dtype)
    context = BuildContext(dtype=dtype, kv_dtype=dtype, block_size=block_size, model_spec=model, pool=thread_pool(num_threads))
    return CpuPaged(context, CpuPagedOptions(poison=True, **options))


def rig_of(*layers: LayerSpec, dtype: str = "bfloat16", block_size: int = 16, num_blocks: int = 80, seed: int = 0, **more: Any) -> AttentionRig:
    backend = build(layers, dtype=dtype, block_size=block_size, **more)
    return AttentionRig(backend, layers, block_size=block_size, num_blocks=num_blocks, dtype=dtype, device="cpu", seed=seed)


class Sequences:
    """Rows whose positions are all written; any part of them can be attended to again, on a backend of its own."""

    def __init__(self, layer: LayerSpec, lengths: Sequence[int], *, dtype: str, **build_options: Any) -> None:
        self.layer, self.dtype = layer, getattr(torch, dtype)
        self.backend = build([layer], dtype=dtype, **build_options)
        self.block_size = build_options.get("block_size", 16)
        counts = [-(-length // self.block_size) for length in lengths]
        random = torch.Generator().manual_seed(3)
        order = torch.randperm(sum(counts), generator=random) + 1
        self.tables = [order[sum(counts[:row]) : sum(counts[: row + 1])] for row in range(len(lengths))]
        self.lengths = list(lengths)
        self.backend.allocate_kv(KvPlan(num_blocks=sum(counts), num_host_blocks=0, block_size=self.block_size, kv_dtype=dtype, layers=(layer,)))
        self.queries = [self._draw(random, length, layer.num_heads, layer.key_dim) for length in lengths]
        keys = [self._draw(random, length, layer.num_kv_heads, layer.key_dim) for length in lengths]
        values = [self._draw(random, length, layer.num_kv_heads, layer.value_dim) for length in lengths]
        self.whole = self._run([(row, 0, length) for row, length in enumerate(lengths)], torch.cat(keys), torch.cat(values))

    def _draw(self, random: torch.Generator, *shape: int) -> Tensor:
        return torch.randn(*shape, generator=random).to(self.dtype)

    def attend(self, *parts: tuple[int, int, int]) -> list[Tensor]:
        """Results of (row, first position, end) each, computed in one step without writing."""
        out = self._run(parts, None, None)
        return list(out.split([end - first for _, first, end in parts]))

    def _run(self, parts: Sequence[tuple[int, int, int]], key: Tensor | None, value: Tensor | None) -> Tensor:
        size, counts = self.block_size, [end - first for _, first, end in parts]
        starts = torch.tensor([0, *counts]).cumsum(0)
        tables = torch.zeros(len(parts), max(len(self.tables[row]) for row, _, _ in parts), dtype=torch.int64)
        for at, (row, _, _) in enumerate(parts):
            tables[at, : len(self.tables[row])] = self.tables[row]
        slots = torch.cat([self.tables[row][(p := torch.arange(first, end)) // size] * size + p % size for row, first, end in parts])
        seq_lens = torch.tensor([end for _, _, end in parts])
        layout = BatchLayout(
            num_rows=len(parts),
            num_tokens=sum(counts),
            num_decodes=sum(count == 1 for count in counts),
            query_start_loc=starts,
            seq_lens=seq_lens,
            groups=(GroupLayout(tables, slots),),
            host_query_start_loc=starts.numpy(),
            host_seq_lens=seq_lens.numpy(),
        )
        query = torch.cat([self.queries[row][first:end] for row, first, end in parts])
        out: Tensor = self.backend.run(0, query, key, value, self.backend.plan(layout))
        return out
