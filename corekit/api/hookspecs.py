"""The hooks: one per slot, called once at composition. Each takes nothing and returns the providers of its slot.

A plugin module (the value of an entry point in group `corekit`) carries functions of these names, marked with `hookimpl`.
Choice among providers is by name in TOML, never by order of registration.
"""

from __future__ import annotations

from collections.abc import Sequence

import pluggy

from .attention_backend import AttentionBackend
from .block_allocator import BlockAllocator
from .executor import Executor
from .frontend import Frontend
from .http_route import HttpRoute
from .logits_processor import LogitsProcessor
from .model import Model
from .observer import Observer
from .provider import Provider
from .sampler import Sampler
from .scheduler_policy import SchedulerPolicy
from .tokenizer import Tokenizer
from .tool_format import ToolFormat

GROUP = "corekit"
"""Entry-point group, and pluggy's project name."""

hookspec = pluggy.HookspecMarker(GROUP)
hookimpl = pluggy.HookimplMarker(GROUP)


@hookspec
def corekit_register_tokenizers() -> Sequence[Provider[Tokenizer]]:
    """Text to ids and back."""
    raise NotImplementedError


@hookspec
def corekit_register_scheduler_policies() -> Sequence[Provider[SchedulerPolicy]]:
    """Who runs in a step, how much, and who gives way."""
    raise NotImplementedError


@hookspec
def corekit_register_block_allocators() -> Sequence[Provider[BlockAllocator]]:
    """Layers of the block allocator stack."""
    raise NotImplementedError


@hookspec
def corekit_register_attention_backends() -> Sequence[Provider[AttentionBackend]]:
    """KV layout, KV writes and attention over block tables."""
    raise NotImplementedError


@hookspec
def corekit_register_samplers() -> Sequence[Provider[Sampler]]:
    """Logits to tokens."""
    raise NotImplementedError


@hookspec
def corekit_register_frontends() -> Sequence[Provider[Frontend]]:
    """How the world reaches the engine."""
    raise NotImplementedError


@hookspec
def corekit_register_models() -> Sequence[Provider[Model]]:
    """Weights and the maths of one forward pass."""
    raise NotImplementedError


@hookspec
def corekit_register_executors() -> Sequence[Provider[Executor]]:
    """On which ranks the workers run."""
    raise NotImplementedError


@hookspec
def corekit_register_logits_processors() -> Sequence[Provider[LogitsProcessor]]:
    """Per-request constraints on the next token."""
    raise NotImplementedError


@hookspec
def corekit_register_observers() -> Sequence[Provider[Observer]]:
    """Metrics, logs and traces."""
    raise NotImplementedError


@hookspec
def corekit_register_http_routes() -> Sequence[Provider[HttpRoute]]:
    """Extra routes for HTTP frontends."""
    raise NotImplementedError


@hookspec
def corekit_register_tool_formats() -> Sequence[Provider[ToolFormat]]:
    """How one family of models writes tool calls."""
    raise NotImplementedError
