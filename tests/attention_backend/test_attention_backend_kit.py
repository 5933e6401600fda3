"""The kit on our own backend, and on right backends of the tests' own."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest
from plain_attention import LOGGING, PLAIN, block

from corekit.compose.composition import find_catalog
from corekit.compose.config import load
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


def test_the_page_shows_how_to_use_the_backend(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("logging_attention.py", "logging_attention.toml"):
        (tmp_path / name).write_text(block(name), "utf-8")
    monkeypatch.syspath_prepend(str(tmp_path))
    config = load(tmp_path / "logging_attention.toml", environ={})
    assert find_catalog(config).find("attention_backend", config.attention_backend.use, "here").plugin.module == "logging_attention"
    monkeypatch.delitem(sys.modules, "logging_attention")
