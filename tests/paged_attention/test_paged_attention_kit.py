"""The kit on `cpu-paged`: everything that it declares in full once, and what differs between instruction sets for each of them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import ClassVar

import pytest

from corekit.api import BuildContext
from corekit.compose.surroundings import thread_pool
from corekit.testing import AttentionBackendKit

_cpu_paged = pytest.importorskip("corekit_paged_attention._cpu_paged", reason="needs native code")


class OnThreads(AttentionBackendKit):
    provider = "cpu-paged"
    options = {"poison": True}  # noqa: RUF012
    dtypes = ("float32", "bfloat16")
    block_sizes: ClassVar[Sequence[int]] = (8, 16, 32)

    def context(self) -> BuildContext:
        return replace(super().context(), pool=thread_pool(2))


class TestCpuPaged(OnThreads):
    head_dims = (64, 80)


class TestSmallHeads(OnThreads):
    """Dims that are no whole vectors, of keys and values."""

    head_dims = (6, 10)
