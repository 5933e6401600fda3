"""Slot `model` (provisional, one): weights and the maths of one forward pass."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol, runtime_checkable

from .attention_backend import LayerSpec

if TYPE_CHECKING:
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
