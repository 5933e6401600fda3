"""The kit on our own backend, and on right backends of the tests' own."""

from __future__ import annotations

from plain_attention import LOGGING, PLAIN

from corekit.testing import AttentionBackendKit


class TestTorch(AttentionBackendKit):
    provider = "torch"
    options = {"poison": True}  # noqa: RUF012
    dtypes = ("float64", "float32", "bfloat16", "float16")
    block_sizes = (1, 4, 16)
    head_dims = (8, 12)


class TestPlain(AttentionBackendKit):
    provider = PLAIN
    dtypes = ("float64", "float32")


class TestLogging(AttentionBackendKit):
    """A wrapper declares nothing and passes."""

    provider = LOGGING
