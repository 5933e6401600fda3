"""corekit: an LLM serving engine that you assemble. Everything here is imported when it is first used."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Mapping

    from .api import SamplingParams
    from .compose.assemble import assemble
    from .compose.config import Config
    from .llm import LLM, AsyncLLM

__version__ = "0.1.0"
__all__ = ["LLM", "AsyncLLM", "Config", "SamplingParams", "__version__", "assemble"]

_HOMES: Mapping[str, str] = {
    "LLM": "corekit.llm",
    "AsyncLLM": "corekit.llm",
    "SamplingParams": "corekit.api",
    "assemble": "corekit.compose.assemble",
    "Config": "corekit.compose.config",
}


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module 'corekit' has no attribute {name!r}")
    from importlib import import_module

    return getattr(import_module(_HOMES[name]), name)


def __dir__() -> list[str]:
    return __all__
