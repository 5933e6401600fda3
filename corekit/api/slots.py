"""The table of slots: name, hook, Protocol, how many are chosen, and how firm the promise is."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from .attention_backend import AttentionBackend
from .block_allocator import BlockAllocator
from .executor import Executor
from .frontend import Frontend
from .http_route import HttpRoute
from .logits_processor import LogitsProcessor
from .model import Model
from .observer import Observer
from .sampler import Sampler
from .scheduler_policy import SchedulerPolicy
from .tokenizer import Tokenizer
from .tool_format import ToolFormat


@dataclass(frozen=True, slots=True, kw_only=True)
class Slot:
    """One row of the table: a part of the engine that plugins may provide."""

    name: str
    """The one word for this part: file, TOML table, kit, test folder and docs page."""
    hook: str
    protocol: type
    chosen: Literal["one", "stack", "many"]
    stable: bool


SLOTS: tuple[Slot, ...] = (
    Slot(name="tokenizer", hook="corekit_register_tokenizers", protocol=Tokenizer, chosen="one", stable=True),
    Slot(name="scheduler_policy", hook="corekit_register_scheduler_policies", protocol=SchedulerPolicy, chosen="one", stable=True),
    Slot(name="block_allocator", hook="corekit_register_block_allocators", protocol=BlockAllocator, chosen="stack", stable=True),
    Slot(name="attention_backend", hook="corekit_register_attention_backends", protocol=AttentionBackend, chosen="one", stable=True),
    Slot(name="sampler", hook="corekit_register_samplers", protocol=Sampler, chosen="one", stable=True),
    Slot(name="frontend", hook="corekit_register_frontends", protocol=Frontend, chosen="many", stable=True),
    Slot(name="model", hook="corekit_register_models", protocol=Model, chosen="one", stable=False),
    Slot(name="executor", hook="corekit_register_executors", protocol=Executor, chosen="one", stable=False),
    Slot(name="logits_processor", hook="corekit_register_logits_processors", protocol=LogitsProcessor, chosen="many", stable=False),
    Slot(name="observer", hook="corekit_register_observers", protocol=Observer, chosen="many", stable=False),
    Slot(name="http_route", hook="corekit_register_http_routes", protocol=HttpRoute, chosen="many", stable=False),
    Slot(name="tool_format", hook="corekit_register_tool_formats", protocol=ToolFormat, chosen="many", stable=False),
)
