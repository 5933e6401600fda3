"""Options of the provider `llama`: what TOML may say in `[model.options]`."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal


@dataclass(frozen=True, slots=True, kw_only=True)
class LlamaOptions:
    instruction_set: Literal["auto", "portable", "avx2", "avx512", "avx512-bf16", "amx"] = "auto"
    """Which kernels compute. "auto": the best that this processor runs; a lower one is for comparing and for tests."""
