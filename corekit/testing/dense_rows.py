"""Drives a model by hand: rows whose keys and values are kept whole, without blocks. Owned by the kit of slot `model`."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
from torch import Tensor

from corekit.api import KvView, LayerSpec, Model, ModelInputs

from .dense_attention import dense_attention


class Piece(NamedTuple):
    """The next tokens of a row. `shift`: they stand so much later than they should."""

    row: int
    tokens: Sequence[int]
    shift: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Call:
    """What a model passed to `attend`."""

    layer: int
    query: Tensor
    key: Tensor | None
    value: Tensor | None
    sinks: Tensor | None


class _Attention:
    """What the model calls."""

    def __init__(self, rows: DenseRows, pieces: Sequence[Piece]) -> None:
        self._rows, self._pieces = rows, pieces
        self.kv_views, self.slot_mappings = rows.kv_views, rows.slot_mappings(pieces)

    def __call__(self, layer: int, query: Tensor, key: Tensor | None, value: Tensor | None, *, sinks: Tensor | None = None) -> Tensor:
        return self._rows.attend(self._pieces, Call(layer=layer, query=query, key=key, value=value, sinks=sinks))


class DenseRows:
    """Rows of one model. Invariant: a row's cache holds exactly the tokens that were computed for it, whatever was beside them."""

    kv_views: tuple[KvView | None, ...] | None = None
    """None: the model passes keys and values, since there is no pool to write them to."""

    def __init__(self, model: Model) -> None:
        self.model = model
        self.calls: list[Call] = []
        """Of the last forward pass."""
        self.inputs: ModelInputs | None = None
        """Of the last forward pass, as the model left them."""
        self._num_computed: dict[int, int] = {}
        self._keys: dict[tuple[int, int], Tensor] = {}
        self._values: dict[tuple[int, int], Tensor] = {}

    def hidden(self, *pieces: Piece) -> Tensor:
        """One forward pass over these pieces, packed in this order. Nothing counts as computed: it may be repeated."""
        self.calls = []
        positions = torch.cat([torch.arange(len(piece.tokens)) + self.num_computed(piece.row) + piece.shift for piece in pieces])
        self.inputs = ModelInputs(token_ids=torch.tensor([token for piece in pieces for token in piece.tokens]), positions=positions)

        return self.model.forward(self.inputs, _Attention(self, pieces))

    def slot_mappings(self, pieces: Sequence[Piece]) -> tuple[Tensor, ...]:
        """Where the tokens of a step are written; of no use without a pool."""
        return ()

    def num_computed(self, row: int) -> int:
        """Tokens of a row that are cached."""
        return self._num_computed.get(row, 0)

    def attend(self, pieces: Sequence[Piece], call: Call) -> Tensor:
        self.calls.append(call)
        faults = _call_faults(call, self.model.spec.layers[call.layer], sum(len(piece.tokens) for piece in pieces))
        assert not faults, f"attend was called for layer {call.layer} with what the spec does not say: {'; '.join(faults)}"
        return self._attend(pieces, call.layer, call.query, call.key, call.value, call.sinks)

    def step(self, *pieces: Piece) -> list[Tensor]:
        """Compute these pieces; the logits of all their tokens, piece by piece."""
        logits = self.model.logits(self.hidden(*pieces))
        for piece in pieces:
            self._num_computed[piece.row] = self.num_computed(piece.row) + len(piece.tokens)
        return list(torch.split(logits, [len(piece.tokens) for piece in pieces]))

    def roll_values(self, layer: int) -> None:
        """Every cached value of one layer moves on by one position: the cache of somebody else, so to say."""
        for (row, of), values in self._values.items():
            if of == layer:
                self._values[row, of] = values.roll(1, 0)

    def _attend(self, pieces: Sequence[Piece], layer: int, query: Tensor, key: Tensor | None, value: Tensor | None, sinks: Tensor | None) -> Tensor:
        spec, outs, at = self.model.spec.layers[layer], [], 0
        of = layer if spec.kv_from_layer is None else spec.kv_from_layer
        for piece in pieces:
            part, start = slice(at, at + len(piece.tokens)), self.num_computed(piece.row)
            if key is not None and value is not None:
                self._keys[piece.row, of] = _after(self._keys.get((piece.row, of)), start, key[part])
                self._values[piece.row, of] = _after(self._values.get((piece.row, of)), start, value[part])
            outs.append(dense_attention(query[part], self._keys[piece.row, of], self._values[piece.row, of], spec, sinks))
            at += len(piece.tokens)
        return torch.cat(outs).to(query.dtype)


def _after(cached: Tensor | None, start: int, new: Tensor) -> Tensor:
    """The first `start` positions of what is cached, then what is new."""
    return new.clone() if cached is None else torch.cat([cached[:start], new])


def _call_faults(call: Call, layer: LayerSpec, num_tokens: int) -> Sequence[str]:
    faults = []
    wanted: dict[str, Any] = {"query": (num_tokens, layer.num_heads, layer.key_dim)}
    if layer.kv_from_layer is None:
        wanted |= {"key": (num_tokens, layer.num_kv_heads, layer.key_dim), "value": (num_tokens, layer.num_kv_heads, layer.value_dim)}
    elif call.key is not None or call.value is not None:
        faults.append(f"it reads the KV of layer {layer.kv_from_layer}, so key and value must be None")
    if layer.sinks:
        wanted["sinks"] = (layer.num_heads,)
    elif call.sinks is not None:
        faults.append("it passes sinks, and its LayerSpec has none")
    for name, shape in wanted.items():
        tensor = getattr(call, name)
        if tensor is None or tuple(tensor.shape) != shape:
            faults.append(f"{name} is {None if tensor is None else tuple(tensor.shape)}, its LayerSpec says {shape}")
    return faults
