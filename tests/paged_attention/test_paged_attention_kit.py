"""The kit on `cpu-paged`: everything that it declares in full once, and what differs between instruction sets for each of them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import ClassVar

import pytest

from corekit.api import BuildContext
from corekit.compose.surroundings import thread_pool
from corekit.testing import AttentionBackendKit

kernels = pytest.importorskip("corekit_paged_attention._cpu_paged", reason="needs native code")

LAWS = (
    "test_steps_of_any_shape",
    "test_query_heads_share_kv_heads",
    "test_unwritten_memory_never_leaks",
    "test_padding_rows_affect_nothing",
    "test_large_scores_do_not_overflow",
    "test_what_layers_ask_for_together",
    "test_a_model_may_write_keys_and_values_itself",
)
"""Of arithmetic; the others are about what is around it."""

FIRST, *BETWEEN, LAST = kernels.instruction_sets()
SETS = (FIRST, *(pytest.param(name, marks=pytest.mark.slow) for name in BETWEEN), LAST)


class OnThreads(AttentionBackendKit):
    provider = "cpu-paged"
    options = {"poison": True}  # noqa: RUF012
    dtypes = ("float32", "bfloat16")
    block_sizes: ClassVar[Sequence[int]] = (8, 16, 32)

    def context(self) -> BuildContext:
        return replace(super().context(), pool=thread_pool(2))


class TestCpuPaged(OnThreads):
    head_dims = (64, 80)


@pytest.mark.slow
class TestSmallHeads(OnThreads):
    """Dims that are no whole vectors, of keys and values."""

    head_dims = (6, 10)


@pytest.mark.parametrize("instruction_set", SETS)
@pytest.mark.parametrize("law", LAWS)
def test_every_instruction_set(instruction_set: str, law: str) -> None:
    kit = type("OnSet", (OnThreads,), {"options": {"poison": True, "instruction_set": instruction_set}, "head_dims": (16, 24)})()
    getattr(kit, law)()
