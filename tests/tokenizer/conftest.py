"""The demo model's tokenizer, built once for this room: reading 49152 tokens takes half a second."""

from __future__ import annotations

import pytest

from corekit.api import WeightSource
from corekit.builtin.hf_tokenizer import HfTokenizer


@pytest.fixture(scope="session")
def demo(demo_source: WeightSource) -> HfTokenizer:
    return HfTokenizer(demo_source)
