"""Plausibly broken attention backends, each with the law of the kit that must catch it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import groupby
from typing import Any

import torch
from plain_attention import Part, Plain, plain_provider
from torch import Tensor

from corekit.api import BatchLayout, Copy, KvPlan, KvTensor, KvView, LayerSpec, Provider

# What a layer says


class WindowPlusOne(Plain):
    """A window of five positions before one's own."""

    def sees(self, key: Tensor, position: Tensor, spec: LayerSpec) -> Tensor:
        return super().sees(key, position, spec if spec.window is None else replace(spec, window=spec.window + 1))


class ChunkAsWindow(Plain):
    def sees(self, key: Tensor, position: Tensor, spec: LayerSpec) -> Tensor:
        return super().sees(key, position, spec if spec.chunk is None else replace(spec, chunk=None, window=spec.chunk))


class CapBeforeScale(Plain):
    """Caps what was not scaled yet."""

    def attend(self, query: Tensor, part: Part, pools: tuple[Tensor, Tensor], spec: LayerSpec, sinks: Tensor | None) -> Tensor:
        if spec.soft_cap is not None:
            spec = replace(spec, soft_cap=spec.soft_cap * spec.scale)
        return super().attend(query, part, pools, spec, sinks)


class ForgetsSinks(Plain):
    def attend(self, query: Tensor, part: Part, pools: tuple[Tensor, Tensor], spec: LayerSpec, sinks: Tensor | None) -> Tensor:
        return super().attend(query, part, pools, spec, None)


class ReadsTheLayerBefore(Plain):
    """Shares the cache of the layer just before, whatever the number says."""

    def source(self, layer: int) -> int:
        return layer if self.layers[layer].kv_from_layer is None else layer - 1


class OneMask(Plain):
    """Takes the window of the first layer for that of all."""

    def attend(self, query: Tensor, part: Part, pools: tuple[Tensor, Tensor], spec: LayerSpec, sinks: Tensor | None) -> Tensor:
        return super().attend(query, part, pools, replace(spec, window=self.layers[0].window), sinks)


class OneDimension(Plain):
    """Keys and values in one pool: values are cut to the dimension of keys."""

    def run(self, layer: int, query: Tensor, key: Tensor | None, value: Tensor | None, plan: Any, *, sinks: Tensor | None = None) -> Tensor:
        return super().run(layer, query, key, value, plan, sinks=sinks)[..., : self.layers[layer].key_dim]


class Interleaved(Plain):
    """Head h reads KV head h modulo their number."""

    def kv_heads(self, spec: LayerSpec) -> Tensor:
        return torch.arange(spec.num_heads) % spec.num_kv_heads


class UsualScale(Plain):
    """The scale that attention usually has."""

    def attend(self, query: Tensor, part: Part, pools: tuple[Tensor, Tensor], spec: LayerSpec, sinks: Tensor | None) -> Tensor:
        return super().attend(query, part, pools, replace(spec, scale=spec.key_dim**-0.5), sinks)


# What a step is made of


class ForgetsPast(Plain):
    """Positions of a chunk count from the chunk's own begin."""

    def sees(self, key: Tensor, position: Tensor, spec: LayerSpec) -> Tensor:
        return super().sees(key, position - position[0] if len(position) > 1 else position, spec)


class DecodesOnly(Plain):
    """Takes a row of one token for a decode, which has a past."""

    def attend(self, query: Tensor, part: Part, pools: tuple[Tensor, Tensor], spec: LayerSpec, sinks: Tensor | None) -> Tensor:
        if part.length == 1:
            return query.new_zeros(1, spec.num_heads, spec.value_dim)
        return super().attend(query, part, pools, spec, sinks)


class LastPartition(Plain):
    """Long rows are cut into partitions of 512 positions, and the last one wins."""

    def sees(self, key: Tensor, position: Tensor, spec: LayerSpec) -> Tensor:
        seen = super().sees(key, position, spec)
        return seen & (key >= 512) if len(key) > 512 and len(position) == 1 else seen


