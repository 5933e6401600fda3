"""From a source's tensors to packed matrices and vectors, each tensor let go as soon as its matrix is packed.

Rows are packed from where they lie, in the types that kernels know; what comes in another type is made float32 first, one matrix
at a time. Knows formats by name and nothing of what is computed.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from corekit.api import StoredTensor, SupportsStored, WeightSource

from ._llama import Matrix
from .architecture import Architecture
from .tensors import UNREAD, Faults, Group, matrices, shapes

Bytes = npt.NDArray[np.uint8]
Floats = npt.NDArray[np.float32]

PACKED: Mapping[str, frozenset[str]] = {"nibble": frozenset({"Q4_0", "Q4_1"}), "byte": frozenset({"Q4_0", "Q4_1", "Q8_0"})}
"""Formats that hold the packed types of files exactly, the smallest first."""
KNOWN = frozenset({"Q4_0", "Q4_1", "Q8_0", "F32", "F16", "BF16"})
"""Types that can be packed as they lie."""
TORCH_TYPES: Mapping[torch.dtype, str] = {torch.float32: "F32", torch.float16: "F16", torch.bfloat16: "BF16"}


@dataclass(frozen=True, slots=True, kw_only=True)
class Loaded:
    """All weights of a model."""

    matrices: dict[tuple[int, str], Matrix] = field(default_factory=dict)
    """(layer, part) of its group -> matrix."""
    vectors: dict[str, Floats] = field(default_factory=dict)
    """Norms and biases by name."""


def computed_on(source: WeightSource, quantization: str) -> str:
    """What comes of the kind of weights that was asked for: where the source has nothing that is packed, "stored" is "none"."""
    if quantization != "stored":
        return quantization
    types = set(source.stored_types.values()) if isinstance(source, SupportsStored) else set[str]()
    return "none" if types.isdisjoint(frozenset().union(*PACKED.values())) else "stored"


def load(source: WeightSource, architecture: Architecture, *, dtype: str, quantization: str, pool_address: int) -> Loaded:
    """Raises ValueError naming tensors that are missing, unexpected or of another shape."""
    names = source.tensor_names
    expected, groups = shapes(architecture, names), matrices(architecture, names)
    group_of = {name: group for group in groups for name in group.names}
    waiting: dict[Group, dict[str, StoredTensor]] = {group: {} for group in groups}
    loaded, faults, seen = Loaded(), Faults(), set[str]()
    for tensor in _stored(source):
        seen.add(tensor.name)
        if tensor.name not in expected:
            faults.unexpected.extend([] if tensor.name.endswith(UNREAD) else [tensor.name])
        elif tensor.shape != expected[tensor.name]:
            faults.misshapen.append(f"{tensor.name} {tensor.shape}, expected {expected[tensor.name]}")
        elif tensor.name not in group_of:
            loaded.vectors[tensor.name] = _floats(tensor).reshape(-1)
        else:
            group = group_of[tensor.name]
            waiting[group][tensor.name] = tensor
            if len(waiting[group]) == len(group.names):
                there = waiting.pop(group)
                for part, tensors in _of_one_matrix(group, [there[name] for name in group.names]).items():
                    chosen = _format([each.type_name for each in tensors], dtype, quantization)
                    loaded.matrices[group.layer, part] = _packed(source, tensors, chosen, group.interleaved, pool_address)
    faults.missing.extend(name for name in expected if name not in seen)
    if what := faults.told():
        raise ValueError(f"{source.name}: its tensors are not those of {architecture.class_name}: {what}. The files are incomplete or of another model.")
    return loaded


def _of_one_matrix(group: Group, tensors: list[StoredTensor]) -> dict[str, list[StoredTensor]]:
    """Part -> the tensors of its matrix. A head that is the embedding once more needs no matrix of its own."""
    if group.part != "ends":
        return {group.part: tensors}
    embedding, head = tensors
    same = embedding.type_name == head.type_name and np.array_equal(embedding.rows, head.rows)
    return {"embedding": [embedding]} if same else {"embedding": [embedding], "head": [head]}


def _packed(source: WeightSource, parts: Sequence[StoredTensor], chosen: str, interleaved: bool, pool_address: int) -> Matrix:
    """One matrix of the rows of all parts."""
    rows = [(part.rows, part.type_name) if part.type_name in KNOWN else (_floats(part).view(np.uint8), "F32") for part in parts]
    try:
        return Matrix.pack(rows, chosen, interleaved=interleaved, pool_address=pool_address)
    except ValueError as error:
        raise ValueError(f"{source.name}: {', '.join(part.name for part in parts)}: {error}") from error


def _format(types: list[str], dtype: str, quantization: str) -> str:
    """What a matrix is packed in: the smallest that holds all of a file's packed parts exactly, else the model's dtype."""
    if quantization == "int8":
        return "channel"
    if quantization == "stored":
        for name, held in PACKED.items():
            if held.issuperset(types):
                return name
    return "bf16" if dtype == "bfloat16" else "f32"


def _stored(source: WeightSource) -> Iterator[StoredTensor]:
    """The source's tensors as bytes, whatever it has."""
    if isinstance(source, SupportsStored):
        yield from source.stored_tensors()
        return
    for name, tensor in source.tensors():
        kept = tensor if tensor.dtype in TORCH_TYPES else tensor.float()
        flat = (kept.flatten(1) if kept.ndim > 1 else kept.reshape(1, kept.numel())).contiguous()  # not -1: a damaged tensor may be empty
        yield StoredTensor(name=name, type_name=TORCH_TYPES[kept.dtype], shape=tuple(tensor.shape), rows=flat.view(torch.uint8).numpy())


def _floats(tensor: StoredTensor) -> Floats:
    """[rows, columns], as exact as single precision is."""
    rows: npt.NDArray[Any] = np.ascontiguousarray(tensor.rows)
    if tensor.type_name == "F32":
        return rows.view(np.float32)
    if tensor.type_name == "F16":
        return rows.view(np.float16).astype(np.float32)
    if tensor.type_name == "BF16":
        return (rows.view(np.uint16).astype(np.uint32) << 16).view(np.float32)
    from gguf.constants import GGMLQuantizationType
    from gguf.quants import dequantize

    floats: Floats = dequantize(rows, GGMLQuantizationType[tensor.type_name])
    return floats
