"""The contract between corekit and its parts: the only thing a plugin imports. Importing it never imports torch.

One file per slot; `slots` lists them, `hookspecs` has one hook each, `provider` says how a part is built.
"""

from .attention_backend import AttentionBackend, AttentionPlan, BatchLayout, GroupLayout, KvPlan, LayerSpec
from .block_allocator import (
    AllocatorStats,
    BlockAllocator,
    BlockKey,
    BlockRef,
    Blocks,
    CachedBlock,
    Copy,
    CopyJournal,
    Durations,
    PrefixMatch,
    PrefixQuery,
    SupportsAudit,
    SupportsEvictionSink,
    SupportsPrefixCache,
    SupportsSwap,
    Ticket,
)
from .errors import CorekitError, EngineDead, InvalidRequest, Overloaded, RequestFailed
from .executor import Admission, Executor, RowInput, RowMasks, StepInput, StepResult, Worker, WorkerFactory
from .frontend import EngineClient, EngineStats, Frontend, Health, ModelFacts, SupportsBind
from .hookspecs import GROUP, hookimpl
from .http_route import HttpRoute, Route
from .logits_processor import LogitsProcessor, NewSample, RowProcessor
from .model import Attend, Model, ModelInputs, ModelSpec, Shard, SupportsDrafts, WeightSource
from .observer import Observer, RequestStats, StepStats
from .ordering import WaitingOrder, plan_in_order
from .provider import BuildContext, Provider, never
from .sampler import Biases, Logprobs, Penalties, Sampled, Sampler, SamplingBatch, SupportsLogprobs
from .scheduler_policy import PASSED_OVER, Grant, PreemptMode, Reason, Refusal, RequestState, RequestView, SchedulerPolicy, StepPlan, SupportsAccounting
from .slots import SLOTS, Slot
from .tokenizer import ChatPrompt, TokenDecoder, Tokenizer
from .tool_format import ToolDelta, ToolFormat, ToolParser
from .types import API_VERSION, CompletionOutput, FinishReason, Prompt, RequestOutput, SamplingParams, TokenLogprob

__all__ = [
    "API_VERSION",
    "GROUP",
    "PASSED_OVER",
    "SLOTS",
    "Admission",
    "AllocatorStats",
    "Attend",
    "AttentionBackend",
    "AttentionPlan",
    "BatchLayout",
    "Biases",
    "BlockAllocator",
    "BlockKey",
    "BlockRef",
    "Blocks",
    "BuildContext",
    "CachedBlock",
    "ChatPrompt",
    "CompletionOutput",
    "Copy",
    "CopyJournal",
    "CorekitError",
    "Durations",
    "EngineClient",
    "EngineDead",
    "EngineStats",
    "Executor",
    "FinishReason",
    "Frontend",
    "Grant",
    "GroupLayout",
    "Health",
    "HttpRoute",
    "InvalidRequest",
    "KvPlan",
    "LayerSpec",
    "LogitsProcessor",
    "Logprobs",
    "Model",
    "ModelFacts",
    "ModelInputs",
    "ModelSpec",
    "NewSample",
    "Observer",
    "Overloaded",
    "Penalties",
    "PreemptMode",
    "PrefixMatch",
    "PrefixQuery",
    "Prompt",
    "Provider",
    "Reason",
    "Refusal",
    "RequestFailed",
    "RequestOutput",
    "RequestState",
    "RequestStats",
    "RequestView",
    "Route",
    "RowInput",
    "RowMasks",
    "RowProcessor",
    "Sampled",
    "Sampler",
    "SamplingBatch",
    "SamplingParams",
    "SchedulerPolicy",
    "Shard",
    "Slot",
    "StepInput",
    "StepPlan",
    "StepResult",
    "StepStats",
    "SupportsAccounting",
    "SupportsAudit",
    "SupportsBind",
    "SupportsDrafts",
    "SupportsEvictionSink",
    "SupportsLogprobs",
    "SupportsPrefixCache",
    "SupportsSwap",
    "Ticket",
    "TokenDecoder",
    "TokenLogprob",
    "Tokenizer",
    "ToolDelta",
    "ToolFormat",
    "ToolParser",
    "WaitingOrder",
    "WeightSource",
    "Worker",
    "WorkerFactory",
    "hookimpl",
    "never",
    "plan_in_order",
]
