"""How the native kernels want keys and values to lie, as numbers. Knows no tensor; csrc/attention/kernels.h says the same in words."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import NamedTuple

from corekit.api import KvTensor, KvView, LayerSpec

ITEM_SIZES: Mapping[str, int] = MappingProxyType({"float32": 4, "bfloat16": 2})
"""Of the caches there are kernels for."""
LANES = 16
"""Of a vector; values are padded to whole ones, with lanes that nobody reads."""


class HeadLayout(NamedTuple):
    """A kv head's part of a block, in elements: its keys, and behind them its values."""

    num_keys: int
    num_values: int
    value_lanes: int

    @property
    def size(self) -> int:
        return self.num_keys + self.num_values


def head_layout(spec: LayerSpec, block_size: int) -> HeadLayout:
    lanes = -(-spec.value_dim // LANES) * LANES
    return HeadLayout(block_size * spec.key_dim, block_size * lanes, lanes)


def block_bytes(spec: LayerSpec, block_size: int, kv_dtype: str) -> int:
    """Of one block of a layer with a cache of its own."""
    return spec.num_kv_heads * head_layout(spec, block_size).size * ITEM_SIZES[kv_dtype]


def kv_view(spec: LayerSpec, block_size: int, kv_dtype: str, num_blocks: int, address: int) -> KvView:
    """keys [block][head][dim / group][token][group], values [block][head][token / group][dim][group], where a group fills 32 bits."""
    head, pair = head_layout(spec, block_size), 4 // ITEM_SIZES[kv_dtype]
    strides = {"block_stride": spec.num_kv_heads * head.size, "head_stride": head.size}
    return KvView(
        key=KvTensor(address=address, token_stride=pair, dim_stride=pair * block_size, dim_group=pair, **strides),
        value=KvTensor(
            address=address + head.num_keys * ITEM_SIZES[kv_dtype], token_stride=pair * head.value_lanes, dim_stride=pair, token_group=pair, **strides
        ),
        dtype=kv_dtype,
        block_size=block_size,
        num_blocks=num_blocks,
        num_kv_heads=spec.num_kv_heads,
        key_dim=spec.key_dim,
        value_dim=spec.value_dim,
    )
