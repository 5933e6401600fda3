"""Sources in memory whose tensors lie packed, as in a GGUF file."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
from gguf.constants import GGMLQuantizationType
from gguf.quants import dequantize, quantize
from llama_tiny import source_of
from torch import Tensor

from corekit.api import StoredTensor
from corekit.testing.memory_weights import MemoryWeights

TYPES = ("Q4_1", "Q8_0", "Q4_0")


@dataclass(frozen=True, kw_only=True)
class StoredWeights(MemoryWeights):
    """Matrices are of the type that `type_of` says of their names; `weights` holds what they mean, in float32."""

    type_of: Callable[[str], str]

    @property
    def stored_types(self) -> Mapping[str, str]:
        return {name: self._type(name, tensor) for name, tensor in (self.weights or {}).items()}

    def stored_tensors(self) -> Iterator[StoredTensor]:
        for name, tensor in self.tensors():
            type_name = self._type(name, tensor)
            rows = pack(tensor, type_name)
            yield StoredTensor(name=name, type_name=type_name, shape=tuple(tensor.shape), rows=rows)

    def _type(self, name: str, tensor: Tensor) -> str:
        return self.type_of(name) if tensor.ndim == 2 and tensor.shape[1] % 32 == 0 else "F32"


def pack(tensor: Tensor, type_name: str) -> np.ndarray[Any, Any]:
    """[rows, bytes per row]"""
    return quantize(tensor.float().reshape(tensor.shape[0] if tensor.ndim > 1 else 1, -1).numpy(), GGMLQuantizationType[type_name]).view(np.uint8)


def one_after_another(name: str) -> str:
    """All of TYPES, side by side within a layer."""
    return TYPES[sum(map(ord, name)) % len(TYPES)]


def stored(model: Any, type_of: Callable[[str], str] = one_after_another) -> StoredWeights:
    """The model's tensors packed; the model itself gets what they then mean."""
    plain = source_of(model)
    source = StoredWeights(config=plain.config, weights=plain.weights, generation_config=plain.generation_config, type_of=type_of)
    weights = {}
    for part in source.stored_tensors():
        floats = dequantize(part.rows, GGMLQuantizationType[part.type_name])
        weights[part.name] = torch.from_numpy(np.array(floats)).view(part.shape)
        with torch.no_grad():
            model.state_dict()[part.name].copy_(weights[part.name])
    return replace(source, weights=weights)
