"""Rows whose model writes keys and values to a pool itself: blocks in no order, read back by the strides of their views. Owned by the kit of slot `model`."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from corekit.api import KvTensor, KvView, LayerSpec, Model

from .dense_rows import Call, DenseRows, Piece

BLOCK_SIZE, MAX_ROWS, MAX_LENGTH = 4, 4, 48
BLOCKS_OF_ROW = MAX_LENGTH // BLOCK_SIZE


@dataclass(frozen=True, slots=True, kw_only=True)
class Grouping:
    """How many tokens, or dims, lie side by side."""

    tokens: int = 1
    dims: int = 1


PLAIN, PAIRS_OF_DIMS, PAIRS_OF_TOKENS = Grouping(), Grouping(dims=2), Grouping(tokens=2)


class _Pool:
    """Keys, or values, of one layer. Starts as NaN."""

    def __init__(self, num_heads: int, dim: int, dtype: torch.dtype, grouping: Grouping) -> None:
        inner = -(-dim // grouping.dims) * grouping.dims
        num_blocks, tokens, dims = 1 + MAX_ROWS * BLOCKS_OF_ROW, grouping.tokens, grouping.dims
        self.memory = torch.full((num_blocks * num_heads * BLOCK_SIZE * inner,), float("nan"), dtype=dtype)
        # blocks of heads; within a head tokens by dims, or by pairs of dims with all tokens of one pair side by side
        token_stride, dim_stride = (tokens * inner, tokens) if dims == 1 else (dims, BLOCK_SIZE * dims)
        self.view = KvTensor(
            address=self.memory.data_ptr(),
            block_stride=num_heads * BLOCK_SIZE * inner,
            head_stride=BLOCK_SIZE * inner,
            token_stride=token_stride,
            dim_stride=dim_stride,
            token_group=tokens,
            dim_group=dims,
        )
        self._heads, self._dims = torch.arange(num_heads), torch.arange(dim)

    def at(self, slots: Tensor) -> Tensor:
        """Places in `memory` of these slots, [slots, heads, dims]."""
        view, token = self.view, slots % BLOCK_SIZE
        of_slot = slots // BLOCK_SIZE * view.block_stride + token // view.token_group * view.token_stride + token % view.token_group
        of_dim = self._dims // view.dim_group * view.dim_stride + self._dims % view.dim_group
        return of_slot[:, None, None] + (self._heads * view.head_stride)[:, None] + of_dim


class ViewRows(DenseRows):
    """Invariant: a model that passes None for key and value has written both to the slots of the step, and to no other.

    withheld: the step has no slots, so that nothing may be written.
    """

    def __init__(self, model: Model, dtype: torch.dtype, *, keys: Grouping = PLAIN, values: Grouping = PLAIN, withheld: bool = False) -> None:
        super().__init__(model)
        self.num_written = 0
        """Layers whose keys and values the model wrote in the last forward pass."""
        self._withheld = withheld
        self._pools: dict[int, tuple[_Pool, _Pool]] = {}
        for index, layer in enumerate(model.spec.layers):
            if layer.kv_from_layer is None:
                sizes = ((layer.key_dim, keys), (layer.value_dim, values))
                key, value = (_Pool(layer.num_kv_heads, dim, dtype, grouping) for dim, grouping in sizes)
                self._pools[index] = key, value
        self._tables = torch.randperm(MAX_ROWS * BLOCKS_OF_ROW, generator=torch.Generator().manual_seed(7)).add(1).view(MAX_ROWS, BLOCKS_OF_ROW)
        self.kv_views = tuple(self._view(index, layer, str(dtype).removeprefix("torch.")) for index, layer in enumerate(model.spec.layers))

    def _view(self, index: int, layer: LayerSpec, dtype: str) -> KvView | None:
        if index not in self._pools:
            return None
        key, value = self._pools[index]
        return KvView(
            key=key.view,
            value=value.view,
            dtype=dtype,
            block_size=BLOCK_SIZE,
            num_blocks=1 + MAX_ROWS * BLOCKS_OF_ROW,
            num_kv_heads=layer.num_kv_heads,
            key_dim=layer.key_dim,
            value_dim=layer.value_dim,
        )

    def slot_mappings(self, pieces: Sequence[Piece]) -> tuple[Tensor, ...]:
        slots = self._slots(pieces)
        return (torch.full_like(slots, -1) if self._withheld else slots,)

    def hidden(self, *pieces: Piece) -> Tensor:
        self.num_written = 0
        before = {index: tuple(pool.memory.clone() for pool in pools) for index, pools in self._pools.items()}
        hidden = super().hidden(*pieces)
        slots = self._slots(pieces)[:0] if self._withheld else self._slots(pieces)
        for index, pools in self._pools.items():
            for name, pool, was in zip(("keys", "values"), pools, before[index], strict=True):
                was[pool.at(slots).reshape(-1)] = 0
                now = pool.memory.clone()
                now[pool.at(slots).reshape(-1)] = 0
                assert torch.equal(was.isnan(), now.isnan()), f"layer {index}: {name} were written to slots that are not the step's"
                assert torch.equal(was.nan_to_num(), now.nan_to_num()), f"layer {index}: {name} were written to slots that are not the step's"
        return hidden

    def attend(self, pieces: Sequence[Piece], call: Call) -> Tensor:
        if call.layer not in self._pools or call.key is not None or call.value is not None:
            return super().attend(pieces, call)
        self.num_written += 1
        key, value = (pool.memory[pool.at(self._slots(pieces))] for pool in self._pools[call.layer])
        if self._withheld:
            key, value = torch.zeros_like(key), torch.zeros_like(value)
        return super().attend(pieces, replace(call, key=key, value=value))

    def _slots(self, pieces: Sequence[Piece]) -> Tensor:
        slots = []
        for piece in pieces:
            at = torch.arange(len(piece.tokens)) + self.num_computed(piece.row)
            slots.append(self._tables[piece.row][at // BLOCK_SIZE] * BLOCK_SIZE + at % BLOCK_SIZE)
        return torch.cat(slots)
