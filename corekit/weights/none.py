"""The source of models without weights. Knows nothing; that is its use."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from torch import Tensor


class NoWeights:
    """No configuration, no tensors, no tokenizer files."""

    @property
    def name(self) -> str:
        return "none"

    @property
    def format(self) -> str:
        return "none"

    @property
    def config(self) -> Mapping[str, Any]:
        return {}

    @property
    def generation_config(self) -> Mapping[str, Any]:
        return {}

    @property
    def tensor_names(self) -> Sequence[str]:
        return ()

    @property
    def num_bytes(self) -> int:
        return 0

    def tensors(self) -> Iterator[tuple[str, Tensor]]:
        return iter(())

    def tokenizer_files(self) -> Mapping[str, bytes]:
        return {}
