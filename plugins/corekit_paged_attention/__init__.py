"""PagedAttention by native kernels: attention over block tables without gathering the blocks. Light: importing it imports neither torch nor the kernels."""

from __future__ import annotations

from collections.abc import Sequence

from corekit.api import AttentionBackend, BuildContext, Provider, hookimpl

from .options import CpuPagedOptions


@hookimpl
def corekit_register_attention_backends() -> Sequence[Provider[AttentionBackend]]:
    return (
        Provider(
            name="cpu-paged",
            api=1,
            summary="PagedAttention on a CPU by native kernels, in bfloat16 and float32",
            build=_build_cpu,
            options=CpuPagedOptions,
            refuse=_refuse_cpu,
            rank=10,
        ),
    )


def _refuse_cpu(context: BuildContext) -> Sequence[str]:
    from .cpu_refusals import refusals

    return refusals(context)


def _build_cpu(context: BuildContext, options: CpuPagedOptions) -> AttentionBackend:
    from .cpu_paged import CpuPaged

    return CpuPaged(context, options)