class WholeBlocks(Plain):
    """Reads whole blocks and gives what lies beyond no weight: zero times NaN is NaN."""

    def attend(self, query: Tensor, part: Part, pools: tuple[Tensor, Tensor], spec: LayerSpec, sinks: Tensor | None) -> Tensor:
        out = super().attend(query, part, pools, spec, sinks)
        beyond = pools[1][part.slots[part.length : -(-part.length // self.block_size) * self.block_size]]
        return out + (beyond * 0).sum().to(out.dtype)


class LastSlot(Plain):
    """-1 is an index like any other."""

    def write(self, pools: tuple[Tensor, Tensor], key: Tensor, value: Tensor, slot_mapping: Tensor) -> None:
        for pool, new in zip(pools, (key, value), strict=True):
            pool[slot_mapping] = new.to(pool.dtype)


class SkipsPadding(Plain):
    """Leaves out padding rows, and forgets that their tokens have places in the result."""

    def run(self, layer: int, query: Tensor, key: Tensor | None, value: Tensor | None, plan: Any, *, sinks: Tensor | None = None) -> Tensor:
        out = super().run(layer, query, key, value, plan, sinks=sinks)
        rows = [out[part.first : part.first + part.count] for part in plan[2] if part.length]
        return torch.cat([*rows, out.new_zeros(len(out) - sum(map(len, rows)), *out.shape[1:])])


class FullTables(Plain):
    """Takes the last block of a table for the last of its row."""

    def lengths(self, layout: BatchLayout) -> list[int]:
        width = layout.groups[0].block_tables.shape[1] * self.block_size
        return [length if width - length <= 2 * self.block_size else length + self.block_size for length in layout.seq_lens.tolist()]


class HostLengths(Plain):
    """Trusts the lengths on the host."""

    def lengths(self, layout: BatchLayout) -> list[int]:
        return [int(length) for length in layout.host_seq_lens]


class OneResult(Plain):
    """Every run writes into the same result, to save memory."""

    scratch: Tensor | None = None

    def run(self, layer: int, query: Tensor, key: Tensor | None, value: Tensor | None, plan: Any, *, sinks: Tensor | None = None) -> Tensor:
        out = super().run(layer, query, key, value, plan, sinks=sinks)
        if self.scratch is None or self.scratch.shape != out.shape or self.scratch.dtype != out.dtype:
            self.scratch = torch.empty_like(out)
        return self.scratch.copy_(out)


class ScalesInPlace(Plain):
    def run(self, layer: int, query: Tensor, key: Tensor | None, value: Tensor | None, plan: Any, *, sinks: Tensor | None = None) -> Tensor:
        out = super().run(layer, query, key, value, plan, sinks=sinks)
        query.mul_(self.layers[layer].scale)
        return out


class CopiesByDirection(Plain):
    """Groups copies by where they come from and go to."""

    def copy_blocks(self, copies: Sequence[Copy]) -> None:
        def direction(copy: Copy) -> tuple[bool, bool]:
            return copy.source.on_host, copy.target.on_host

        for _, group in groupby(sorted(copies, key=direction), key=direction):
            super().copy_blocks(list(group))


class LoudestOfAll(Plain):
    """One maximum for the whole step: quiet rows vanish beside loud ones."""

    def run(self, layer: int, query: Tensor, key: Tensor | None, value: Tensor | None, plan: Any, *, sinks: Tensor | None = None) -> Tensor:
        self.loudest = float(query.norm(dim=-1).max())
        return super().run(layer, query, key, value, plan, sinks=sinks)

    def softmax(self, scores: Tensor) -> Tensor:
        if self.loudest < 30:
            return scores.softmax(-1)
        weights = (scores - self.loudest * 3).exp()
        return weights / weights.sum(-1, keepdim=True)


class PlainExp(Plain):
    def softmax(self, scores: Tensor) -> Tensor:
        return scores.exp() / scores.exp().sum(-1, keepdim=True)


class Views(Plain):
    """Lets the model write its pools; of each view heads and tokens are exchanged, where that stays within a block."""

    kv_views: tuple[KvView | None, ...] = ()

    def allocate_kv(self, plan: KvPlan) -> None:
        super().allocate_kv(plan)
        self.kv_views = tuple(self.view(spec, plan, pools) for spec, pools in zip(self.layers, self.pools, strict=True))

    def view(self, spec: LayerSpec, plan: KvPlan, pools: dict[bool, tuple[Tensor, Tensor]] | None) -> KvView | None:
        if pools is None:
            return None
        keys, values = (
            KvTensor(
                address=pool.data_ptr(),
                block_stride=plan.block_size * spec.num_kv_heads * dim,
                head_stride=spec.num_kv_heads * dim,
                token_stride=dim,
                dim_stride=1,
            )
            for pool, dim in zip(pools[False], (spec.key_dim, spec.value_dim), strict=True)
        )
        return KvView(
            key=keys,
            value=values,
            dtype=plan.kv_dtype,
            block_size=plan.block_size,
            num_blocks=plan.num_blocks + 1,
            num_kv_heads=spec.num_kv_heads,
            key_dim=spec.key_dim,
            value_dim=spec.value_dim,
        )


class KeysOnly(Plain):
    """Counts the bytes of keys and forgets values."""

    def bytes_per_block(self, kv_dtype: str) -> int:
        return super().bytes_per_block(kv_dtype) // 2


class SmallPool(Plain):
    """Wraps around at 12 blocks: too small a type for a block's number."""

    def allocate_kv(self, plan: KvPlan) -> None:
        super().allocate_kv(plan)
        self.wraps = plan.num_blocks < 20  # only pools as small as an engine's

    def plan(self, layout: BatchLayout) -> Any:
        num_tokens, slot_mapping, parts = super().plan(layout)
        if self.wraps:
            most = 12 * self.block_size
            slot_mapping = torch.where(slot_mapping >= most, slot_mapping - most + self.block_size, slot_mapping)
            for part in parts:
                part.slots = torch.where(part.slots >= most, part.slots - most + self.block_size, part.slots)
        return num_tokens, slot_mapping, parts


@dataclass(frozen=True)
class Mutant:
    part: type[Plain]
    law: str
    features: frozenset[str] | None = None

    @property
    def provider(self) -> Provider[Any]:
        return plain_provider(self.part)


MUTANTS = [
    Mutant(WindowPlusOne, "test_window"),
    Mutant(ChunkAsWindow, "test_chunk"),
    Mutant(CapBeforeScale, "test_soft_cap"),
    Mutant(ForgetsSinks, "test_sinks"),
    Mutant(ReadsTheLayerBefore, "test_kv_of_an_earlier_layer"),
    Mutant(OneMask, "test_what_layers_ask_for_together"),
    Mutant(OneDimension, "test_values_of_another_dimension"),
    Mutant(Plain, "test_what_it_cannot_do_is_refused", frozenset({"window"})),
    Mutant(ForgetsPast, "test_steps_of_any_shape"),
    Mutant(Interleaved, "test_query_heads_share_kv_heads"),
    Mutant(UsualScale, "test_scale"),
    Mutant(DecodesOnly, "test_a_prompt_of_one_token"),
    Mutant(LastPartition, "test_long_rows"),
    Mutant(WholeBlocks, "test_unwritten_memory_never_leaks"),
    Mutant(LastSlot, "test_a_slot_of_minus_one_writes_nothing"),
    Mutant(SkipsPadding, "test_padding_rows_affect_nothing"),
    Mutant(FullTables, "test_padding_of_tables_affects_nothing"),
    Mutant(HostLengths, "test_lengths_on_the_host_may_be_upper_bounds"),
    Mutant(OneResult, "test_a_run_may_be_repeated"),
    Mutant(ScalesInPlace, "test_arguments_are_left_alone"),
    Mutant(CopiesByDirection, "test_copies_are_made_in_program_order"),
    Mutant(LoudestOfAll, "test_rows_do_not_depend_on_each_other"),
    Mutant(PlainExp, "test_large_scores_do_not_overflow"),
    Mutant(Views, "test_a_model_may_write_keys_and_values_itself"),
    Mutant(KeysOnly, "test_bytes_per_block_are_what_a_block_costs"),
    Mutant(SmallPool, "test_the_engine_answers_the_same"),
]
