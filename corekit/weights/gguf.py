"""A model in GGUF form as a weight source: Hugging Face names, tensors as stored or dequantized, a tokenizer from the file's own vocabulary.

Linear layers that the file packs come out as float32; what it stores as F32, F16 or BF16 stays as it is, mapped from the
file without a copy. Knows nothing of the model's maths beyond the order of the rows of q and k.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from corekit.api import StoredTensor

from .errors import SourceError
from .gguf_config import ROPE_FACTORS, config_of, eos_ids_of, family_of, hf_name
from .gguf_files import read_files
from .gguf_header import GgufTensor
from .gguf_rope import llama3_scaling
from .gguf_tokenizer import tokenizer_files_of
from .gguf_types import can_dequantize
from .progress import progress_bar
from .stored import Stored

if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt
    from torch import Tensor

PLAIN_TYPES = ("F32", "F16", "BF16")
MAX_LABEL = 100
"""Characters of a source's name beside its bar."""


class GgufSource:
    """One model. Invariant: every header was checked whole when the object was made; files are opened again only for tensors."""

    def __init__(self, path: Path | Stored, *, name: str, progress: bool) -> None:
        first = path if isinstance(path, Stored) else Stored((path,))
        self._path = first.paths[0]
        where = f"{name} ({self._path.name})" if self._path.name not in name else name
        files = read_files(first, where)
        metadata = files.metadata
        self._stored = files.stored
        self._where = where
        self._name = name
        self._progress = progress
        self._metadata = metadata
        self._tokenizer_files: Mapping[str, bytes] | None = None
        self._interleaved = family_of(metadata, where).interleaved
        self._config = config_of(metadata, {tensor.name: tensor.shape for tensor in files.tensors}, where)
        self._eos_token_ids = eos_ids_of(metadata, self._config["vocab_size"], where)
        in_order = sorted(files.tensors, key=lambda tensor: (tensor.file, tensor.offset))
        self._tensors = {hf_name(tensor.name, where): tensor for tensor in in_order if tensor.name != ROPE_FACTORS}
        self._check_types()
        for tensor in in_order:
            if tensor.name == ROPE_FACTORS:
                self._config["rope_scaling"] = llama3_scaling(self._divisors(tensor), self._config["rope_theta"], where)

    @property
    def name(self) -> str:
        return self._name

    @property
    def format(self) -> str:
        return "gguf"

    @property
    def config(self) -> Mapping[str, Any]:
        return self._config

    @property
    def generation_config(self) -> Mapping[str, Any]:
        return {"eos_token_id": list(self._eos_token_ids)} if self._eos_token_ids else {}

    @property
    def tensor_names(self) -> Sequence[str]:
        return tuple(self._tensors)

    @property
    def num_bytes(self) -> int:
        return sum(tensor.num_bytes for tensor in self._tensors.values())

    def tokenizer_files(self) -> Mapping[str, bytes]:
        metadata = self._metadata
        if self._tokenizer_files is None:  # once: every part that looks for a tokenizer asks
            self._tokenizer_files = tokenizer_files_of(metadata, self._where)
            self._metadata = {}
        return self._tokenizer_files

    @property
    def stored_types(self) -> Mapping[str, str]:
        return {name: tensor.type_name for name, tensor in self._tensors.items()}

    def stored_tensors(self) -> Iterator[StoredTensor]:
        # copy-on-write: tensors that need no dequantization are views of the file, and torch wants them writable
        take = [stored.map() for stored in self._stored]
        with progress_bar(f"loading {_short(self._name)}", self.num_bytes, shown=self._progress) as bar:
            for name, tensor in self._tensors.items():
                num_rows = tensor.shape[0] if len(tensor.shape) > 1 or self._is_rotated(name) else 1
                packed = tensor.type_name not in PLAIN_TYPES  # and read once: its pages need not wait for the last tensor
                rows = take[tensor.file](tensor.offset, tensor.num_bytes, alone=packed).reshape(num_rows, -1)
                if self._is_rotated(name):
                    rows = self._in_half_order(rows, name)
                yield StoredTensor(name=name, type_name=tensor.type_name, shape=tensor.shape, rows=rows)
                bar.update(tensor.num_bytes)

    def tensors(self) -> Iterator[tuple[str, Tensor]]:
        return ((stored.name, _dequantized(stored)) for stored in self.stored_tensors())

    def _divisors(self, tensor: GgufTensor) -> list[float]:
        count = self._config["head_dim"] // 2
        if tensor.type_name != "F32" or tensor.shape != (count,):
            raise SourceError(f"{self._where}: {tensor.name} is {tensor.type_name} of shape {tensor.shape}, F32 of ({count},) is needed. The file is damaged.")
        return list(struct.unpack(f"<{count}f", self._stored[tensor.file].read(tensor.offset, tensor.num_bytes)))

    def _is_rotated(self, name: str) -> bool:
        return self._interleaved and (".q_proj." in name or ".k_proj." in name)

    def _in_half_order(self, rows: npt.NDArray[np.uint8], name: str) -> npt.NDArray[np.uint8]:
        """Undo the converter's reordering: rows of a head lie as (pair, half) in the file and as (half, pair) in the model.

        Done on packed rows, which are a fifth of the size.
        """
        num_heads = self._config["num_attention_heads" if ".q_proj." in name else "num_key_value_heads"]
        if len(rows) % (2 * num_heads):
            raise SourceError(f"{self._where}: {name} has {len(rows)} rows, which {num_heads} heads cannot share. The file is damaged.")
        return rows.reshape(num_heads, -1, 2, rows.shape[-1]).swapaxes(1, 2).reshape(rows.shape)

    def _check_types(self) -> None:
        """Refuse at once, not halfway through loading, what the gguf package cannot dequantize."""
        for type_id, type_name in {(tensor.type_id, tensor.type_name) for tensor in self._tensors.values()}:
            if not can_dequantize(type_id):
                raise SourceError(f"{self._where}: tensors of type {type_name} cannot be dequantized. Use a file of another type, such as Q8_0 or Q4_1.")


def _dequantized(stored: StoredTensor) -> Tensor:
    import torch
    from gguf.constants import GGMLQuantizationType
    from gguf.quants import dequantize

    if stored.type_name in PLAIN_TYPES:
        dtype = {"F32": torch.float32, "F16": torch.float16, "BF16": torch.bfloat16}[stored.type_name]
        return torch.from_numpy(stored.rows.reshape(-1)).view(dtype).view(stored.shape)
    return torch.from_numpy(dequantize(stored.rows, GGMLQuantizationType[stored.type_name])).view(stored.shape)


def _short(name: str) -> str:
    """A source of many chunks has a name of many lines."""
    return name if len(name) <= MAX_LABEL else name[:MAX_LABEL] + "..."
