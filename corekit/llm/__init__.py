"""An engine in a line, for Python users: `LLM` for whole answers to lists of prompts, `AsyncLLM` for streams on an event loop."""

from __future__ import annotations

from .async_llm import AsyncLLM
from .llm import LLM

__all__ = ["LLM", "AsyncLLM"]
