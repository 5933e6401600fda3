"""Slot `model` (provisional, one): weights and the maths of one forward pass."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol, runtime_checkable

from .attention_backend import KvView, LayerSpec
from .errors import CorekitError

if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt
    from torch import Tensor


class WeightSource(Protocol):
    """Where a model comes from: its configuration at once, its tensors when asked. Names are those of Hugging Face."""

    @property
    def name(self) -> str:
        """What the user called it."""
        ...

    @property
    def format(self) -> str:
        """ "safetensors", "gguf" or "none" (a model without weights)."""
        ...

    @property
    def config(self) -> Mapping[str, Any]:
        """The content of `config.json`, or its equal made from the file's own metadata."""
        ...

    @property
    def generation_config(self) -> Mapping[str, Any]: ...

    @property
    def tensor_names(self) -> Sequence[str]: ...

    @property
    def num_bytes(self) -> int:
        """Size of all tensors as stored."""
        ...

    def tensors(self) -> Iterator[tuple[str, Tensor]]:
        """Every tensor once, dequantized if the file packs it, on the CPU. Progress is shown while it runs."""
        ...

    def tokenizer_files(self) -> Mapping[str, bytes]:
        """File name to content: `tokenizer.json`, `tokenizer_config.json` and what else a tokenizer reads. May be empty."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class StoredTensor:
    """A tensor in the very bytes that the file has for it."""

    name: str
    """That of Hugging Face, as in `tensors()`."""
    type_name: str
    """GGUF's word for the format: "Q4_1", "Q8_0", "F32", "BF16" ..."""
    shape: tuple[int, ...]
    """Of the tensor in elements; rows first."""
    rows: npt.NDArray[np.uint8]
    """[rows, bytes per row], rows in the order that the model has; mapped from the file where it can be."""


@runtime_checkable
class SupportsStored(Protocol):
    """Optional for weight sources: gives packed weights as they lie in the file, for kernels that compute on them."""

    @property
    def stored_types(self) -> Mapping[str, str]:
        """Name of each tensor -> its type, as in `StoredTensor`. Reads nothing."""
        ...

    def stored_tensors(self) -> Iterator[StoredTensor]:
        """Every tensor once, in the file's order. Progress is shown while it runs."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelSpec:
    """What the rest of the engine must know of a model before its weights are loaded."""

    architecture: str
    layers: tuple[LayerSpec, ...]
    vocab_size: int
    """Rows of the model's own table of ids, padding included."""
    context_length: int
    hidden_size: int
    tied_head: bool = False
    eos_token_ids: tuple[int, ...] = ()
    """Ids that end an answer by the model's own configuration; the tokenizer may know more."""
    dtype: str | None = None
    """The only dtype it computes in, KV included, by torch's name; None: whatever the configuration says."""


def eos_token_ids(source: WeightSource) -> tuple[int, ...]:
    """The ids that end an answer by a model's own files: what its generation config says, else its config; negative ones mean none.

    Raises CorekitError for what is neither an id nor a list of ids.
    """
    ids = source.generation_config.get("eos_token_id")
    if ids is None:  # absent, or null: says nothing
        ids = source.config.get("eos_token_id")
    listed = ids if isinstance(ids, list | tuple) else () if ids is None else (ids,)
    if any(type(index) is not int for index in listed):
        raise CorekitError(f"{source.name}: eos_token_id is {ids!r:.80}; an id or a list of ids is needed. Correct its generation_config.json or config.json")
    return tuple(index for index in listed if index >= 0)


@dataclass(frozen=True, slots=True, kw_only=True)
class Shard:
    """Which part of the weights a rank loads: rank of size."""

    rank: int = 0
    size: int = 1


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelInputs:
    """One packed step."""

    token_ids: Tensor
    """[tokens] int64."""
    positions: Tensor
    """[tokens] int64."""


class Attend(Protocol):
    """Attention over the KV cache, bound to one step; what a model calls once a layer."""

    def __call__(self, layer: int, query: Tensor, key: Tensor | None, value: Tensor | None, *, sinks: Tensor | None = None) -> Tensor:
        """Shapes as in `AttentionBackend.run`."""
        ...

    @property
    def kv_views(self) -> tuple[KvView | None, ...] | None:
        """Where a model may write keys and values itself, before it calls with None for both; None: it passes them. See `SupportsKvWrite`."""
        ...

    @property
    def slot_mappings(self) -> tuple[Tensor, ...]:
        """One for each group of layers, as `GroupLayout.slot_mapping`: where the step's tokens are written."""
        ...


class Model(Protocol):
    """The maths of one forward pass. Holds weights and no request; all KV lies behind `attend`."""

    @property
    def spec(self) -> ModelSpec:
        """Known without weights."""
        ...

    def load(self, weights: WeightSource, shard: Shard) -> None:
        """Read the weights, once. Raises ValueError naming missing and unexpected tensors."""
        ...

    def forward(self, inputs: ModelInputs, attend: Attend) -> Tensor:
        """[tokens] -> hidden states [tokens, hidden_size]. Calls `attend` once per layer. Safe to repeat."""
        ...

    def logits(self, hidden: Tensor) -> Tensor:
        """Hidden rows [rows, hidden_size] -> [rows, vocab_size], for the rows that need them."""
        ...


@runtime_checkable
class SupportsDrafts(Protocol):
    """Optional: guesses tokens ahead. A guess is kept exactly when the draw at its position gives the same id."""

    @property
    def max_draft_tokens(self) -> int: ...

    def draft(self, token_ids: Sequence[int], count: int) -> Sequence[int]:
        """At most `count` guesses for what follows token_ids."""
        ...


@runtime_checkable
class SupportsThreadPool(Protocol):
    """Optional: says whether the model computes on the rank's `ThreadPool`; torch is then left one thread, so that no two pools wait for each other."""

    @property
    def uses_thread_pool(self) -> bool: ...


@runtime_checkable
class SupportsQuantization(Protocol):
    """Optional: a model that computes on packed weights where `BuildContext.quantization` asks for them. Others compute on weights in `dtype`."""

    @property
    def quantization(self) -> str:
        """What it will compute on: "none", "stored" or "int8"."""
        ...
