"""The attention backend `cpu-paged`: pools, plans and one native call per layer. Knows tensors; the arithmetic is in csrc/attention."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from corekit.api import BatchLayout, BuildContext, Copy, KvPlan, KvView, LayerSpec

from ._cpu_paged import PagedAttention, Plan, instruction_sets
from .cpu_refusals import refusals
from .kv_layout import ITEM_SIZES, block_bytes, kv_view
from .options import CpuPagedOptions
from .pool_memory import page_aligned

MAX_POISONED = 1 << 14
"""Blocks of a pool that begin as NaN when it is asked for: allocators begin with the lowest."""


class _Pool(NamedTuple):
    memory: Tensor
    address: int
    num_bytes: int


class CpuPaged:
    """Slot `attention_backend`, and keys and values may be written by the model: see `kv_views`.

    A query's result does not depend on other rows, on how its row came in chunks, nor on the number of threads, bit for bit. Scores,
    weights and sums are float32 whatever the dtype of the cache.
    """

    def __init__(self, context: BuildContext, options: CpuPagedOptions) -> None:
        if context.model_spec is None or context.pool is None or (reasons := refusals(context)):
            reasons = refusals(context) or ["there is no model in this context"]
            raise ValueError(f"cpu-paged cannot be built: {'; '.join(reasons)}")
        if options.instruction_set not in ("auto", *instruction_sets()):
            raise ValueError(f"instruction_set is {options.instruction_set!r}; this processor runs 'auto', {', '.join(map(repr, instruction_sets()))}")
        self._layers = context.model_spec.layers
        self._shapes = tuple((spec.num_heads, spec.num_kv_heads, spec.key_dim, spec.value_dim, spec.sinks) for spec in self._layers)
        self._block_size = context.block_size
        self._threads = context.pool
        self._options = options
        self._pools: tuple[tuple[_Pool, _Pool] | None, ...] = ()
        self._kv_views: tuple[KvView | None, ...] = ()
        self._native: PagedAttention | None = None

    @property
    def kv_views(self) -> tuple[KvView | None, ...]:
        return self._kv_views

    def bytes_per_block(self, kv_dtype: str) -> int:
        if kv_dtype not in ITEM_SIZES:
            raise ValueError(f"kv_dtype is {kv_dtype!r}; cpu-paged has caches of {' and '.join(ITEM_SIZES)}")
        return sum(block_bytes(spec, self._block_size, kv_dtype) for spec in self._layers if spec.kv_from_layer is None)

    def allocate_kv(self, plan: KvPlan) -> None:
        if self._native is not None:
            raise RuntimeError("allocate_kv was called before; the pools are there")
        if plan.layers != self._layers:
            raise ValueError("allocate_kv got other layers than the backend was built for")
        if plan.block_size != self._block_size or plan.kv_dtype not in ITEM_SIZES:
            raise ValueError(f"allocate_kv got blocks of {plan.block_size} in {plan.kv_dtype}; cpu-paged was built for blocks of {self._block_size}")
        num_blocks = plan.num_blocks + 1
        native = PagedAttention(self._threads.address, self._options.instruction_set, plan.kv_dtype, plan.block_size, num_blocks, plan.num_host_blocks)
        self._pools = tuple(None if spec.kv_from_layer is not None else self._allocate(spec, plan) for spec in self._layers)
        for spec, pools in zip(self._layers, self._pools, strict=True):
            _add_layer(native, spec, pools)
        self._kv_views = tuple(
            None if pools is None else kv_view(spec, plan.block_size, plan.kv_dtype, num_blocks, pools[0].address)
            for spec, pools in zip(self._layers, self._pools, strict=True)
        )
        self._native = native

    def _allocate(self, spec: LayerSpec, plan: KvPlan) -> tuple[_Pool, _Pool]:
        """Device and host."""
        dtype: torch.dtype = getattr(torch, plan.kv_dtype)
        each = block_bytes(spec, plan.block_size, plan.kv_dtype)

        def pool(num_blocks: int) -> _Pool:
            memory = page_aligned(num_blocks * each)
            if self._options.poison:
                memory[: MAX_POISONED * each].view(dtype).fill_(float("nan"))
            return _Pool(memory, memory.data_ptr(), len(memory))

        device, host = pool(plan.num_blocks + 1), pool(plan.num_host_blocks)
        device.memory[:each] = 0
        return device, host

    def copy_blocks(self, copies: Sequence[Copy]) -> None:
        if copies:
            self._allocated.copy([(*source, *target) for source, target in copies])

    def plan(self, layout: BatchLayout) -> Plan:
        (group,) = layout.groups
        tables = group.block_tables
        given = (layout.query_start_loc, layout.seq_lens, tables, group.slot_mapping)
        for tensor in given:
            if tensor.dtype != torch.int64 or not tensor.is_cpu:
                raise ValueError(f"plan wants int64 tensors on the CPU, and got {tensor.dtype} on {tensor.device}")
        starts, seq_lens, slots = (tensor if tensor.is_contiguous() else tensor.contiguous() for tensor in (given[0], given[1], given[3]))
        num_rows, num_tokens = layout.num_rows, layout.num_tokens
        if len(starts) <= num_rows or len(seq_lens) < num_rows or len(tables) < num_rows or len(slots) < num_tokens:
            raise ValueError(
                f"plan got {num_rows} rows and {num_tokens} tokens, but {len(starts)} starts, {len(seq_lens)} lengths, {len(tables)} tables, {len(slots)} slots"
            )
        row_stride, column_stride = tables.stride()
        return self._allocated.plan(
            num_rows, num_tokens, starts.data_ptr(), seq_lens.data_ptr(), tables.data_ptr(), tables.shape[1], row_stride, column_stride, slots.data_ptr()
        )

    def run(self, layer: int, query: Tensor, key: Tensor | None, value: Tensor | None, plan: Plan, *, sinks: Tensor | None = None) -> Tensor:
        num_heads, num_kv_heads, key_dim, value_dim, has_sinks = self._shapes[layer]
        num_tokens = plan.num_tokens
        query, query_halves = _checked("query", query, (num_tokens, num_heads, key_dim))
        query_token, query_head, _ = query.stride()
        kv_halves, key_place, value_place = False, (0, 0, 0), (0, 0, 0)
        if key is not None and value is not None:
            key, kv_halves = _checked("key", key, (num_tokens, num_kv_heads, key_dim))
            value, value_halves = _checked("value", value, (num_tokens, num_kv_heads, value_dim))
            if kv_halves != value_halves:
                raise ValueError(f"layer {layer}: key is {key.dtype} and value {value.dtype}; they must be alike")
            key_place, value_place = (key.data_ptr(), key.stride(0), key.stride(1)), (value.data_ptr(), value.stride(0), value.stride(1))
        elif key is not value:
            raise ValueError(f"layer {layer}: key and value come together or not at all, and {'value' if value is None else 'key'} is None")
        if has_sinks != (sinks is not None):
            raise ValueError(f"layer {layer} was declared {'with' if has_sinks else 'without'} sinks, but run got {'none' if sinks is None else 'some'}")
        sinks_address = 0
        if sinks is not None:
            if sinks.shape != (num_heads,):
                raise ValueError(f"layer {layer}: sinks have shape {tuple(sinks.shape)}, expected {(num_heads,)}")
            sinks = sinks.to("cpu", torch.float32).contiguous()
            sinks_address = sinks.data_ptr()
        out = query.new_empty(num_tokens, num_heads, value_dim)
        self._allocated.run(
            layer, plan, query_halves, query.data_ptr(), query_token, query_head, kv_halves, *key_place, *value_place, sinks_address, out.data_ptr()
        )
        return out

    @property
    def _allocated(self) -> PagedAttention:
        if self._native is None:
            raise RuntimeError("the pools are not there yet: allocate_kv comes first")
        return self._native


def _add_layer(native: PagedAttention, spec: LayerSpec, pools: tuple[_Pool, _Pool] | None) -> None:
    device, host = pools or (None, None)
    native.add_layer(
        num_heads=spec.num_heads,
        num_kv_heads=spec.num_kv_heads,
        key_dim=spec.key_dim,
        value_dim=spec.value_dim,
        scale=spec.scale,
        soft_cap=spec.soft_cap or 0.0,
        window=spec.window or 0,
        chunk=spec.chunk or 0,
        sinks=spec.sinks,
        from_layer=-1 if spec.kv_from_layer is None else spec.kv_from_layer,
        device=device.address if device else 0,
        device_bytes=device.num_bytes if device else 0,
        host=host.address if host else 0,
        host_bytes=host.num_bytes if host else 0,
    )


def _checked(name: str, tensor: Tensor, shape: tuple[int, int, int]) -> tuple[Tensor, bool]:
    """The tensor with its dims side by side, and whether it is bfloat16."""
    dtype = tensor.dtype
    if tensor.shape != shape or not tensor.is_cpu or (dtype is not torch.bfloat16 and dtype is not torch.float32):
        raise ValueError(f"{name} is {dtype} of shape {tuple(tensor.shape)} on {tensor.device}; expected float32 or bfloat16 of shape {shape} on the CPU")
    return (tensor if tensor.stride(2) == 1 else tensor.contiguous()), dtype is torch.bfloat16
