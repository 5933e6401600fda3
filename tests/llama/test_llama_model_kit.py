"""The model kit on `llama`: every family in float32, and one in each other precision; those marked slow differ from their neighbours in arithmetic alone."""

from __future__ import annotations

from dataclasses import replace
from typing import ClassVar

import pytest

pytest.importorskip("corekit_llama._llama", reason="needs native code")

from llama_stored import stored
from llama_tiny import FAMILIES, reference, source_of

from corekit.api import BuildContext
from corekit.compose.surroundings import thread_pool
from corekit.testing import ModelKit


class OnThreads(ModelKit):
    provider = "llama"
    dtype: ClassVar[str] = "float32"
    quantization: ClassVar[str] = "none"

    def context(self) -> BuildContext:
        return replace(super().context(), pool=thread_pool(2), dtype=self.dtype, quantization=self.quantization)


class TestLlama(OnThreads):
    source = source_of(reference("llama"))


@pytest.mark.slow
class TestLlamaBiased(OnThreads):
    source = source_of(reference("llama-biased"))


@pytest.mark.slow
class TestLlamaTied(OnThreads):
    source = source_of(reference("llama-tied-linear"))


@pytest.mark.slow
class TestMistral(OnThreads):
    source = source_of(reference("mistral"))


@pytest.mark.slow
class TestQwen2(OnThreads):
    source = source_of(reference("qwen2-windows"))


class TestQwen3(OnThreads):
    source = source_of(reference("qwen3-kinds"))


@pytest.mark.slow
class TestSmolLM3(OnThreads):
    source = source_of(reference("smollm3"))


class TestBfloat16(OnThreads):
    source = source_of(reference("qwen3"))
    dtype = "bfloat16"
    tolerance = 0.0  # it rounds row by row, whatever stands beside


@pytest.mark.slow
class TestEightBits(OnThreads):
    source = source_of(reference("llama-biased"))
    quantization = "int8"
    tolerance = 0.0


@pytest.mark.slow
class TestStored(OnThreads):
    source = stored(reference("llama", hidden_size=64, intermediate_size=96))
    dtype = "bfloat16"
    quantization = "stored"
    tolerance = 0.0


def test_every_family_has_a_kit() -> None:
    types = {FAMILIES[family][0] for family in FAMILIES}
    assert types == {kit.source.config["model_type"] for kit in OnThreads.__subclasses__()}
