"""Options of the provider `cpu-paged`: what TOML may say in `[attention_backend.options]`."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal


@dataclass(frozen=True, slots=True, kw_only=True)
class CpuPagedOptions:
    instruction_set: Literal["auto", "portable", "avx2", "avx512", "avx512-bf16", "amx"] = "auto"
    """Which kernels compute. "auto": the best that this processor runs; a lower one is for comparing and for tests."""
    poison: bool = False
    """Fill a new pool with NaN, so that a position that is read before it was written shows; for tests."""
