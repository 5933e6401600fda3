"""Kits that prove a part: one class per slot. Subclass it in a test file, name the provider, and inherit every law.

    class TestLifo(SchedulerPolicyKit):
        provider = LIFO

Everything here is imported when it is first used. Knows the contract and how a part is chosen and built; not the engine's inside.
"""

from __future__ import annotations

from collections.abc import Mapping
from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:  # so that a test class knows what it inherits from
    from .attention_backend import AttentionBackendKit
    from .block_allocator import BlockAllocatorKit
    from .executor import ExecutorKit
    from .frontend import FrontendKit
    from .http_route import HttpRouteKit
    from .kit import Kit
    from .logits_processor import LogitsProcessorKit
    from .model import ModelKit
    from .observer import ObserverKit
    from .sampler import SamplerKit
    from .scheduler_policy import SchedulerPolicyKit
    from .tokenizer import TokenizerKit

_HOMES: Mapping[str, str] = {
    "AttentionBackendKit": "corekit.testing.attention_backend",
    "BlockAllocatorKit": "corekit.testing.block_allocator",
    "ExecutorKit": "corekit.testing.executor",
    "FrontendKit": "corekit.testing.frontend",
    "HttpRouteKit": "corekit.testing.http_route",
    "LogitsProcessorKit": "corekit.testing.logits_processor",
    "ModelKit": "corekit.testing.model",
    "ObserverKit": "corekit.testing.observer",
    "SamplerKit": "corekit.testing.sampler",
    "SchedulerPolicyKit": "corekit.testing.scheduler_policy",
    "TokenizerKit": "corekit.testing.tokenizer",
    "Kit": "corekit.testing.kit",
}
__all__ = [
    "AttentionBackendKit",
    "BlockAllocatorKit",
    "ExecutorKit",
    "FrontendKit",
    "HttpRouteKit",
    "Kit",
    "LogitsProcessorKit",
    "ModelKit",
    "ObserverKit",
    "SamplerKit",
    "SchedulerPolicyKit",
    "TokenizerKit",
]


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module 'corekit.testing' has no attribute {name!r}")
    return getattr(import_module(_HOMES[name]), name)


def __dir__() -> list[str]:
    return list(_HOMES)
