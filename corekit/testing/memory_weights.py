"""A source of weights that a test makes: configuration and tensors from memory. Owned by the kit of slot `model`."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from torch import Tensor


@dataclass(frozen=True, kw_only=True)
class MemoryWeights:
    """A `WeightSource`. Tensors are handed out as copies, so that a model may keep and change what it got."""

    config: Mapping[str, Any] = field(default_factory=dict)
    """What `config.json` would say."""
    weights: Mapping[str, Tensor] | None = None
    """Name to tensor; None: a source without weights."""
    generation_config: Mapping[str, Any] = field(default_factory=dict)
    name: str = "the kit's source"
    sealed: bool = False
    """Reading a tensor is a fault: for what must be known without them."""

    @property
    def format(self) -> str:
        return "none" if self.weights is None else "safetensors"

    @property
    def tensor_names(self) -> Sequence[str]:
        return tuple(self.weights or ())

    @property
    def num_bytes(self) -> int:
        return sum(tensor.nbytes for tensor in (self.weights or {}).values())

    def tensors(self) -> Iterator[tuple[str, Tensor]]:
        assert not self.sealed, "a tensor was read before `load`: refusals and the spec come from the configuration and the tensors' names alone"
        for name, tensor in (self.weights or {}).items():
            yield name, tensor.clone()

    def tokenizer_files(self) -> Mapping[str, bytes]:
        return {}

    def without(self, name: str) -> MemoryWeights:
        return replace(self, weights={other: tensor for other, tensor in (self.weights or {}).items() if other != name})

    def with_one_more(self, name: str, tensor: Tensor) -> MemoryWeights:
        return replace(self, weights={**(self.weights or {}), name: tensor})
