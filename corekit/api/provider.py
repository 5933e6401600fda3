"""How a part says what it is and how it is built. The same for every slot; knows no slot's implementation."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Generic, TypeVar

from .block_allocator import BlockAllocator, CopyJournal
from .executor import WorkerFactory
from .model import ModelSpec, WeightSource
from .thread_pool import ThreadPool
from .tokenizer import Tokenizer

T = TypeVar("T")


def alone(name: str, options: Mapping[str, Any]) -> Any:
    """The `BuildContext.build` of a context that nobody put together from a catalog."""
    raise LookupError(f"build({name!r}): this context knows no other providers. Give the part a context of the engine's, or of its slot's kit")


@dataclass(frozen=True, slots=True, kw_only=True)
class BuildContext:
    """What a part may know when it is built. A field is None before its step in the order of assembly.

    Order: source, model spec, refusals, tokenizer, executor (its workers build attention backend, model and sampler), memory,
    allocator layers bottom up, processors, policy, observers, frontends.
    """

    source: WeightSource | None = None
    model_spec: ModelSpec | None = None
    tokenizer: Tokenizer | None = None
    device: str = "cpu"
    dtype: str = "float32"
    """Of weights and activations, by torch's name."""
    kv_dtype: str = "float32"
    quantization: str = "none"
    """ "none": weights in `dtype`; "stored": packed formats of the file as they are, the rest in `dtype`; "int8": linear layers in 8 bits per channel."""
    threads: int = 0
    pool: ThreadPool | None = None
    """The rank's threads for native code; None where corekit was installed without."""
    max_num_seqs: int = 256
    max_num_batched_tokens: int = 2048
    max_model_len: int = 0
    clock: Callable[[], float] = time.monotonic
    seed: int = 0
    block_size: int = 16
    bytes_per_block: int | None = None
    num_blocks: int | None = None
    num_host_blocks: int = 0
    journal: CopyJournal | None = None
    inner: BlockAllocator | None = None
    """For allocator layers: the layer beneath; None for the bottom."""
    worker: WorkerFactory | None = None
    """For executors."""
    build: Callable[[str, Mapping[str, Any]], Any] = alone
    """(name, options) -> the part of another provider of the same slot, built in this context: for a part that wraps one.

    The name and the options are those that TOML would say; {} leaves all options at their defaults.
    """


def never(context: BuildContext) -> Sequence[str]:
    """The `refuse` of a part that runs anywhere."""
    return ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Provider(Generic[T]):
    """One named implementation of a slot."""

    name: str
    """kebab-case: what TOML says."""
    api: int
    """The contract version it was written against; no default on purpose."""
    summary: str
    """One line for `corekit plugins`."""
    build: Callable[[BuildContext, Any], T]
    """(context, options) -> the part. Called once, at composition; heavy imports go inside. `options` is None without `options`."""
    options: type | None = None
    """A frozen dataclass; its fields are the legal keys of the options table in TOML.

    `field(metadata={"secret": True})` keeps a field's value out of messages and of `corekit config show`.
    """
    refuse: Callable[[BuildContext], Sequence[str]] = never
    """Reasons why it cannot run here; empty is fine. Called before anything heavy is built."""
    rank: int = 0
    """For `use = "auto"`: the highest that does not refuse is taken."""
