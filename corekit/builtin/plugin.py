"""The built-in parts, registered like those of any plugin. Light: a part's own module is imported when it is built."""

from __future__ import annotations

from collections.abc import Sequence

from corekit.api import (
    AttentionBackend,
    BlockAllocator,
    BuildContext,
    Executor,
    Model,
    Provider,
    Sampler,
    SchedulerPolicy,
    Tokenizer,
    WeightSource,
    Worker,
    hookimpl,
)

from .options import DelayedOptions, FingerprintOptions, ScriptedOptions, TorchAttentionOptions


@hookimpl
def corekit_register_tokenizers() -> Sequence[Provider[Tokenizer]]:
    return (
        Provider(name="hf", api=1, summary="tokenizer.json of the model's source, with its chat template", build=_build_hf, refuse=_refuse_hf, rank=10),
        Provider(name="bytes", api=1, summary="ids 0 to 255 are bytes, 256 ends the text; for models without a tokenizer", build=_build_bytes),
    )


@hookimpl
def corekit_register_scheduler_policies() -> Sequence[Provider[SchedulerPolicy]]:
    return (
        Provider(name="fcfs", api=1, summary="first come, first served; the youngest gives way", build=_build_fcfs),
        Provider(name="priority", api=1, summary="lower numbers first, equals as they came; the least urgent gives way", build=_build_priority),
    )


@hookimpl
def corekit_register_block_allocators() -> Sequence[Provider[BlockAllocator]]:
    return (Provider(name="free-list", api=1, summary="the bottom of a stack: free blocks, nothing kept", build=_build_free_list),)


@hookimpl
def corekit_register_attention_backends() -> Sequence[Provider[AttentionBackend]]:
    return (
        Provider(
            name="torch",
            api=1,
            summary="the reference in plain torch, on any device and in any dtype",
            build=_build_torch_attention,
            options=TorchAttentionOptions,
        ),
    )


@hookimpl
def corekit_register_samplers() -> Sequence[Provider[Sampler]]:
    return (Provider(name="torch", api=1, summary="temperature, filters, penalties, biases, bans and logprobs in plain torch", build=_build_torch_sampler),)


@hookimpl
def corekit_register_models() -> Sequence[Provider[Model]]:
    return (
        Provider(
            name="transformers", api=1, summary="any decoder of the transformers library", build=_build_transformers, refuse=_refuse_transformers, rank=10
        ),
        Provider(
            name="fingerprint",
            api=1,
            summary="no weights: an exact answer that depends on every cached position",
            build=_build_fingerprint,
            options=FingerprintOptions,
            refuse=_refuse_weights,
            rank=-1,
        ),
        Provider(
            name="scripted",
            api=1,
            summary="no weights: answers what its options say",
            build=_build_scripted,
            options=ScriptedOptions,
            refuse=_refuse_weights,
            rank=-1,
        ),
    )


@hookimpl
def corekit_register_executors() -> Sequence[Provider[Executor]]:
    return (
        Provider(name="in-process", api=1, summary="one worker in this process", build=_build_in_process, rank=10),
        Provider(
            name="delayed",
            api=1,
            summary="one worker, results late and through bytes: shows what steps in flight break",
            build=_build_delayed,
            options=DelayedOptions,
        ),
    )


def _refuse_hf(context: BuildContext) -> Sequence[str]:
    if context.source is None or "tokenizer.json" not in context.source.tokenizer_files():
        return ("the source has no tokenizer.json",)
    return ()


def _build_hf(context: BuildContext, options: None) -> Tokenizer:
    from .hf_tokenizer import HfTokenizer

    return HfTokenizer(_source(context))


def _build_bytes(context: BuildContext, options: None) -> Tokenizer:
    from .bytes_tokenizer import BytesTokenizer

    return BytesTokenizer()


def _build_fcfs(context: BuildContext, options: None) -> SchedulerPolicy:
    from .fcfs import Fcfs

    return Fcfs()


def _build_priority(context: BuildContext, options: None) -> SchedulerPolicy:
    from .priority import Priority

    return Priority()


def _build_free_list(context: BuildContext, options: None) -> BlockAllocator:
    from .free_list import FreeList

    if context.num_blocks is None:
        raise ValueError("free-list needs the number of blocks, which is known once the model and the memory are")
    if context.inner is not None:
        raise ValueError("free-list is the bottom of a stack; put it last in [block_allocator] stack")
    return FreeList(context.num_blocks)


def _build_torch_attention(context: BuildContext, options: TorchAttentionOptions) -> AttentionBackend:
    from .torch_attention import TorchAttention

    if context.model_spec is None:
        raise ValueError("an attention backend needs the model's layers, and there is no model yet")
    return TorchAttention(context.model_spec.layers, device=context.device, poison=options.poison, block_size=context.block_size)


def _build_torch_sampler(context: BuildContext, options: None) -> Sampler:
    from .torch_sampler import TorchSampler

    return TorchSampler()


def _refuse_transformers(context: BuildContext) -> Sequence[str]:
    if context.source is None or context.source.format == "none":
        return ("the source has no weights",)
    from .transformers_model import refusals

    return refusals(context.source)


def _build_transformers(context: BuildContext, options: None) -> Model:
    from .transformers_model import TransformersModel

    return TransformersModel(_source(context), device=context.device, dtype=context.dtype)


def _refuse_weights(context: BuildContext) -> Sequence[str]:
    if context.source is None or context.source.format != "none":
        return ('it has no use for weights; set [model] source = "none"',)
    return ()


def _build_fingerprint(context: BuildContext, options: FingerprintOptions) -> Model:
    from .fingerprint import Fingerprint

    return Fingerprint(options)


def _build_scripted(context: BuildContext, options: ScriptedOptions) -> Model:
    from .scripted import Scripted

    return Scripted(options)


def _build_in_process(context: BuildContext, options: None) -> Executor:
    from .in_process import InProcess

    return InProcess(_worker(context))


def _build_delayed(context: BuildContext, options: DelayedOptions) -> Executor:
    from .delayed import Delayed

    return Delayed(_worker(context), options.depth)


def _source(context: BuildContext) -> WeightSource:
    if context.source is None:
        raise ValueError("this part reads the model's source, and there is none")
    return context.source


def _worker(context: BuildContext) -> Worker:
    if context.worker is None:
        raise ValueError("an executor needs a worker factory, and there is none")
    return context.worker(0, 1)
