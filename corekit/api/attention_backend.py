"""Slot `attention_backend` (stable, one): KV layout, KV writes, and attention over block tables."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal, Protocol, runtime_checkable

from .block_allocator import Copy

if TYPE_CHECKING:
    import numpy as np
    from torch import Tensor

AttentionPlan = Any
"""What a backend prepared for one step; the core only hands it back."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LayerSpec:
    """What one attention layer needs from a backend."""

    num_heads: int
    num_kv_heads: int
    key_dim: int
    value_dim: int
    scale: float
    """Factor on query times key."""
    kind: Literal["causal"] = "causal"
    window: int | None = None
    """Attend to the last `window` positions only, one's own included; None: to all."""
    chunk: int | None = None
    """Attend within one's own chunk of so many positions only; None: no chunks."""
    soft_cap: float | None = None
    """Scores become soft_cap * tanh(score / soft_cap)."""
    sinks: bool = False
    """The model passes one extra score per head that takes part in the softmax and has no value."""
    kv_from_layer: int | None = None
    """Read the KV of that earlier layer and write none."""
    group: int = 0
    """Layers of one group share block tables; one group today."""


@dataclass(frozen=True, slots=True, kw_only=True)
class KvPlan:
    """The pools to allocate. Device blocks are 0..num_blocks, of which 0 is the null block (padding)."""

    num_blocks: int
    num_host_blocks: int
    block_size: int
    kv_dtype: str
    layers: tuple[LayerSpec, ...]


@dataclass(frozen=True, slots=True)
class GroupLayout:
    """Tables of one group of layers, on the device."""

    block_tables: Tensor
    """[rows, width] int64; row r's positions 0..seq_lens[r]-1 lie in its blocks in order; padded with block 0."""
    slot_mapping: Tensor
    """[tokens] int64; token t's key and value go to slot block * block_size + offset; -1 writes nothing."""


@dataclass(frozen=True, slots=True, kw_only=True)
class BatchLayout:
    """One step's rows, packed: the tokens of row r are query_start_loc[r] .. query_start_loc[r+1]-1.

    Rows of query length 1 come first (`num_decodes` of them). A row's tokens are its last positions: token i of a row with
    query length q stands at position seq_len - q + i. Host copies may be upper bounds of what the device holds.
    """

    num_rows: int
    num_tokens: int
    num_decodes: int
    query_start_loc: Tensor
    """[rows + 1] int64, on the device."""
    seq_lens: Tensor
    """[rows] int64, on the device; the row's own tokens of this step included."""
    groups: tuple[GroupLayout, ...]
    host_query_start_loc: np.ndarray
    host_seq_lens: np.ndarray


class AttentionBackend(Protocol):
    """Equal to dense causal attention within the tolerance of its dtype; padding affects nothing."""

    def bytes_per_block(self, kv_dtype: str) -> int:
        """Device memory of one block over all layers. Called before `allocate_kv`."""
        ...

    def allocate_kv(self, plan: KvPlan) -> None:
        """Allocate the pools, once."""
        ...

    def copy_blocks(self, copies: Sequence[Copy]) -> None:
        """Copy whole blocks, all layers, in this order; before the step's first KV write."""
        ...

    def plan(self, layout: BatchLayout) -> AttentionPlan:
        """All host work of a step, once a step, after its copies."""
        ...

    def run(self, layer: int, query: Tensor, key: Tensor | None, value: Tensor | None, plan: AttentionPlan, *, sinks: Tensor | None = None) -> Tensor:
        """Write key and value to their slots (unless None), then attend.

        query [tokens, num_heads, key_dim], key [tokens, num_kv_heads, key_dim], value [tokens, num_kv_heads, value_dim],
        sinks [num_heads] -> [tokens, num_heads, value_dim]. No host synchronisation; safe to repeat with equal arguments.
        """
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class KvTensor:
    """Where the keys, or the values, of one layer lie. Strides count elements.

    The element of (block, head, token in the block, dim) is at block * block_stride + head * head_stride
    + (token // token_group) * token_stride + token % token_group + (dim // dim_group) * dim_stride + dim % dim_group.
    At most one of the two groups is more than 1: pairs that a processor multiplies at once lie side by side.
    """

    address: int
    """Of block 0, in the memory of the backend's device."""
    block_stride: int
    head_stride: int
    token_stride: int
    dim_stride: int
    token_group: int = 1
    dim_group: int = 1


@dataclass(frozen=True, slots=True, kw_only=True)
class KvView:
    """The KV pool of one layer, for a model that writes keys and values itself. Valid as long as the backend lives."""

    key: KvTensor
    value: KvTensor
    dtype: str
    """By torch's name: "float32" or "bfloat16"."""
    block_size: int
    num_blocks: int
    """The null block included: slots are below num_blocks * block_size."""
    num_kv_heads: int
    key_dim: int
    value_dim: int


@runtime_checkable
class SupportsKvWrite(Protocol):
    """Optional: a model may write keys and values to the pools itself, in the step's slots, and then call `run` with None for both."""

    @property
    def kv_views(self) -> tuple[KvView | None, ...]:
        """One for each layer, None for those without a cache of their own; from `allocate_kv` on always the same object."""
        ...
