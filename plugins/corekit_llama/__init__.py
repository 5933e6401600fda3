"""A fast decoder for the Llama family on a CPU, written by hand around native kernels. Light: importing it imports neither torch nor the kernels."""

from __future__ import annotations

from collections.abc import Sequence

from corekit.api import BuildContext, Model, Provider, hookimpl

from .options import LlamaOptions


@hookimpl
def corekit_register_models() -> Sequence[Provider[Model]]:
    return (
        Provider(
            name="llama",
            api=1,
            summary="llama, mistral, qwen2, qwen3 and smollm on a CPU, by native kernels, GGUF weights as they are",
            build=_build,
            options=LlamaOptions,
            refuse=_refuse,
            rank=20,
        ),
    )


def _refuse(context: BuildContext) -> Sequence[str]:
    from .refusals import refusals

    return refusals(context)


def _build(context: BuildContext, options: LlamaOptions) -> Model:
    from .model import LlamaModel

    return LlamaModel(context, options)
